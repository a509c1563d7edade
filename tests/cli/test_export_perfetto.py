"""`dftracer export --to perfetto`: Perfetto's own trace processor takes every event as a slice."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.commands import dftracer, json_of
from support.perfetto import trace_processor
from support.process import Run

PROGRAM = """
import asyncio, os, sys, time
from dftracer import _core
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)

@ai.data.preprocess
async def task(seconds):
    await asyncio.sleep(seconds)

async def crossing():
    first = asyncio.create_task(task(0.03))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(task(0.05))
    await asyncio.gather(first, second)

asyncio.run(crossing())
now = _core.time_ns()
log.log_event("long before the start", "user", now // 1000 - 60_000_000, 5)
lane = (1 << 24) + 7
_core.log_metadata("CM", f"lane.{lane}", "GPU 0 stream 7")
_core.log_event("cudaLaunchKernel", "PP", now, 5_000, {"correlation": 11})
_core.log_event("gemm", "PP", now + 50_000, 90_000, {"correlation": 11}, lane)
_core.log_event("far away", "user", now, 5_000, {}, (1 << 40) + 3)
_core.log_event("further away", "user", now + 1_000, 5_000, {}, (1 << 41) + 3)
_core.log_event("all_reduce", "comm", now + 200_000, 5_000, {"group": "0", "seq": 1, "bytes": 8})
if os.fork() == 0:
    with ai.data.item:
        pass
    os._exit(0)
os.wait()
log.finalize()
"""


def _rows(path: Path, perfetto_checks: Callable[[Any], None]) -> list[dict[str, Any]]:
    text = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    with trace_processor(text) as perfetto:
        perfetto_checks(perfetto)
    return events


def _export(traces: Path, out: Path) -> int:
    events: int = json_of("export", traces, "--to", "perfetto", "-f", "-o", out)["events"]
    return events


def test_every_event_is_a_slice(tmp_path: Path, program: Callable[..., Run]) -> None:
    """Crossing tasks, far lanes, times before the start and two ranks: nothing is lost."""
    for rank in "01":
        run = program(PROGRAM, env={"RANK": rank, "WORLD_SIZE": "2", "DFTRACER_COUNTER_MS": "5"})
    out = tmp_path / "trace.json"
    written = _export(run.trace_dir, out)
    spans = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    counters = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "C"]
    assert len([e for e in spans if e["cat"] != "dftracer"]) == len(run.trace.events) == 18
    assert written == len(spans) + len(counters)
    assert counters

    def check(perfetto: Any) -> None:
        lost = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert perfetto.query(lost) == []
        assert perfetto.count("select count(*) from slice") == len(spans)
        tracks = perfetto.count("select count(distinct track_id) from slice")
        assert tracks == len({(e["pid"], e["tid"]) for e in spans})
        names = {r["name"] for r in perfetto.query("select name from process where name is not null")}
        assert {n.rpartition(" pid")[0] for n in names} == {
            *("rank 0", "rank 1", "rank 0 loader worker 0", "rank 1 loader worker 0")
        }
        threads = [r["name"] for r in perfetto.query("select name from thread where name is not null")]
        assert threads.count("GPU 0 stream 7") == 2
        arrows = perfetto.query(
            "select a.name as a, b.name as b from flow"
            " join slice a on slice_out = a.id join slice b on slice_in = b.id order by 1"
        )
        pairs = [(r["a"], r["b"]) for r in arrows]
        assert pairs == [("all_reduce", "all_reduce")] + [("cudaLaunchKernel", "gemm")] * 2

    events = _rows(out, check)
    assert min(e["ts"] for e in events if "ts" in e) == 0
    assert max(max(e["pid"], e["tid"]) for e in events) < 1 << 31


def test_merged_file_keeps_processes_apart(tmp_path: Path, program: Callable[..., Run]) -> None:
    """A merged file gives the same tracks as the files it was made of."""
    run = program(PROGRAM, env={"RANK": "0", "WORLD_SIZE": "1"})
    merged = tmp_path / "merged.pfw.gz"
    assert dftracer("merge", run.trace_dir, "-o", merged).returncode == 0
    tracks = []
    for source in (run.trace_dir, merged):
        _export(source, tmp_path / "trace.json.gz")
        events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
        names = ("process_name", "thread_name")
        tracks.append(sorted(e["args"]["name"] for e in events if e["name"] in names))
    assert tracks[0] == tracks[1]
