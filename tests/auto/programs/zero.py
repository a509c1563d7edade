"""DeepSpeed: a ZeRO stage, batches accumulated in a step, and ranks, each with slower data than the last."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from parts import Items, loss_of, start
from torch.utils.data import DataLoader
from zero_engine import engine_of


def rank_main(rank: int, stage: int, batches: int, ranks: int, place: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks)
    engine, _ = engine_of(stage, batches, *start())
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
