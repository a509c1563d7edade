"""A training job that is annotated by hand and traced without `dftracer run`; rank 1 stops at step 40.

With `well`, nothing goes wrong: there is a pause of each kind that is longer than the watch's patience.
"""

import sys
import time

import torch
import torch.distributed as dist

from dftracer.python import ai, dftracer

CASE = sys.argv[1]
dist.init_process_group("gloo")
log = dftracer.initialize_log(None, None)
RANK = dist.get_rank()


def load_shard(step):
    if RANK == 1 and step == 40 and CASE == "hangs":
        time.sleep(10_000)  # here hangs
    return torch.ones(8)


def busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


for step in ai.dataloader.fetch.iter(range(60)):
    ai.update(step=step)
    batch = load_shard(step)
    with ai.compute.forward:
        time.sleep(0.01)
    with ai.comm.all_reduce:
        dist.all_reduce(batch)
    if CASE == "well" and step in (20, 30, 40):
        if RANK == 0 and step == 20:
            with ai.checkpoint.capture:
                time.sleep(5)
        elif RANK == 0 and step == 30:
            with ai.pipeline.evaluate:
                time.sleep(5)
        elif step == 40:
            busy(5)  # nobody has annotated it
        dist.barrier()
print("modules:", "dftracer.torch.rule" in sys.modules, "dftracer.auto" in sys.modules, flush=True)
dist.barrier()
log.finalize()
dist.destroy_process_group()
