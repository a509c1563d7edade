"""What device events cost a step: the same loop with and without them, by turns, in one process.

`python gpu_events_cost.py ROUNDS`: prints JSON: per kind of step, pairs of seconds per step (without, with).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ["DFTRACER_ENABLE"] = "1"
os.environ["DFTRACER_DISABLE_IO"] = "1"
os.environ["DFTRACER_LOG_FILE"] = tempfile.mkdtemp() + "/t"

import torch

from dftracer import _core
from dftracer.python import ai, dftracer
from dftracer.torch import device as _device_events

STEPS = 40


def loop(model: Any, optimizer: Any, x: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in ai.dataloader.fetch.iter(range(STEPS)):
        with ai.device.transfer:
            y = x.to("cuda", non_blocking=True)
        with ai.compute.forward:
            loss = model(y).float().square().mean()
        with ai.compute.backward:
            loss.backward()
        with ai.compute.step:
            optimizer.step()
            optimizer.zero_grad()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    log = dftracer.initialize_log(None, None, -1)
    out: dict[str, list[tuple[float, float]]] = {}
    for kind, (width, layers, rows) in {"device": (4096, 14, 4096), "host": (64, 52, 16)}.items():
        stack = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
        model = torch.nn.Sequential(*stack).cuda().to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        loop(model, optimizer, x)
        loop(model, optimizer, x)
        recorder = _device_events._recorder
        assert recorder is not None, "no recorder: is this a CUDA device?"
        pairs = []
        for i in range(rounds):
            seconds = {}
            for on in (False, True) if i % 2 else (True, False):
                _core.set_boundary_hook(recorder.boundary if on else None)
                seconds[on] = loop(model, optimizer, x)
                recorder.drain()
            pairs.append((seconds[False], seconds[True]))
            _core.set_boundary_hook(recorder.boundary)
        out[kind] = pairs
        del model, optimizer, x
    log.finalize()
    print(json.dumps(out))


if __name__ == "__main__":
    main()
