"""One file of all ranks whose lanes never overlap."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.link import link
from dftracer.link.timeline import _lanes


def read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as f:
        value: dict[str, Any] = json.load(f)
    return value


def crossings(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of spans of one lane of which neither holds the other."""
    lanes = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            start = round(e["ts"] * 1000)
            lanes[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000), e["name"]))
    found = []
    for spans in lanes.values():
        spans.sort(key=lambda s: (s[0], -s[1]))
        stack: list[tuple[int, int, str]] = []
        for s in spans:
            while stack and stack[-1][1] <= s[0]:
                stack.pop()
            if stack and s[1] > stack[-1][1]:
                found.append((stack[-1][2], s[2]))
            stack.append(s)
    return found


@pytest.mark.parametrize("which", ["recorded", "h200"])
def test_lanes_do_not_overlap(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    link(request.getfixturevalue(which), tmp_path)
    result = read(tmp_path / "timeline.json.gz")
    events = result["traceEvents"]
    assert crossings(events) == []
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= named
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(processes) == len(set(processes))
    if which == "recorded":
        assert [p for p in processes if p.startswith("rank 1")]
        assert any(e.get("cat") == "compute" for e in events)
    else:
        assert "rank 0 GPU 0" in processes
        flows = [e["id"] for e in events if e["ph"] == "s"]
        assert len(flows) == len(set(flows)) == 460
    assert result["otherData"]["clocks"]["0"]["method"] == "reference"
    assert min(e["ts"] for e in events if e["ph"] == "X") <= 1e6


def test_spans_that_cross_get_lanes_of_their_own() -> None:
    start = np.array([0, 5, 6, 20], dtype=np.int64)
    dur = np.array([10, 10, 2, 5], dtype=np.int64)
    lanes = _lanes(np.full(4, 7, dtype=np.int64), start, dur)
    events = [
        {"ph": "X", "pid": 0, "tid": int(t), "ts": s / 1000, "dur": d / 1000, "name": str(i)}
        for i, (t, s, d) in enumerate(zip(lanes, start, dur, strict=True))
    ]
    assert crossings(events) == []
    assert lanes[0] == lanes[3] == 7
    assert lanes[1] != 7
