"""A job that is well for as long as its argument says, with everything that takes long now and then.

Two ranks, gloo. With a patience of 5 s: steps of very different lengths, evaluations and checkpoints of 8 s,
a compiler that takes 8 s, loaders whose workers start slowly, own code between epochs.
"""

import io
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LONG_S = 8  # more than the patience, less than three times that


class Data(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, i):
        time.sleep(random.choice((0, 0.001, 0.02)))
        return torch.randn(8), torch.randn(1)


class SlowFile(io.BytesIO):
    def __init__(self):
        super().__init__()
        self.slow = True

    def write(self, data):
        if self.slow:
            self.slow = False
            time.sleep(LONG_S)
        return super().write(data)


def slow_compiler(graph, inputs):
    time.sleep(LONG_S)
    return graph.forward


def train(model, optimizer, compute):
    for x, y in DataLoader(Data(), batch_size=4, num_workers=1, worker_init_fn=lambda n: time.sleep(2)):
        loss = (compute(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if random.random() < 0.02:
            time.sleep(1)
        optimizer.step()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        model.module(torch.randn(4, 8))
        time.sleep(LONG_S)
        model.module(torch.randn(4, 8))
    model.train()


def main():
    until = time.monotonic() + float(sys.argv[1])
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    go_on = torch.ones(1)
    while go_on:
        train(model, optimizer, model)
        evaluate(model)
        dist.barrier()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), SlowFile())
        dist.barrier()
        time.sleep(LONG_S)  # between epochs
        torch._dynamo.reset()
        train(model, optimizer, torch.compile(torch.nn.Linear(8, 1), backend=slow_compiler))
        go_on = torch.tensor([float(time.monotonic() < until)])
        dist.broadcast(go_on, 0)
    dist.barrier()
    dist.destroy_process_group()


main()
