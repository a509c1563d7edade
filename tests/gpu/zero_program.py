"""Plain training programs without a single annotation: python zero_program.py CASE [cuda|cpu] [TRUTH.json].

What a program knows of itself (its steps, and seconds by its own clock) goes into TRUTH.json, for
zero_cases.py. On a CPU the models are small, and what is bound by the device is bound by the processor.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda"
ON_GPU = DEVICE == "cuda"
WIDE = 4096 if ON_GPU else 64
SMALL = 1024 if ON_GPU else 64
now = time.perf_counter


class Truth:
    """Seconds by kind, step by step, as the program's own clock has them."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.step: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self.last = now()

    def mark(self, kind: str) -> None:
        """The time since the last mark was of this kind."""
        t = now()
        self.step[kind] = self.step.get(kind, 0.0) + t - self.last
        self.last = t

    def next_step(self) -> None:
        self.steps.append(self.step)
        self.step = {}

    def write(self, path: str) -> None:
        with open(path, "w") as file:
            json.dump({"steps": self.steps, **self.facts}, file)


truth = Truth()
pending: list[tuple[Any, Any]] = []  # device events around evaluations


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def mlp(width: int, depth: int, inputs: int | None = None) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(inputs or width, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convnet() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, 128, 256, 256) if ON_GPU else (8, 16):
        layers += [nn.Conv2d(channels, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Words(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x).mean(1))


class Sleepy(Dataset):
    def __init__(self, length: int, shape: tuple[int, ...], ms: float) -> None:
        self.length, self.shape, self.ms = length, shape, ms

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.ms / 1e3)
        return torch.randn(*self.shape), index % 10


def batch(rows: int, *shape: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, *shape, device=device), torch.randint(0, 10, (rows,), device=device)


def loop(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    epochs: int = 1,
    after_step: Callable[[int, Any, Any], str] | None = None,
    after_epoch: Callable[[Any], None] | None = None,
) -> None:
    model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(epochs):
        for i, (inputs, labels) in enumerate(loader):
            truth.mark("input")
            x, y = inputs.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
            truth.mark("transfer")
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            truth.mark("compute")
            if after_step:
                truth.mark(after_step(i, model, loss))
            truth.next_step()
        if after_epoch:
            after_epoch(model)
            truth.mark("evaluation")


def save(i: int, model: nn.Module, loss: torch.Tensor) -> str:
    if i % 10 == 9:
        with tempfile.NamedTemporaryFile(suffix=".pt") as file:
            torch.save(model.state_dict(), file.name)
    return "checkpoint"


def log_metrics(i: int, model: nn.Module, loss: torch.Tensor) -> str:
    time.sleep(0.02)
    return "own_code"


def show(i: int, model: nn.Module, loss: torch.Tensor) -> str:
    print(i, loss.item())
    return "sync"


def evaluate(model: nn.Module) -> None:
    """On a GPU the device's time counts: the host comes here while training is still queued."""
    x = torch.randn(WIDE, WIDE, device=DEVICE)
    begin, end = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if ON_GPU else (None, None)
    if begin:
        begin.record()
    model.eval()
    with torch.no_grad():
        for _ in range(100 if ON_GPU else 400):
            model(x)
    if end:
        end.record()
        pending.append((begin, end))
    synchronize()
    model.train()


def graph_replays() -> None:
    """400 steps, captured once."""
    model = mlp(2048, 8).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x, y = batch(2048, 2048, device=DEVICE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    batches = [batch(2048, 2048, device=DEVICE) for _ in range(4)]
    truth.last = now()
    for i in range(400):
        new_x, new_y = batches[i % 4]
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        if i % 50 == 49:
            print(i, loss.item())
        truth.mark("device")
        truth.next_step()


def calls() -> None:
    """Blocking calls, each timed by the program."""
    a = torch.randn(WIDE, WIDE, device=DEVICE)
    host = torch.randn(4 << 20)  # 16 MiB
    host.to(DEVICE)
    a @ a
    synchronize()
    found: dict[str, dict[str, float]] = {}

    def timed(kind: str, call: Callable[[], Any]) -> None:
        begin = now()
        call()
        entry = found.setdefault(kind, {"calls": 0, "seconds": 0.0})
        entry["calls"] += 1
        entry["seconds"] += now() - begin

    for _ in range(20):
        for _ in range(4):
            b = a @ a
        timed("cudaDeviceSynchronize", synchronize)
        timed("HtoD", lambda: host.to(DEVICE))
        for _ in range(4):
            b = a @ a
        timed("DtoH", b[0, 0].item)
        synchronize()
    # A capture must not notice us.
    if ON_GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = a.clone()
            c.add_(1)
        for _ in range(7):
            graph.replay()
        synchronize()
        assert torch.equal(c, a + 1)
        found["cudaGraphLaunch"] = {"calls": 7, "seconds": 0}
    truth.facts["calls"] = found
    truth.facts["bytes"] = host.numel() * host.element_size()


def one_rank() -> None:
    """Collectives of one rank: the program's own and those of DDP."""
    with tempfile.NamedTemporaryFile() as file:
        store = f"file://{file.name}.store"
        dist.init_process_group("nccl" if ON_GPU else "gloo", init_method=store, rank=0, world_size=1)
        x = torch.ones(1000, device=DEVICE)
        for n in (1000, 500):
            dist.all_reduce(x[:n])
        dist.broadcast(x, 0)
        dist.all_gather_into_tensor(torch.empty_like(x), x)
        dist.reduce_scatter_tensor(torch.empty_like(x), x)
        # Of one rank, torch makes a copy of the last one.
        truth.facts["collectives"] = [
            ["all_reduce", 4000], ["all_reduce", 2000], ["broadcast", 4000], ["all_gather", 4000],
        ]  # fmt: skip
        model = nn.parallel.DistributedDataParallel(mlp(256, 2).to(DEVICE))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(20):
            x, y = batch(32, 256, device=DEVICE)
            cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        synchronize()
        truth.facts["gradient_bytes"] = sum(p.numel() * 4 for p in model.parameters())
        dist.destroy_process_group()


def loader(rows: int, count: int, *shape: int) -> DataLoader:
    data = TensorDataset(torch.randn(rows * 4, *shape), torch.randint(0, 10, (rows * 4,)))
    return DataLoader(
        data, rows, num_workers=2, pin_memory=ON_GPU, sampler=[i % (rows * 4) for i in range(rows * count)]
    )


def checkpoints(batches: Any) -> None:
    loop(mlp(WIDE, 12, 1024) if ON_GPU else mlp(1024, 12, 64), batches, after_step=save)


def transfers() -> None:
    model = nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.Linear(192, 10))
    loop(model, [batch(128 if ON_GPU else 2, 3, 512, 512)] * 80)


ROWS = WIDE // 2
CASES: dict[str, Callable[[], None]] = {
    "ckpt_list": lambda: checkpoints([batch(SMALL // 4, SMALL)] * 100),
    "ckpt_loader": lambda: checkpoints(loader(SMALL // 4, 100, SMALL)),
    "transfer": transfers,
    "input": lambda: loop(
        convnet(), DataLoader(Sleepy(32 * 120, (3, 64, 64), 5), 32, num_workers=4, pin_memory=ON_GPU)
    ),
    "own_code": lambda: loop(mlp(SMALL, 4), [batch(SMALL // 4, SMALL)] * 150, after_step=log_metrics),
    "evaluate": lambda: loop(mlp(WIDE, 6), [batch(WIDE, WIDE)] * 20, epochs=4, after_epoch=evaluate),
    "item": lambda: loop(mlp(WIDE, 8), [batch(ROWS, WIDE, device=DEVICE)] * 120, after_step=show),
    "devsync": lambda: loop(mlp(WIDE, 8), [batch(ROWS, WIDE)] * 120),
    "graph": graph_replays,
    "device_resident": lambda: loop(mlp(WIDE, 8), [batch(ROWS, WIDE, device=DEVICE)] * 120),
    "device_loader": lambda: loop(mlp(WIDE, 8), loader(ROWS, 120, WIDE)),
    "device_transformer": lambda: loop(
        Words(1024, 8) if ON_GPU else Words(64, 2),
        [batch(64, 128, 1024 if ON_GPU else 64, device=DEVICE)] * 150,
    ),
    "calls": calls,
    "one_rank": one_rank,
}

if __name__ == "__main__":
    torch.manual_seed(0)
    if not ON_GPU:
        torch.set_num_threads(1)  # more only wait for each other where the cores are shared
    CASES[sys.argv[1]]()
    synchronize()
    truth.facts["evaluation_s"] = [begin.elapsed_time(end) / 1e3 for begin, end in pending]
    lines, first = inspect.getsourcelines(log_metrics)
    truth.facts["sleeps_at"] = first + next(i for i, line in enumerate(lines) if "time.sleep" in line)
    if len(sys.argv) > 3:
        truth.write(sys.argv[3])
