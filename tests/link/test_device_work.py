"""Device work on top of a real trace of the host: graphs, several streams, waits, clocks that disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dftracer.link import link
from link.test_directory import edit


def _with_device(profile: dict[str, Any]) -> None:
    """Calls in gaps behind the last operators of the main thread, and what they start on two streams."""
    ops = [e for e in profile["traceEvents"] if e.get("cat") == "cpu_op"]
    pid = ops[0]["pid"]
    end = max(e["ts"] + e["dur"] for e in profile["traceEvents"] if e["ph"] == "X" and e.get("pid") == pid)
    at = end + 10
    tid = 99_999

    def call(name: str, start: float, dur: float, correlation: int) -> dict[str, Any]:
        return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": pid, "tid": tid, "ts": at + start,
                "dur": dur, "args": {"correlation": correlation}}  # fmt: skip

    def work(cat: str, name: str, start: float, dur: float, stream: int, correlation: int) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": at + start, "dur": dur,
                "args": {"device": 0, "stream": stream, "correlation": correlation}}  # fmt: skip

    wait = {
        "device": 0,
        "stream": 20,
        "correlation": 5,
        "cuda_sync_kind": "Stream Wait Event",
        "wait_on_stream": 7,
    }
    done = {"device": 0, "stream": 20, "correlation": 8, "cuda_sync_kind": "Stream Sync"}
    profile["traceEvents"] += [
        {"ph": "X", "cat": "user_annotation", "name": "device part", "pid": pid, "tid": tid, "ts": at,
         "dur": 200.0, "args": {}},
        call("cudaGraphLaunch", 1, 5, 4),
        # One graph, three pieces of work; the first by the device's clock a bit before its launch.
        work("kernel", "graph_a", 0.5, 10, 7, 4),
        work("gpu_memcpy", "Memcpy DtoD", 12, 3, 7, 4),
        work("kernel", "graph_b", 20, 10, 7, 4),
        call("cudaStreamWaitEvent", 8, 1, 5),
        {"ph": "X", "cat": "cuda_sync", "name": "Wait", "pid": 0, "tid": 20, "ts": at + 8, "dur": 1,
         "args": wait},
        call("cudaLaunchKernelExC", 10, 2, 6),
        work("kernel", "waits", 31, 9, 20, 6),
        call("cudaStreamSynchronize", 15, 30, 8),
        {"ph": "X", "cat": "cuda_sync", "name": "Stream Sync", "pid": 0, "tid": 20, "ts": at + 15, "dur": 30,
         "args": done},
        call("cudaMemsetAsync", 50, 1, 9),
        work("gpu_memset", "Memset (Device)", 52, 1, 7, 9),
    ]  # fmt: skip


@pytest.fixture
def linked(ddp: Path, tmp_path: Path) -> Path:
    edit(ddp / "kineto_trace_0.json", _with_device)
    report = link(ddp, tmp_path / "l", workers=1)
    assert report.warnings == []
    return tmp_path / "l"


def _edges(folder: Path, kind: str) -> set[tuple[str, str]]:
    nodes = pl.read_parquet(folder / "linked_0.parquet").filter(pl.col("node").is_not_null())
    names = dict(zip(nodes["node"], nodes["name"].cast(pl.String), strict=True))
    edges = pl.read_parquet(folder / "edges_0.parquet").filter(pl.col("type").cast(pl.String) == kind)
    return {(names[s], names[t]) for s, t in edges.select("source", "target").iter_rows()}


def test_a_graph_launches_all_its_work(linked: Path) -> None:
    """Any call that shares the correlation is the launch, whatever its name; the clocks need not agree."""
    assert _edges(linked, "launch") == {
        ("cudaGraphLaunch", "graph_a"),
        ("cudaGraphLaunch", "Memcpy DtoD"),
        ("cudaGraphLaunch", "graph_b"),
        ("cudaLaunchKernelExC", "waits"),
        ("cudaMemsetAsync", "Memset (Device)"),
    }


def test_each_stream_is_in_order(linked: Path) -> None:
    assert _edges(linked, "stream") == {
        ("graph_a", "Memcpy DtoD"),
        ("Memcpy DtoD", "graph_b"),
        ("graph_b", "Memset (Device)"),
    }


def test_waits_of_streams_and_of_the_host(linked: Path) -> None:
    """The waiting stream after the recorded one; the host after the stream that it waited for only."""
    assert _edges(linked, "sync") == {("graph_b", "waits"), ("waits", "cudaMemsetAsync")}


def test_kernels_are_below_what_launched_them(linked: Path) -> None:
    nodes = pl.read_parquet(linked / "linked_0.parquet").filter(pl.col("node").is_not_null())
    names = dict(zip(nodes["node"], nodes["name"].cast(pl.String), strict=True))
    work = nodes.filter(pl.col("device").is_not_null())
    assert {names[p] for p in work["parent"]} == {"device part"}
    assert work["exclusive_ns"].to_list() == work["dur_ns"].to_list()
