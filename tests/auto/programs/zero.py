"""DeepSpeed: a ZeRO stage, batches accumulated in a step, and ranks, each with slower data than the last."""

import os
import sys

import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from parts import Items, loss_of, start
from torch.utils.data import DataLoader

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def engine_of(model, optimizer, stage, batches):
    """Sub-groups of four elements: with stage 3 the weight and the bias are stepped one after the other."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": batches,
        "zero_optimization": {"stage": stage, "sub_group_size": 4},
        "zero_allow_untested_optimizer": True,
    }
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def rank_main(rank, stage, batches, ranks, place):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    engine = engine_of(*start(), stage, batches)
    for x, y in DataLoader(Items(6 * batches, 0.05 + 0.1 * rank), batch_size=1):
        loss = loss_of(engine(x), y)
        engine.backward(loss)
        engine.step()
    if rank == 0:
        print(f"loss {loss.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    stage, batches, ranks = map(int, sys.argv[1:4])
    if ranks == 1:
        rank_main(0, stage, batches, ranks, sys.argv[4])
    else:
        mp.start_processes(rank_main, (stage, batches, ranks, sys.argv[4]), nprocs=ranks, start_method="fork")
