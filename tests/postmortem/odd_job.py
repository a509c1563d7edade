"""More ways for a training job to go wrong; run by torchrun, gloo, on every rank.

The line that is to blame bears the mark `# here` with the name of the case, as in `hanging_job.py`.
"""

import ctypes
import fcntl
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CASE = sys.argv[1]
RANK = int(os.environ["RANK"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
CULPRIT = 1
AT = 40  # the step it happens in
STEPS = 60
FOREVER = 10_000
SLOW = ("interrupted", "terminated")
HELD = []
LOCK = threading.Lock()
step = 0


def me(case):
    return case == CASE and RANK == CULPRIT


class Data(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, i):
        if i == 4 * AT:
            self.go_wrong()
        return torch.randn(8), torch.randn(1)

    def go_wrong(self):
        if me("worker_raises"):
            raise ValueError("this label is odd")  # here worker_raises
        if me("worker_key"):
            HELD.append({}["label"])  # here worker_key
        if me("worker_memory"):
            resource.setrlimit(resource.RLIMIT_AS, (64 << 30,) * 2)
            torch.ones(1 << 35)  # here worker_memory
        if me("worker_stopped"):
            os.kill(os.getpid(), signal.SIGSTOP)  # here worker_stopped
        if me("worker_exits"):
            os._exit(7)
        if me("worker_loop"):
            while sum(range(100)):  # here worker_loop
                continue
        if me("worker_cgroup"):
            while True:
                HELD.append(bytearray(os.urandom(1 << 20)) * 64)


def fails_in_backward(gradient):
    if me("hook") and step == AT:
        raise FloatingPointError("a gradient is too large")  # here hook
    return gradient


class Optimizer(torch.optim.SGD):
    def step(self, closure=None):
        if me("optimizer_lock") and step == AT:
            LOCK.acquire()
            LOCK.acquire()  # here optimizer_lock
        return super().step(closure)


def silent_server():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen(1)
    HELD.append(server)
    return server.getsockname()


def asks_a_silent_server():
    with socket.create_connection(silent_server()) as connection:
        connection.sendall(b"where is my shard?")
        return connection.recv(100)  # here receive


def connects():
    address = silent_server()
    while True:  # until nobody takes it
        each = socket.socket()
        HELD.append(each)
        each.connect(address)  # here connect


def locked_file():
    with open("lock", "w") as mine:
        other = subprocess.Popen(["flock", "lock", "sleep", str(FOREVER)])
        HELD.append(other)
        time.sleep(1)
        fcntl.flock(mine, fcntl.LOCK_EX)  # here flock


def never_answers():
    threading.Event().wait()


def joins_a_thread():
    thread = threading.Thread(target=never_answers, daemon=True)
    thread.start()
    thread.join()  # here join


def keeps_the_lock():
    ctypes.PyDLL(None).sleep(FOREVER)  # here thread_gil


def no_finite_loss(loss):
    if me("nan") and step == AT:
        loss = loss * float("nan")
    assert torch.isfinite(loss), "the loss is not finite"  # here nan


def go_wrong(model):  # noqa: PLR0912, PLR0915 - a branch for each way
    if CASE == "restarted" and step == 10 and ATTEMPT == 0 and RANK == 2:
        raise ValueError("the first time")
    if step != AT:
        return
    if me("receive"):
        asks_a_silent_server()
    elif me("connect"):
        connects()
    elif me("flock"):
        locked_file()
    elif me("join"):
        joins_a_thread()
    elif me("queue"):
        queue.Queue().get()  # here queue
    elif me("thread_gil"):
        threading.Thread(target=keeps_the_lock, daemon=True).start()
        time.sleep(FOREVER)
    elif me("child"):
        subprocess.run(["sleep", str(FOREVER)], check=True)  # here child
    elif me("exit_0"):
        sys.exit(0)
    elif me("exit_text"):
        sys.exit("no more credits")
    elif me("late"):  # the others run into their own patience
        time.sleep(FOREVER)  # here late
    elif me("cleanup"):
        try:
            raise ValueError("the labels do not fit")
        finally:
            time.sleep(FOREVER)  # here cleanup
    elif me("sigterm"):
        os.kill(os.getpid(), signal.SIGTERM)
    elif me("abort"):
        os.abort()
    elif me("device_memory"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")  # here device_memory
    elif me("recursion"):
        recurse(1)
    elif CASE == "sizes":
        dist.all_reduce(torch.ones(1000 if RANK == CULPRIT else 10))  # here sizes
    elif CASE == "save_fifo":
        if RANK == 0:
            torch.save(model.state_dict(), "pipe")  # here save_fifo
        dist.barrier()
    elif CASE == "restarted" and RANK == CULPRIT:
        time.sleep(FOREVER)  # here restarted
    elif CASE == "other_group":
        if RANK == CULPRIT:
            time.sleep(FOREVER)  # here other_group
        dist.all_reduce(torch.ones(3), group=HELD[0] if RANK == 0 else None)
    elif CASE == "two_groups":
        if RANK < 2:
            dist.all_reduce(torch.ones(3), group=HELD[RANK])  # here two_groups
    elif me("receive_of_a_rank"):
        dist.recv(torch.ones(3), 0)  # here receive_of_a_rank


def recurse(n):
    return recurse(n + 1)  # here recursion


def main():
    global step
    if CASE == "restarted":  # at the launcher's they may find the addresses of those before
        place = {"init_method": f"file://{os.getcwd()}/meet{ATTEMPT}", "rank": RANK, "world_size": 3}
        dist.init_process_group("gloo", **place)
    else:
        dist.init_process_group("gloo", timeout=timedelta(seconds=40) if CASE == "late" else None)
    if CASE in ("other_group", "two_groups"):
        HELD.extend([dist.new_group([0, 1]), dist.new_group([0, 1])])
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
    next(model.parameters()).register_hook(fails_in_backward)
    optimizer = Optimizer(model.parameters(), lr=0.01)
    workers = 1 if CASE.startswith("worker") else 0
    for step, (x, y) in enumerate(DataLoader(Data(), batch_size=4, num_workers=workers)):  # noqa: B007
        loss = (model(x) - y).pow(2).mean()
        no_finite_loss(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        go_wrong(model)
        if CASE in ("moves", "interrupted", "terminated", "launcher_killed") or (
            CASE == "one_slow" and RANK == CULPRIT
        ):
            time.sleep(0.5)
    dist.barrier()
    dist.destroy_process_group()


main()
