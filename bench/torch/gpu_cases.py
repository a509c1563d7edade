"""One training run with a known bottleneck: `python gpu_cases.py CASE STEPS TRACE_DIR [--profiler]`.

Cases: input (items sleep), launch (many small layers), device (large matrix products), checkpoint (the model
is saved every few steps). DFTRACER_ENABLE=1 traces it. Prints the program's own timers as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

from dftracer.python import ai, dftracer
from dftracer.python.torch import trace_handler

arguments = argparse.ArgumentParser()
arguments.add_argument("case", choices=("input", "launch", "device", "checkpoint"))
arguments.add_argument("steps", type=int)
arguments.add_argument("directory")
arguments.add_argument("--profiler", action="store_true")
options = arguments.parse_args()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# width, layers, rows, seconds an item sleeps
SHAPES: dict[str, tuple[int, int, int, float]] = {
    "input": (1024, 4, 16, 0.010),
    "launch": (64, 60, 16, 0.0),
    "device": (8192, 7, 8192, 0.0),
    "checkpoint": (8192, 4, 512, 0.0),
}
if DEVICE == "cpu":  # to try the program out
    SHAPES = {name: (32, 2, 16, sleep) for name, (_, _, _, sleep) in SHAPES.items()}
WIDTH, LAYERS, ROWS, SLEEP = SHAPES[options.case]


class Items(Dataset[Any]):  # type: ignore[misc] # torch is Any
    def __len__(self) -> int:
        return int(options.steps * ROWS)

    @ai.data.item
    def __getitem__(self, i: int) -> torch.Tensor:
        time.sleep(SLEEP)
        return torch.ones(WIDTH)


class Ready:
    """Batches that are on the device already."""

    def __iter__(self) -> Any:
        x = torch.randn(ROWS, WIDTH, device=DEVICE, dtype=torch.bfloat16)
        return iter([x] * options.steps)


def main() -> None:
    log = dftracer.initialize_log(f"{options.directory}/run.pfw", options.directory, -1)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader: Any = Ready()
    if options.case == "input":
        loader = DataLoader(Items(), batch_size=ROWS, num_workers=2, pin_memory=DEVICE == "cuda")
    spent = {"wait": 0.0, "checkpoint": 0.0}
    prof: Any = None
    if options.profiler:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
        prof = profile(
            activities=activities,
            schedule=schedule(wait=options.steps // 2, warmup=2, active=10, repeat=1),
            on_trace_ready=trace_handler,
        )
        prof.start()
    began = asked = time.perf_counter()
    for i, batch in enumerate(ai.dataloader.fetch.iter(loader)):
        spent["wait"] += time.perf_counter() - asked
        ai.update(step=i, epoch=0)
        with ai.device.transfer:
            x = batch.to(DEVICE, torch.bfloat16, non_blocking=True)
        with ai.compute.forward:
            loss = model(x).float().square().mean()
        with ai.compute.backward:
            loss.backward()
        with ai.compute.step:
            optimizer.step()
            optimizer.zero_grad()
        if options.case == "checkpoint" and i % 5 == 4:
            start = time.perf_counter()
            with ai.checkpoint.capture:
                torch.save(model.state_dict(), f"{options.directory}/model.pt")
            spent["checkpoint"] += time.perf_counter() - start
        if prof is not None:
            prof.step()
        asked = time.perf_counter()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    spent["all"] = time.perf_counter() - began
    if prof is not None:
        prof.stop()
    log.finalize()
    Path(f"{options.directory}/model.pt").unlink(missing_ok=True)
    print(json.dumps(spent))


if __name__ == "__main__":
    main()
