"""A second, naive implementation (plain Python over the JSON lines, one microsecond at a time) must agree."""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dftracer.analyze import STAGES, analyze, call_tree
from dftracer.load import Trace
from dftracer.testing.synthetic import Process

FIXED = {
    ("dataloader", "fetch.iter"): "fetch_wait",
    ("data", "item"): "preprocess",
    ("data", "preprocess"): "preprocess",
    ("data", "preprocess.collate"): "collate",
    ("device", "transfer"): "transfer",
    ("compute", "forward"): "forward",
    ("compute", "backward"): "backward",
    ("compute", "step"): "optimizer",
    ("comm", "all_reduce"): "comm",
    ("checkpoint", "capture"): "checkpoint",
}
INNER = [
    *[k for k in FIXED if k[0] != "dataloader"],
    ("POSIX", "read"),
    ("POSIX", "write"),
    ("user", "f"),
    ("pipeline", "test"),
]


def _stage(cat: str, name: str, around: str) -> str:
    if (cat, name) in FIXED:
        return FIXED[cat, name]
    if name == "fetch.block":
        return "unexplained"
    if cat == "pipeline":
        return around
    if (cat, name) == ("POSIX", "read"):
        return "read" if around in ("unexplained", "other", "fetch_wait", "preprocess", "collate") else around
    return "other" if around == "unexplained" else around


def _records(file: Path) -> list[dict[str, Any]]:
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return [json.loads(line) for line in lines if line not in "[]"]


def _naive_ledger(file: Path) -> list[dict[str, int]]:
    events = [e for e in _records(file) if e["ph"] == "X" and e["cat"] != "dftracer"]
    by_id = {e["id"]: e for e in events}

    whole_step = _step_is_whole(events)

    def stage(e: dict[str, Any]) -> str:
        up = e["args"]["p_idx"]
        if e["name"] == "step" and whole_step:
            return "forward"
        return _stage(e["cat"], e["name"], stage(by_id[up]) if up in by_id else "unexplained")

    base = min(e["ts"] for e in events)
    paint = ["unexplained"] * (max(e["ts"] + e["dur"] for e in events) - base)
    for e in sorted(events, key=lambda e: e["args"]["level"]):
        for t in range(e["ts"] - base, e["ts"] - base + e["dur"]):
            paint[t] = stage(e)
    waits = sorted((e for e in events if e["name"] == "fetch.iter"), key=lambda e: e["ts"])
    bodies = sorted((e for e in events if e["name"] == "fetch.block"), key=lambda e: e["ts"])
    out = []
    for w, b in zip(waits, bodies, strict=True):
        row = dict.fromkeys(STAGES, 0)
        evaluated = _evaluated(events, w["ts"], b["ts"] + b["dur"])
        for t in range(w["ts"], b["ts"] + b["dur"]):
            if t not in evaluated:
                row[paint[t - base]] += 1
        out.append(row)
    return out


def _step_is_whole(events: list[dict[str, Any]]) -> bool:
    """Whether `compute.step` stands for all compute: nothing else is named, and it fills the bodies."""
    steps = [e for e in events if (e["cat"], e["name"]) == ("compute", "step")]
    parts = [e["ts"] for e in events if e["name"] in ("forward", "backward")]
    if not parts:  # then by how much of the bodies they fill
        bodies = {t for e in events if e["name"] == "fetch.block" for t in range(e["ts"], e["ts"] + e["dur"])}
        inside = {t for e in steps for t in range(e["ts"], e["ts"] + e["dur"])} & bodies
        return 2 * len(inside) > len(bodies)
    return False


def _evaluated(events: list[dict[str, Any]], start: int, end: int) -> set[int]:
    """The instants of a step that are evaluation: said to be, or forward passes after its last update."""
    out: set[int] = set()
    for e in events:
        if (e["cat"], e["name"]) == ("pipeline", "test"):
            out.update(range(e["ts"], e["ts"] + e["dur"]))
    learn = [e for e in events if (e["cat"], e["name"]) in (("compute", "backward"), ("compute", "step"))]
    after = max((e["ts"] + e["dur"] for e in learn if e["ts"] + e["dur"] <= end), default=end)
    if not start < after < end or any(after <= e["ts"] < end for e in learn):
        return out
    around = [
        e
        for e in events
        if e["name"] in ("forward", "fetch.iter", "item", "transfer") and after <= e["ts"] < end
    ]
    if any(e["name"] == "forward" for e in around):
        last = min(end, max(e["ts"] + e["dur"] for e in around))
        out.update(range(min(e["ts"] for e in around), last))
    return out


@st.composite
def _tree(draw: st.DrawFn, start: int, length: int, depth: int) -> list[tuple[str, str, int, int]]:
    """Spans that lie inside [start, start+length), none across another."""
    out: list[tuple[str, str, int, int]] = []
    at = start
    for _ in range(draw(st.integers(0, 3))):
        gap = draw(st.integers(0, 5))
        room = start + length - at - gap
        if room < 1:
            break
        dur = draw(st.integers(1, min(room, 40)))
        cat, name = draw(st.sampled_from(INNER))
        out.append((cat, name, at + gap, dur))
        if depth and dur > 2:
            out += draw(_tree(at + gap + 1, dur - 2, depth - 1))
        at += gap + dur
    return out


@st.composite
def _process(draw: st.DrawFn) -> Process:
    p = Process(draw(st.integers(2, 1 << 22)), rank=0)
    t = draw(st.integers(0, 50))
    for i in range(draw(st.integers(1, 5))):
        wait, body = draw(st.integers(1, 60)), draw(st.integers(1, 120))
        for cat, name, s, d in [*draw(_tree(t, wait, 2)), *draw(_tree(t + wait, body, 2))]:
            args: dict[str, Any] = {}
            if cat == "POSIX":
                args = {"fhash": f"/data/{s % 3}", "ret": s % 5000, "count": 4096}
            p.span(cat, name, s, d, **args)
        t = p.step(i + 1, t, wait, body) + draw(st.integers(0, 10))
    # `step` adds its spans after those inside; equal times nest in the order of recording, so put parents
    # first.
    p.spans.sort(key=lambda s: s.cat != "dataloader")
    return p


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_process())
def test_ledger_names_and_files_agree_with_the_naive_ones(p: Process) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = p.write(Path(folder), member_text=2000)
        a = analyze(file)
        naive = _naive_ledger(file)
        assert [{s: round(v * 1e6) for s, v in row["stages"].items()} for row in a.ledger["steps"]] == naive
        _check_names(a.name_table, _records(file))
        _check_files(a.file_table, _records(file))


def _check_names(table: Any, records: list[dict[str, Any]]) -> None:
    durations: dict[tuple[str, str], list[int]] = defaultdict(list)
    own: dict[tuple[str, str], int] = defaultdict(int)
    events = [r for r in records if r["ph"] == "X"]
    children: dict[int, int] = defaultdict(int)
    for e in events:
        children[e["args"]["p_idx"]] += e["dur"]
    for e in events:
        durations[e["cat"], e["name"]].append(e["dur"])
        own[e["cat"], e["name"]] += e["dur"] - children[e["id"]]
    assert table.height == len(durations)
    for row in table.iter_rows(named=True):
        values = sorted(durations[row["cat"], row["name"]])
        n = len(values)
        assert row["count"] == n
        assert round(row["total_s"] * 1e6) == sum(values)
        assert round(row["self_s"] * 1e6) == own[row["cat"], row["name"]]
        assert [row[k] for k in ("p50_us", "p90_us", "p99_us", "min_us", "max_us")] == [
            *(values[math.ceil(q * n) - 1] for q in (0.5, 0.9, 0.99)),
            values[0],
            values[-1],
        ]


def _check_files(table: Any, records: list[dict[str, Any]]) -> None:
    paths = {r["args"]["value"]: r["args"]["name"] for r in records if r["name"] == "FH"}
    truth: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for r in records:
        if r["ph"] == "X" and r["cat"] == "POSIX":
            entry = truth[paths[r["args"]["fhash"]]]
            entry[0] += 1
            entry[1] += r["args"]["ret"] if r["name"] == "read" else 0
            entry[2] += r["dur"]
    got = (
        {}
        if table is None
        else {
            r["path"]: [r["ops"], r["read_bytes"], round(r["time_s"] * 1e6)]
            for r in table.iter_rows(named=True)
        }
    )
    assert got == dict(truth)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_process())
def test_call_tree_agrees_with_the_naive_one(p: Process) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = p.write(Path(folder))
        events = {r["id"]: r for r in _records(file) if r["ph"] == "X"}
        truth: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for e in events.values():
            chain, at = [e["name"]], e
            while at["args"]["p_idx"] in events:
                at = events[at["args"]["p_idx"]]
                chain.append(at["name"])
            entry = truth["/".join(reversed(chain))]
            entry[0] += 1
            entry[1] += e["dur"]
        tree = call_tree(Trace(file))
        # Instants of no length (`start`, `end`) may sit on any edge, so only their count is compared.
        got = {
            r["path"]: [r["count"], round(r["total_s"] * 1e6)]
            for r in tree.iter_rows(named=True)
            if r["total_s"]
        }
        assert got == {k: v for k, v in truth.items() if v[1]}
        assert tree["self_s"].sum() == pytest.approx(
            sum(e["dur"] for e in events.values() if e["args"]["p_idx"] == -1) / 1e6
        )
