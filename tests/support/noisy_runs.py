"""Step times as machines make them: slow steps in a row, heavy tails, drift. Their truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.compare import Side, side_of
from dftracer.report.contents import SCHEMA

STAGES_MS = {
    "fetch_wait": 5.0,
    "read": 3.0,
    "preprocess": 8.0,
    "forward": 9.0,
    "backward": 16.0,
    "optimizer": 4.0,
}
# A real program with a known truth: what it sleeps. Its argument makes preprocessing longer.
PROGRAM = """
import sys
import time

from dftracer.python import ai

SLOWER = float(sys.argv[1])


def batches():
    for i in range(50):
        time.sleep(0.005)
        yield i


for batch in ai.dataloader.fetch.iter(batches()):
    with ai.data.preprocess:
        time.sleep(0.030 * SLOWER)
    with ai.compute.forward:
        time.sleep(0.020)
    with ai.compute.backward:
        time.sleep(0.025)
"""
KINDS = ("independent", "in_a_row", "drifting", "all_at_once")


def _in_a_row(r: np.random.Generator, n: int, alike: float) -> np.ndarray:
    out = np.empty(n)
    noise = r.normal(size=n) * np.sqrt(1 - alike**2)
    out[0] = r.normal()
    for i in range(1, n):
        out[i] = alike * out[i - 1] + noise[i]
    return out


def noisy_times(
    seed: int, n: int, kind: str, slower: dict[str, float] | None = None
) -> dict[str, np.ndarray]:
    """Seconds per step of each stage, 5 % noise and one step in thirty much longer."""
    r = np.random.default_rng(seed)
    shared = _in_a_row(r, n, 0.7) if kind == "all_at_once" else np.zeros(n)
    out = {}
    for stage, ms in STAGES_MS.items():
        z = _in_a_row(r, n, {"in_a_row": 0.6, "drifting": 0.3}.get(kind, 0.0)) * 0.05 + shared * 0.03
        if kind == "drifting":
            z += r.normal() * 0.03 * np.linspace(0, 1, n)
        times = ms / 1e3 * np.exp(z)
        tail = r.random(n) < 1 / 30
        times[tail] *= 1 + r.pareto(1.5, int(tail.sum()))
        out[stage] = times * (slower or {}).get(stage, 1.0)
    return out


def report_of(times: dict[str, np.ndarray], **more: Any) -> dict[str, Any]:
    """The part of a report that is compared."""
    us = {k: np.round(1e6 * v).astype(int) for k, v in times.items()}
    wall = np.sum([*us.values()], axis=0)
    n = len(wall)
    return {
        "schema": SCHEMA,
        "run": {"id": "made-up"},
        "findings": [],
        "steady_steps": {
            "ranks": 1,
            "steps": n,
            "all_steps": n,
            "index": list(range(n)),
            "wall_us": wall.tolist(),
            "stages_us": {k: v.tolist() for k, v in us.items()},
            "not_seen": [],
        },
        **more,
    }


def noisy_run(
    seed: int, n: int, kind: str, slower: dict[str, float] | None = None, name: str = "run"
) -> Side:
    return side_of(name, report_of(noisy_times(seed, n, kind, slower)))
