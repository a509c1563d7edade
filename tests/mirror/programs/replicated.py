"""DDP on two ranks, with a communication hook; the ranks are processes of torch's own."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from looking import look_at
from torch.nn.parallel import DistributedDataParallel


def train(rank, meeting, out):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    torch.manual_seed(12)
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with open(f"{out}-{rank}.txt", "w") as file:
        for step in range(4):
            loss = model(torch.full((2, 4), float(rank + step))).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=file)
        gathered = [None, None]
        dist.all_gather_object(gathered, {"rank": rank})
        print(gathered, dist.get_world_size(), file=file)
    dist.barrier()
    dist.destroy_process_group()


def hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0] / 2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(train, (f"{place}/meeting", "losses"), nprocs=2)
    for rank in range(2):
        with open(f"losses-{rank}.txt") as file:
            print(file.read(), end="")
    look_at("DDP", DistributedDataParallel)
    look_at("reduce", dist.all_reduce)
    print(os.path.exists("meeting"))
