"""A small training job with everything that the viewer shows, its truth known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from dftracer.testing.synthetic import Process

__all__ = ["STEPS", "STREAM", "STREAM_NCCL", "training_job"]

STEPS = 40
STREAM, STREAM_NCCL = (1 << 24) + 7, (1 << 24) + 13
_FORWARD = (
    ("aten::linear", "nvjet_tst_256x128"),
    ("aten::gelu", "vectorized_elementwise_kernel"),
    ("aten::linear", "nvjet_tst_256x128"),
    ("aten::scaled_dot_product_attention", "flash_fwd_kernel"),
)
_BACKWARD = (("autograd::engine::evaluate_function", "nvjet_tst_128x64_bwd"),) * 5


class _Rank:
    """One rank and its three loader workers. Times are us."""

    def __init__(self, rank: int, seed: int, slower: float) -> None:
        self.pid = 4000 + 100 * rank
        run = {
            "value": f"demo-{seed}",
            "start": 1_760_000_000_000_000,
            "command": "python3;train.py;--model;vit",
            "host": "node0",
            "launcher": "torchrun",
            "world_size": 2,
            "attempt": 0,
            "version": "3.0.0",
            "python": "3.11.2",
        }
        lanes = [("CM", f"lane.{t}", f"GPU 0 stream {t & 0xFF}") for t in (STREAM, STREAM_NCCL)]
        self.main = Process(self.pid, rank=rank, world_size=2, run=run, metadata=lanes)
        self.workers = [Process(self.pid + 1 + w, ppid=self.pid, run=run) for w in range(3)]
        self.free = [0, 0, 0]
        self.random = random.Random(seed)
        self.slower = slower
        self.correlation = 0
        self.device_free = 0

    def batch(self, step: int, wanted_at: int) -> int:
        """Make a batch; returns when it is ready."""
        worker = self.workers[step % 3]
        at = max(self.free[step % 3], wanted_at - 15_000 if step > 2 else 0)
        for i in range(4):
            path = f"/data/train/shard-{(4 * step + i) % 16:04d}.tar"
            began, reading = at, self.random.randint(600, 1600)
            work = int(self.random.randint(1500, 2500) * self.slower)
            worker.io("open64", at + 20, 40, path, flags=0, ret=5)
            worker.io("read", at + 80, reading, path, count=262144, ret=262144)
            worker.io("close", at + 100 + reading, 10, path, ret=0)
            worker.span("data", "preprocess", at + 140 + reading, work, step=step)
            at += 160 + reading + work
            worker.span("data", "item", began, at - began, count=str(4 * step + i))
        worker.span("data", "collate", at + 10, 700, batch=step, step=step)
        self.free[step % 3] = at + 760
        return at + 710

    def operators(self, at: int, table: tuple[tuple[str, str], ...]) -> int:
        for operator, kernel in table:
            self.correlation += 1
            self.main.span("PP", operator, at + 20, 180, type="cpu_op")
            launch: dict[str, Any] = {"type": "cuda_runtime", "correlation": self.correlation}
            self.main.span("PP", "cudaLaunchKernel", at + 120, 40, **launch)
            begins = max(self.device_free, at + 170)
            on_device = {"type": "kernel", "stream": 7, "device_index": 0, "correlation": self.correlation}
            self.main.span("PP", kernel, begins, 600, tid=STREAM, **on_device)
            self.device_free = begins + 610
            at += 230
        return at

    def step(self, step: int, at: int) -> int:
        main, label = self.main, {"step": step, "epoch": step // 20}
        ready = max(self.batch(step, at) + 200, at + 150)
        who = {"batch": step, "worker": step % 3, "worker_pid": self.workers[step % 3].pid}
        main.span("dataloader", "fetch.iter", at, ready - at, count=str(step + 1), **who, **label)
        x = ready + 100
        main.span("device", "transfer", x, 250, **label)
        x += 300
        end = self.operators(x, _FORWARD)
        main.span("compute", "forward", x, end - x + 30, **label)
        x = end + 60
        end = self.operators(x, _BACKWARD)
        main.span("comm", "all_reduce", end + 20, 150, **label)
        main.span("PP", "ncclDevKernel_AllReduce", end + 300, 2400, tid=STREAM_NCCL, type="kernel", stream=13)
        main.span("compute", "backward", x, end - x + 200, **label)
        x = max(end + 220, self.device_free - 400)
        main.span("compute", "step", x, 500, **label)
        x += 560
        if step == 25:
            main.span("checkpoint", "capture", x, 9000, **label)
            main.io("write", x + 200, 8000, "/ckpt/step-25.pt", count=90_000_000, ret=90_000_000)
            x += 9100
        main.span("dataloader", "fetch.block", ready, x - ready, count=str(step + 1), **label)
        return x + 20


def training_job(directory: Path, seed: int = 1, slower: float = 1.0, steps: int = STEPS) -> Path:
    """Two ranks, three workers each, two streams; `slower` multiplies the preprocessing."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        rank = _Rank(number, seed, slower)
        at = 20_000
        for step in range(steps):
            at = rank.step(step, at)
        rank.main.write(directory)
        for worker in rank.workers:
            worker.write(directory)
    return directory
