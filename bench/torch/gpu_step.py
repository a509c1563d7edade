"""A training step of a small transformer that reads its batches from files, with and without tracing.

Both sides of a comparison live in one process and take turns every few steps: clocks, caches and neighbours
are then the same for both. Run by `gpu_overhead.py`; prints the pairs as JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from dftracer._session import run_before_finalize
from dftracer.python import ai, dftracer, dynamo
from dftracer.python.torch import trace_handler

SHAPE = {"batch": 16, "length": 256, "width": 512, "layers": 6, "heads": 8, "words": 8192}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Step = Callable[[int], None]
T = TypeVar("T")
Pairs = list[tuple[float, float]]
Runs = list[tuple[list[float], list[float]]]


class Transformer(nn.Module):  # type: ignore[misc] # torch is Any
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
    directory.mkdir(exist_ok=True)
    paths = []
    for index in range(count):
        path = directory / f"batch{index}.bin"
        shape = (SHAPE["batch"], SHAPE["length"] + 1)
        tokens = torch.randint(0, SHAPE["words"], shape, dtype=torch.int64)
        path.write_bytes(bytes(tokens.numpy().data))
        paths.append(path)
    return paths


def read_batch(path: Path) -> torch.Tensor:
    with path.open("rb") as file:
        data = bytearray(file.read())
    return torch.frombuffer(data, dtype=torch.int64).view(SHAPE["batch"], SHAPE["length"] + 1)


class Training:
    """One model; `steps` gives steps over it that differ only in what is traced."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Transformer().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=DEVICE == "cuda")

    def forward(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            out = model(tokens[:, :-1])
            return nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def plain(self, paths: list[Path], model: Any = None) -> Step:
        model = self.model if model is None else model

        def step(index: int) -> None:
            tokens = read_batch(paths[index % len(paths)]).to(DEVICE)
            self.backward(self.forward(model, tokens))
            self.update()

        return step

    def annotated(self, paths: list[Path]) -> Step:
        read = ai.data.item(read_batch)
        forward = ai.compute.forward(self.forward)
        backward = ai.compute.backward(self.backward)
        update = ai.compute.step(self.update)

        def step(index: int) -> None:
            ai.update(step=index)
            with ai.device.transfer:
                tokens = read(paths[index % len(paths)]).to(DEVICE)
            backward(forward(self.model, tokens))
            update()

        return step


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(step: Step, count: int, first: int) -> float:
    """Median time of a step; each is finished before the next begins."""
    times = []
    for index in range(first, first + count):
        begin = time.perf_counter()
        step(index)
        wait()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def alternate(first: Callable[[int], T], second: Callable[[int], T], rounds: int) -> list[tuple[T, T]]:
    """Pairs of times; who begins changes every round."""
    pairs = []
    gc.collect()
    gc.disable()
    for turn in range(rounds):
        if turn % 2:
            b, a = second(turn), first(turn)
        else:
            a, b = first(turn), second(turn)
        pairs.append((a, b))
    gc.enable()
    return pairs


def compare_annotations(training: Training, data: Path, rounds: int, steps: int) -> Pairs:
    plain = training.plain(write_batches(data / "plain"))
    traced = training.annotated(write_batches(data / "traced"))
    timed(plain, 20, 0)
    timed(traced, 20, 0)
    return alternate(
        lambda turn: timed(plain, steps, turn * steps),
        lambda turn: timed(traced, steps, turn * steps),
        rounds,
    )


def compare_handlers(
    training: Training, data: Path, rounds: int, steps: int
) -> list[tuple[list[float], list[float]]]:
    plain = training.plain(write_batches(data / "plain"))

    def window(handler: Callable[[Any], None]) -> list[float]:
        """The time of each step, and last that of the end, when the handler's thread is waited for."""
        times = []
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (DEVICE == "cuda")
        with profile(
            activities=activities,
            schedule=schedule(wait=20, warmup=2, active=3, repeat=1),
            on_trace_ready=handler,
            record_shapes=True,
        ) as prof:
            # Most steps follow the window: what the handler leaves to its thread runs beside them.
            for index in range(10 * steps):
                begin = time.perf_counter()
                plain(index)
                wait()
                prof.step()
                times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        run_before_finalize()
        times.append(time.perf_counter() - begin)
        return times

    for handler in (lambda _: None, trace_handler):
        window(handler)
    return alternate(lambda _: window(lambda _: None), lambda _: window(trace_handler), rounds)


def compare_windows(training: Training, data: Path, rounds: int, steps: int) -> Runs:
    """One recorded window handed over again and again: what its writing takes from the steps beside it."""
    plain = training.plain(write_batches(data / "plain"))
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (DEVICE == "cuda")
    with profile(activities=activities, record_shapes=True) as prof:
        for index in range(3):
            plain(index)
            wait()

    def run(handler: Callable[[Any], None]) -> list[float]:
        times = []
        begin = time.perf_counter()
        handler(prof)
        for index in range(4 * steps):
            plain(index)
            wait()
            times.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        run_before_finalize()
        return [*times, time.perf_counter() - begin]

    for handler in (lambda _: None, trace_handler):
        run(handler)
    return alternate(lambda _: run(lambda _: None), lambda _: run(trace_handler), rounds)


def compare_graphs(training: Training, data: Path, rounds: int, steps: int) -> Pairs:
    paths = write_batches(data / "plain")
    plain = training.plain(paths, torch.compile(training.model))
    traced = training.plain(paths, dynamo.compile(training.model, backend="inductor"))
    timed(plain, 20, 0)
    timed(traced, 20, 0)
    return alternate(
        lambda turn: timed(plain, steps, turn * steps),
        lambda turn: timed(traced, steps, turn * steps),
        rounds,
    )


COMPARISONS: dict[str, Callable[..., Any]] = {
    "annotations": compare_annotations,
    "handler": compare_handlers,
    "window": compare_windows,
    "graphs": compare_graphs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparison", choices=list(COMPARISONS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = dftracer.initialize_log("gpu_step.pfw", os.fspath(options.data / "traced"), -1)
    pairs = COMPARISONS[options.comparison](Training(), options.data, options.rounds, options.steps)
    log.finalize()
    sys.stdout.write("\n" + json.dumps(pairs) + "\n")


if __name__ == "__main__":
    main()
