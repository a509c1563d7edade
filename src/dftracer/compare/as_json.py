"""A comparison for programs; docs/guide-compare.md describes every key."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer.compare.comparison import FALSE_ALARMS, Comparison, RunPart
from dftracer.compare.sentences import headline, letters, notes
from dftracer.compare.side import Side
from dftracer.compare.statistics import Change


def _change(c: Change) -> dict[str, Any]:
    ends = c.interval if c.interval is not None else (None, None)
    return {
        "a_s": round(c.a, 9),
        "b_s": round(c.b, 9),
        "change": _short(c.relative),
        "interval": [_short(e) for e in ends],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6) + 0.0  # no -0.0


def _seconds(c: Change, step_s: float) -> dict[str, Any]:
    """The change in seconds, for when a ratio says nothing."""
    ends = c.interval_s if c.interval_s is not None else (None, None)
    return {
        "seconds": round(c.difference, 9),
        "interval_s": [None if e is None else round(e, 9) for e in ends],
        "of_step": round(c.difference / step_s, 6) if step_s > 0 else None,
    }


def _side(letter: str, side: Side) -> dict[str, Any]:
    keys = ("id", "start", "command", "host", "version")
    return {
        "name": letter,
        "path": side.name,
        **{k: side.run.get(k) for k in keys},
        "steady_steps": side.steps,
        "ranks": side.ranks,
        "runs": len(side.members),
        "verdict": side.told.get("verdict"),
    }


def _one(c: Comparison, name: str) -> dict[str, Any]:
    stages = {s: _change(x) for s, x in c.stages.items()}
    for stage in c.unseen:
        sides = [side.stage(stage) for side in (c.a, c.b)]
        a, b = (None if x is None or not x.size else round(float(np.median(x)), 9) for x in sides)
        stages[stage] = {"a_s": a, "b_s": b, "change": None, "interval": [None, None]}
    return {
        "answer": c.answer,
        "difference": c.difference,
        "changed": c.changed,
        "stages": stages,
        "step": _change(c.step),
        "verdict": headline(c, name),
        "enough_steps": c.enough,
        "changed_in_bursts": c.changed_in_bursts,
        "bursts": {s: _change(x) for s, x in c.bursts.items()},
        "step_mean": _change(c.step_mean),
        "differences": {s: _seconds(x, c.step.a) for s, x in c.stages.items()},
        "throughput": {f.id: f.to_json() for f in c.throughput},
        "device": {
            **({"busy_per_step": _change(c.device_busy)} if c.device_busy is not None else {}),
            **{f.id: f.to_json() for f in c.device},
        },
        "io": {f.id: f.to_json() for f in c.io},
        "findings": c.findings,
        "whole_run": None if c.whole is None else {**_part(c.whole), "changed": c.changed_parts},
        "parts": {p: _part(x) for p, x in c.parts.items()},
        "steps_per_block": c.block,
        "steps_needed": c.steps_needed() if c.answer == "cannot_tell" else None,
        "notes": notes(c),
    }


def _part(x: RunPart) -> dict[str, Any]:
    return {"a_s": round(x.a, 9), "b_s": round(x.b, 9), "change": _short(x.b / x.a - 1) if x.a else None}


def to_json(comparisons: list[Comparison]) -> dict[str, Any]:
    """The first two runs at the top level; `others` has each further run compared with the first."""
    names = letters(len(comparisons) + 1)
    sides = [comparisons[0].a, *(c.b for c in comparisons)]
    out = {
        **_one(comparisons[0], names[1]),
        "confidence": 1 - FALSE_ALARMS,
        "runs": [_side(n, s) for n, s in zip(names, sides, strict=True)],
    }
    if len(comparisons) > 1:
        out["others"] = [{"name": n, **_one(c, n)} for n, c in zip(names[2:], comparisons[1:], strict=True)]
    return out
