"""A training job that goes wrong in the way its argument says; run by torchrun, gloo, on every rank.

The line that is to blame bears the mark `# here`, with the name of the case where several share a file.
"""

import ctypes
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CASE = sys.argv[1]
RANK = int(os.environ["RANK"])
CULPRIT = 1
AT = 40  # the step it happens in
STEPS = 60
FOREVER = 10_000
HELD = []


class Data(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, i):
        if i == 4 * AT and RANK == CULPRIT:
            if CASE == "worker_fifo":
                os.open("pipe", os.O_RDONLY)  # here worker_fifo
            if CASE == "worker_killed":
                os.kill(os.getpid(), signal.SIGKILL)
        return torch.randn(8), torch.randn(1)


def read_shard():
    descriptor = os.open("pipe", os.O_RDWR)  # with a writer, so that there is no end
    return os.read(descriptor, 100)  # here read


def spin():
    n = 0
    while True:
        n += 1  # here loop


def take_both():
    first, second = threading.Lock(), threading.Lock()

    def other():
        with second:
            time.sleep(0.2)
            first.acquire()

    thread = threading.Thread(target=other, daemon=True)
    with first:
        thread.start()
        time.sleep(0.1)
        second.acquire()  # here deadlock


def drop_packets():
    """From now on nothing that other ranks send arrives here."""
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as s:
                ports = {s.getsockname()[1], s.getpeername()[1]}
                if (
                    s.family not in (socket.AF_INET, socket.AF_INET6)
                    or int(os.environ["MASTER_PORT"]) in ports
                ):
                    continue
                nothing = ctypes.create_string_buffer(
                    struct.pack("HBBI", 0x06, 0, 0, 0)
                )  # BPF: return 0 bytes
                program = struct.pack("HxxxxxxP", 1, ctypes.addressof(nothing))
                s.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
        except (OSError, IndexError):
            continue


class Forever:
    def __reduce__(self):
        time.sleep(FOREVER)  # here checkpoint
        return (int, ())


def never_ends():
    time.sleep(FOREVER)  # here exit


def go_wrong(step, model, optimizer):  # noqa: PLR0912, PLR0915 - a branch for each way
    if CASE == "skipped" and step % 10 == 0:
        if RANK == CULPRIT and step == AT:
            time.sleep(FOREVER)  # here skipped
        dist.all_reduce(torch.ones(100))
    if step != AT:
        return
    me = RANK == CULPRIT
    if CASE == "order":
        if me:
            dist.broadcast(torch.ones(10), 0)  # here order
            dist.all_reduce(torch.ones(10))
        else:
            dist.all_reduce(torch.ones(10))
            dist.broadcast(torch.ones(10), 0)
    elif CASE == "sigstop" and me:
        os.kill(os.getpid(), signal.SIGSTOP)  # here sigstop
    elif CASE == "all_stopped":
        dist.barrier()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif CASE == "sigkill" and me:
        os.kill(os.getpid(), signal.SIGKILL)  # here sigkill
    elif CASE == "crash" and me:
        ctypes.string_at(0)
    elif CASE == "network" and me:
        drop_packets()
    elif CASE == "read" and me:
        read_shard()
    elif CASE == "deadlock" and me:
        take_both()
    elif CASE == "loop" and me:
        spin()
    elif CASE == "gil" and me:
        ctypes.PyDLL(None).sleep(FOREVER)  # here gil
    elif CASE == "checkpoint":
        if RANK == 0:
            torch.save({"model": model.state_dict(), "more": Forever()}, "model.pt")
        dist.barrier()
    elif CASE == "exception" and me:
        raise ValueError("the labels do not fit")  # here exception
    elif CASE == "os_exit" and me:
        os._exit(3)
    elif CASE == "memory" and me:
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30,) * 2)
        torch.ones(1 << 35)  # here memory
    elif CASE == "cgroup" and me:
        while True:
            HELD.append(bytearray(os.urandom(1 << 20)) * 64)
    elif CASE == "barrier":
        if me:
            time.sleep(FOREVER)  # here barrier
        dist.barrier()
    elif CASE == "evaluation":
        if RANK == 0:
            evaluate(model)
        dist.barrier()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        for x, _ in DataLoader(Data(), batch_size=4):
            model.module(x)
            time.sleep(FOREVER)  # here evaluation


def batches():
    n = STEPS
    if CASE == "fewer_batches" and RANK == CULPRIT:
        n = AT
    workers = 1 if CASE.startswith("worker") else 0
    for i, batch in enumerate(DataLoader(Data(), batch_size=4, num_workers=workers)):
        if i == n:
            return
        yield batch


def main():
    if CASE == "startup" and RANK == CULPRIT:
        time.sleep(FOREVER)  # here startup
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches()):
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        go_wrong(step, model, optimizer)
    if CASE == "fewer_batches" and RANK == CULPRIT:
        return
    dist.barrier()
    if CASE == "at_exit" and RANK == CULPRIT:
        threading.Thread(target=never_ends).start()
    dist.destroy_process_group()


main()
