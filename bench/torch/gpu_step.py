"""A training loop of a small transformer that reads its batches from files, run by `gpu_overhead.py`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from dftracer.python import ai, dftracer
from dftracer.python.torch import trace_handler

SHAPE = {"batch": 16, "length": 256, "width": 512, "layers": 6, "heads": 8, "words": 8192}


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = SHAPE["width"]
        self.words = nn.Embedding(SHAPE["words"], width)
        layer = nn.TransformerEncoderLayer(
            width, SHAPE["heads"], 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, SHAPE["layers"], enable_nested_tensor=False)
        self.out = nn.Linear(width, SHAPE["words"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(x)))


def write_batches(directory: Path, count: int = 8) -> list[Path]:
    paths = []
    for index in range(count):
        path = directory / f"batch{index}.bin"
        if not path.exists():
            torch.manual_seed(index)
            tokens = torch.randint(
                0, SHAPE["words"], (SHAPE["batch"], SHAPE["length"] + 1), dtype=torch.int64
            )
            path.write_bytes(tokens.numpy().tobytes())
        paths.append(path)
    return paths


@ai.data.item
def read_batch(path: Path) -> torch.Tensor:
    with path.open("rb") as file:
        data = bytearray(file.read())
    return torch.frombuffer(data, dtype=torch.int64).view(SHAPE["batch"], SHAPE["length"] + 1)


class Training:
    def __init__(self, device: str, compile_with: str) -> None:
        self.device = device
        torch.manual_seed(0)
        self.raw = Transformer().to(device)
        self.model: Any = self.raw
        if compile_with == "torch":
            self.model = torch.compile(self.raw)
        elif compile_with == "graph":
            from dftracer.python import dynamo  # noqa: PLC0415

            self.model = dynamo.compile(self.raw, backend="inductor")
        self.optimizer = torch.optim.AdamW(self.raw.parameters(), lr=1e-4, fused=device == "cuda")

    @ai.compute.forward
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device, dtype=torch.bfloat16):
            out = self.model(tokens[:, :-1])
            return nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())

    @ai.compute.backward
    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    @ai.compute.step
    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, path: Path) -> None:
        tokens = read_batch(path).to(self.device)
        self.backward(self.forward(tokens))
        self.update()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--profiler", choices=["off", "plain", "handler"], default="off")
    parser.add_argument("--compile", choices=["no", "torch", "graph"], default="no")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    paths = write_batches(options.data)
    log = dftracer.initialize_log("gpu_step.pfw", None, -1)
    training = Training(device, options.compile)
    for index in range(10):
        training.step(paths[index % len(paths)])
    wait()

    prof: Any = None
    if options.profiler != "off":
        prof = profile(
            activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda"),
            schedule=schedule(wait=options.steps // 3, warmup=2, active=3, repeat=2),
            on_trace_ready=trace_handler if options.profiler == "handler" else lambda _: None,
            record_shapes=True,
        )
        prof.start()
    times = []
    start = time.perf_counter()
    for index in ai.pipeline.epoch.iter(range(options.steps)):
        begin = time.perf_counter()
        training.step(paths[index % len(paths)])
        # Every step is finished before the next one starts: its time is then its own.
        wait()
        times.append(time.perf_counter() - begin)
        if prof is not None:
            prof.step()
    if prof is not None:
        prof.stop()
    loop = time.perf_counter() - start
    log.finalize()
    total = time.perf_counter() - start
    os.sync()
    sys.stdout.write(
        "\n"
        + json.dumps(
            {"median_ms": 1e3 * statistics.median(times), "loop_s": loop, "total_s": total, "device": device}
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
