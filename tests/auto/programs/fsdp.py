"""Parameters spread over two ranks."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from parts import Items, Optimizer, loss_of, start
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader


def rank_main(rank: Any, place: Any) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    model, _ = start()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = Optimizer(model.parameters())
    for x, y in DataLoader(Items(12, 0.05 + 0.1 * rank), batch_size=1):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    if rank == 0:
        print(f"loss {total.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    mp.start_processes(rank_main, args=(sys.argv[1],), nprocs=2, start_method="fork")
