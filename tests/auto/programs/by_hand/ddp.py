"""The twin of ddp.py."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start
from torch.nn.parallel import DistributedDataParallel


def rank_main(rank: Any, place: Any) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    model, optimizer = start()
    model = DistributedDataParallel(model)
    with ai.pipeline.train:
        for x, y in fetch.iter(started(DataLoader(Items(12, 0.05 + 0.1 * rank), batch_size=1))):
            with forward:
                optimizer.zero_grad()
                loss = loss_of(model(x), y)
            with backward:
                loss.backward()
            with step:
                optimizer.step()
    total = loss.detach()
    with ai.comm.all_reduce:
        dist.all_reduce(total)
    if rank == 0:
        print(f"loss {total.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(rank_main, args=(sys.argv[1],), nprocs=2, start_method="fork")
