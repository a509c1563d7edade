"""The linked tables say the same as plain loops over the JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dftracer.link import link
from dftracer.link.graph import nesting
from link.naive import DEVICE, Naive


@pytest.fixture(scope="module", params=["gloo", "h200"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Naive, Path]:
    """The naive answers for rank 0 and the linked files."""
    out = tmp_path_factory.mktemp("linked")
    if request.param == "gloo":
        source: Path = request.getfixturevalue("recorded")
        files = ("torch_et_0.json", "kineto_trace_0.json")
    else:
        source = request.getfixturevalue("h200")
        files = ("torch_et_0_w0.json.gz", "kineto_trace_0_w0.json.gz")
    link(source, out, workers=1)
    return Naive(source / files[0], source / files[1]), out


def test_times_parents_and_exclusive_times(both: tuple[Naive, Path]) -> None:
    """Every joined node has its event's times, its parent by
    nesting, and what is left without inner nodes.
    """
    naive, out = both
    frame = pl.read_parquet(out / "linked_0.parquet").filter(
        pl.col("in_et") & pl.col("start_ns").is_not_null()
    )
    parent, exclusive = naive.parent_and_exclusive()
    rows = {r["node"]: r for r in frame.iter_rows(named=True)}
    assert set(rows) == set(naive.event)
    for number, event in naive.event.items():
        row = rows[number]
        assert (row["start_ns"], row["dur_ns"]) == (event["start"], event["end"] - event["start"])
        assert row["exclusive_ns"] + row["waiting_ns"] == exclusive[id(event)], row["name"]
        assert row["exclusive_ns"] >= 0
        up = parent[id(event)]
        if up is not None and id(up) in naive.node_of:
            assert row["parent"] == naive.node_of[id(up)], row["name"]


def _edges(out: Path, kind: str) -> set[tuple[int, int]]:
    frame = pl.read_parquet(out / "edges_0.parquet").filter(pl.col("type").cast(pl.String) == kind)
    return set(frame.select("source", "target").iter_rows())


def test_data_edges(both: tuple[Naive, Path]) -> None:
    """Makers and readers of tensors, in-place changes through views included."""
    naive, out = both
    assert _edges(out, "data") == naive.data_edges()


def test_forward_backward_edges(both: tuple[Naive, Path]) -> None:
    naive, out = both
    expected = naive.forward_backward()
    assert expected
    assert _edges(out, "forward_backward") == expected


def test_order_and_stream_edges(both: tuple[Naive, Path]) -> None:
    """On each thread and stream, everything follows on what began before it."""
    naive, out = both
    frame = pl.read_parquet(out / "linked_0.parquet").filter(pl.col("node").is_not_null())
    by_node = {r["node"]: r for r in frame.iter_rows(named=True)}
    for kind, lane in (("order", "tid"), ("stream", "stream")):
        edges = _edges(out, kind)
        for source, target in edges:
            a, b = by_node[source], by_node[target]
            assert a[lane] == b[lane]
            between = [
                r
                for r in by_node.values()
                if r[lane] == a[lane]
                and r["start_ns"] is not None
                and a["start_ns"] < r["start_ns"] < b["start_ns"]
            ]
            assert between == []
    device = [e for e in naive.events if e["cat"] in DEVICE]
    streams = {(e["pid"], e["tid"]) for e in device}
    assert len(_edges(out, "stream")) == len(device) - len(streams)


def test_launch_edges(both: tuple[Naive, Path]) -> None:
    """Every piece of device work follows on the call with its correlation."""
    naive, out = both
    frame = pl.read_parquet(out / "linked_0.parquet")
    calls = {
        r["correlation"]: r["node"]
        for r in frame.filter(pl.col("kind").cast(pl.String) == "runtime").iter_rows(named=True)
    }
    work = frame.filter(pl.col("device").is_not_null())
    assert work.height == len([e for e in naive.events if e["cat"] in DEVICE])
    expected = {(calls[r["correlation"]], r["node"]) for r in work.iter_rows(named=True)}
    assert _edges(out, "launch") == expected


@given(
    st.lists(st.tuples(st.integers(1, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40),
)
def test_nesting_of_random_spans(spans: list[tuple[int, int, int]]) -> None:
    """The innermost earlier span of the thread that has not ended is
    the parent; its time is taken from it once.
    """
    spans.sort(key=lambda s: (s[1], -s[2]))
    tid, start, dur = (np.array([s[i] for s in spans], dtype=np.int64) for i in range(3))
    parent, exclusive = nesting(tid, start, dur)
    for i, (thread, begin, length) in enumerate(spans):
        stack: list[int] = []
        for j in range(i):
            if spans[j][0] != thread:
                continue
            while stack and spans[stack[-1]][1] + spans[stack[-1]][2] <= spans[j][1]:
                stack.pop()
            stack.append(j)
        while stack and spans[stack[-1]][1] + spans[stack[-1]][2] <= begin:
            stack.pop()
        assert parent[i] == (stack[-1] if stack else -1)
        assert 0 <= exclusive[i] <= length
