"""Training programs with a cost in a known place, really run.

`python verdict_programs.py FOLDER CASE...` runs each case in a process forked off this one, so that torch is
imported once; the traces of a case go to FOLDER/CASE, and what the program measured itself to truth.json.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

from dftracer.python import ai, dft_fn, dftracer

Case = Callable[[Path], dict[str, Any] | None]
CASES: dict[str, Case] = {}
RANKS: dict[str, int] = {}


def case(ranks: int = 1) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[function.__name__] = function
        RANKS[function.__name__] = ranks
        return function

    return add


def compute(forward: float, backward: float, update: float) -> None:
    with ai.compute.forward:
        time.sleep(forward)
    with ai.compute.backward:
        time.sleep(backward)
    with ai.compute.step:
        time.sleep(update)


def slow_range(n: int, wait: float) -> Iterator[int]:
    for i in range(n):
        time.sleep(wait)
        yield i


@case()
def transfer(folder: Path) -> None:
    for _ in ai.dataloader.fetch.iter(range(20)):
        with ai.device.transfer:
            time.sleep(0.034)
        compute(0.008, 0.006, 0.002)


@dft_fn("user").log
def tokenize() -> None:
    time.sleep(0.032)


@case()
def user_stage(folder: Path) -> None:
    for _ in ai.dataloader.fetch.iter(range(20)):
        tokenize()
        compute(0.008, 0.006, 0.004)


@case()
def optimizer(folder: Path) -> None:
    for _ in ai.dataloader.fetch.iter(range(20)):
        compute(0.008, 0.005, 0.04)


@case()
def slow_steps(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(80)):
        compute(0.004, 0.004, 0.002)
        if i % 20 == 19:
            with ai.other.log:
                time.sleep(0.09)


@case()
def evaluation_loop(folder: Path) -> dict[str, Any]:
    spent = 0.0
    for _ in range(3):
        for _ in ai.dataloader.fetch.iter(slow_range(12, 0.001)):
            compute(0.012, 0.008, 0.004)
        began = time.perf_counter()
        for _ in ai.dataloader.fetch.iter(slow_range(8, 0.001)):
            with ai.compute.forward:
                time.sleep(0.01)
        spent += time.perf_counter() - began
    return {"evaluation": spent}


@case()
def evaluation_plain(folder: Path) -> dict[str, Any]:
    spent = 0.0
    for _ in range(3):
        for _ in ai.dataloader.fetch.iter(slow_range(12, 0.001)):
            compute(0.012, 0.008, 0.004)
        began = time.perf_counter()
        for _ in range(8):
            with ai.compute.forward:
                time.sleep(0.01)
        spent += time.perf_counter() - began
    return {"evaluation": spent}


@case()
def evaluation_in_a_step(folder: Path) -> dict[str, Any]:
    spent = 0.0
    for i in ai.dataloader.fetch.iter(slow_range(36, 0.001)):
        compute(0.012, 0.008, 0.004)
        if i % 12 == 11:
            began = time.perf_counter()
            for _ in ai.dataloader.fetch.iter(slow_range(8, 0.001)):
                with ai.compute.forward:
                    time.sleep(0.01)
            spent += time.perf_counter() - began
    return {"evaluation": spent}


@case()
def gap(folder: Path) -> None:
    for _ in range(3):
        for _ in ai.dataloader.fetch.iter(range(10)):
            compute(0.012, 0.008, 0.004)
        time.sleep(0.5)
    with ai.pipeline.test:
        pass


@case()
def checkpoint_at_the_end(folder: Path) -> None:
    for _ in ai.dataloader.fetch.iter(range(30)):
        compute(0.012, 0.008, 0.004)
    with ai.checkpoint.capture:
        time.sleep(1.6)


@case()
def first_step(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(60)):
        compute(1.2 if i == 0 else 0.012, 0.004, 0.002)


@case()
def whole_step(folder: Path) -> None:
    for _ in ai.dataloader.fetch.iter(range(20)):
        with ai.compute.step:
            time.sleep(0.03)


@case()
def any_compute(folder: Path) -> None:
    @ai.compute
    def train() -> None:
        time.sleep(0.03)

    for _ in ai.dataloader.fetch.iter(slow_range(20, 0.001)):
        train()


@case()
def alternating(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(83)):
        compute(0.03 if i % 4 < 2 else 0.004, 0.004, 0.002)


@case()
def gil(folder: Path) -> None:
    """A thread of Python code beside the first epoch."""
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=busy)
    thread.start()
    for epoch in range(3):
        for _ in ai.dataloader.fetch.iter(range(30)):
            ai.update(epoch=epoch)
            with ai.data.item:
                sum(range(60_000))
            compute(0.002, 0.002, 0.001)
        done.set()
    thread.join()


def _files(folder: Path, n: int) -> list[Path]:
    files = [folder / f"{i}.bin" for i in range(n)]
    for file in files:
        file.write_bytes(b"x" * 200_000)
    return files


@case()
def read_each_epoch(folder: Path) -> None:
    _read_each_epoch(folder, labels=True)


@case()
def read_each_epoch_unlabelled(folder: Path) -> None:
    _read_each_epoch(folder, labels=False)


def _read_each_epoch(folder: Path, labels: bool) -> None:
    files = _files(folder, 12)

    def load() -> Iterator[int]:
        for file in files:
            with ai.data.item, os.fdopen(os.open(file, os.O_RDONLY), "rb") as f:
                yield len(f.read())
            time.sleep(0.004)

    for epoch in range(4):
        for _ in ai.dataloader.fetch.iter(load()):
            if labels:
                ai.update(epoch=epoch)
            compute(0.004, 0.002, 0.001)


@case()
def open_to_write(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(20)):
        compute(0.01, 0.005, 0.002)
        with (folder / f"out{i}").open("wb") as f:
            f.write(b"x" * 1000)


@case()
def killed(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(50)):
        ai.update(step=i)
        compute(0.004, 0.002, 0.001)
        if i == 30:
            os.kill(os.getpid(), signal.SIGKILL)


class Samples(Dataset[torch.Tensor]):
    """Items that take `cost(i)` seconds, annotated or not."""

    def __init__(self, n: int, cost: Callable[[int], float], annotated: bool = True) -> None:
        self.n, self.cost, self.annotated = n, cost, annotated

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.annotated:
            with ai.data.item:
                time.sleep(self.cost(i))
        else:
            time.sleep(self.cost(i))
        return torch.zeros(4)


def _slow_start(_: int) -> None:
    time.sleep(0.8)


@case()
def worker_start(folder: Path) -> None:
    loader = DataLoader(Samples(32, lambda i: 0.001), batch_size=2, num_workers=2, worker_init_fn=_slow_start)
    for _ in ai.dataloader.fetch.iter(loader):
        compute(0.012, 0.006, 0.002)


@case()
def worker_restarts(folder: Path) -> None:
    loader = DataLoader(Samples(24, lambda i: 0.001), batch_size=2, num_workers=2, worker_init_fn=_slow_start)
    for _ in range(3):
        for _ in ai.dataloader.fetch.iter(loader):
            compute(0.012, 0.006, 0.002)


@case()
def unannotated(folder: Path) -> None:
    loader = DataLoader(Samples(60, lambda i: 0.08, annotated=False), batch_size=2, num_workers=2)
    for _ in ai.dataloader.fetch.iter(loader):
        compute(0.01, 0.005, 0.002)


@case()
def unannotated_without_workers(folder: Path) -> None:
    loader = DataLoader(Samples(60, lambda i: 0.02, annotated=False), batch_size=2)
    for _ in ai.dataloader.fetch.iter(loader):
        compute(0.01, 0.005, 0.002)


@case()
def slow_items(folder: Path) -> None:
    loader = DataLoader(
        Samples(300, lambda i: 0.15 if i % 100 == 50 else 0.003), batch_size=10, num_workers=1
    )
    for _ in ai.dataloader.fetch.iter(loader):
        compute(0.012, 0.012, 0.01)


def _of_worker_one(i: int) -> float:
    info = get_worker_info()
    return 0.1 if info is not None and info.id == 1 else 0.004


@case()
def slow_worker(folder: Path) -> None:
    loader = DataLoader(Samples(72, _of_worker_one), batch_size=2, num_workers=4, prefetch_factor=1)
    for _ in ai.dataloader.fetch.iter(loader):
        compute(0.004, 0.002, 0.001)


@case()
def slow_file(folder: Path) -> None:
    """One of the files is a pipe whose writer takes its time."""
    files = _files(folder, 10)
    slow = folder / "slow.bin"
    os.mkfifo(slow)
    times = 4
    wanted = threading.Semaphore(0)

    def feed() -> None:
        for _ in range(times):
            wanted.acquire()  # opened too early, it would write to the reader before
            with slow.open("wb") as f:
                f.flush()
                time.sleep(0.25)
                f.write(b"x" * 4096)

    threading.Thread(target=feed, daemon=True).start()

    def load() -> Iterator[int]:
        for i in range(times * 10):
            path = slow if i % 10 == 3 else files[i % 10]
            if path is slow:
                wanted.release()
            fd = os.open(path, os.O_RDONLY)
            with ai.data.item:
                size = len(os.read(fd, 4096))
            os.close(fd)
            yield size

    for _ in ai.dataloader.fetch.iter(load()):
        compute(0.006, 0.004, 0.002)


def _ddp(forward: float, wait: float, reduce: bool, usual: float = 0.02, steps: int = 20) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=2)
    model: Any = torch.nn.Linear(8, 8)
    if not reduce:
        model = torch.nn.parallel.DistributedDataParallel(model)
    late = rank == 1
    for i in ai.dataloader.fetch.iter(slow_range(steps, wait if late else 0.001)):
        ai.update(step=i)
        with ai.compute.forward:
            time.sleep(forward if late else usual)
            loss = model(torch.ones(4, 8)).sum()
        with ai.compute.backward:
            loss.backward()
        if reduce:
            with ai.comm.all_reduce:
                for p in model.parameters():
                    dist.all_reduce(p.grad)
        with ai.compute.step:
            time.sleep(0.002)
    dist.destroy_process_group()


@case(ranks=2)
def slow_forward_of_rank_1(folder: Path) -> None:
    _ddp(0.1, 0.001, reduce=False)


@case(ranks=2)
def slow_forward_before_a_reduce(folder: Path) -> None:
    _ddp(0.1, 0.001, reduce=True)


@case(ranks=2)
def slow_data_of_rank_1(folder: Path) -> None:
    _ddp(0.02, 0.09, reduce=False)


@case(ranks=2)
def healthy_ddp(folder: Path) -> None:
    _ddp(0.15, 0.001, reduce=False, usual=0.15, steps=12)


@case(ranks=2)
def healthy_reduce(folder: Path) -> None:
    _ddp(0.15, 0.001, reduce=True, usual=0.15, steps=12)


@case()
def healthy_plain(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(30)):
        ai.update(step=i)
        compute(0.03, 0.03, 0.004)


@case()
def healthy_workers(folder: Path) -> None:
    loader = DataLoader(Samples(60, lambda i: 0.002), batch_size=2, num_workers=2, persistent_workers=True)
    for epoch in range(2):
        for i, _ in ai.dataloader.fetch.iter(enumerate(loader)):
            ai.update(step=i, epoch=epoch)
            compute(0.03, 0.03, 0.004)


@case()
def healthy_files(folder: Path) -> None:
    files = _files(folder, 20)

    def load() -> Iterator[bytes]:
        for file in files:
            with ai.data.item:
                data = file.read_bytes()
            yield data

    for epoch in range(2):
        for _ in ai.dataloader.fetch.iter(load()):
            ai.update(epoch=epoch)
            compute(0.03, 0.03, 0.004)


@case()
def healthy_evaluation(folder: Path) -> None:
    for epoch in range(3):
        for _ in ai.dataloader.fetch.iter(range(15)):
            ai.update(epoch=epoch)
            compute(0.03, 0.03, 0.004)
        with ai.pipeline.evaluate:
            time.sleep(0.1)


@case()
def healthy_checkpoint(folder: Path) -> None:
    for i in ai.dataloader.fetch.iter(range(30)):
        compute(0.03, 0.03, 0.004)
        if i % 15 == 14:
            with ai.checkpoint.capture, (folder / "model.pt").open("wb") as f:
                f.write(b"x" * 100_000)


def _child(name: str, folder: Path, rank: int) -> None:
    if RANKS[name] > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS[name]), STORE=str(folder / "store"))
    else:
        rank = -1
    log = dftracer.initialize_log(str(folder / f"t{max(rank, 0)}.pfw"), str(folder), rank)
    truth = CASES[name](folder)
    log.finalize()
    if truth is not None:
        (folder / "truth.json").write_text(json.dumps(truth))


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    running: list[int] = []
    for name in sys.argv[2:]:
        folder = root / name
        folder.mkdir()
        while len(running) >= 3:
            running.remove(os.wait()[0])
        for rank in range(RANKS[name]):
            pid = os.fork()
            if pid == 0:
                _child(name, folder, rank)
                sys.exit(0)
            running.append(pid)
    while running:
        running.remove(os.wait()[0])


if __name__ == "__main__":
    main()
