"""Perfetto's own trace processor takes every event of the timeline as a slice on a named track."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dftracer.link import link
from support.perfetto import TraceProcessor, trace_processor

LOST = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def check_every_event(text: bytes, perfetto: TraceProcessor) -> list[dict[str, Any]]:
    """Nothing is dropped, folded together or nameless; returns the events."""
    events: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert perfetto.query(LOST) == []
    assert perfetto.count("select count(*) from slice") == len(spans)
    assert min(e["ts"] for e in events if "ts" in e) >= 0
    tracks = perfetto.count("select count(distinct track_id) from slice")
    assert tracks == len({(e["pid"], e["tid"]) for e in spans})
    assert max(max(e["pid"], e["tid"]) for e in spans) < 1 << 31
    nameless = "select count(*) from slice join thread_track t on track_id = t.id join thread using (utid)"
    assert perfetto.count(f"{nameless} where thread.name is null or thread.name = ''") == 0
    arrows = [e for e in events if e["ph"] in "tf"]
    assert perfetto.count("select count(*) from flow") == len(arrows)
    return events


def test_two_ranks(recorded: Path, tmp_path: Path) -> None:
    """Arrows go from each collective of one rank to the same of the other."""
    link(recorded, tmp_path)
    text = gzip.decompress((tmp_path / "timeline.json.gz").read_bytes())
    with trace_processor(text) as perfetto:
        check_every_event(text, perfetto)
        names = [r["name"] for r in perfetto.query("select name from process where name is not null")]
        assert any(n.startswith("rank 0") for n in names)
        assert any(n.startswith("rank 1") for n in names)
        ends = perfetto.query(
            "select a.name as a, b.name as b, pa.upid as p, pb.upid as q from flow"
            " join slice a on slice_out = a.id join slice b on slice_in = b.id"
            " join thread_track ta on a.track_id = ta.id join thread pa on ta.utid = pa.utid"
            " join thread_track tb on b.track_id = tb.id join thread pb on tb.utid = pb.utid"
        )
        assert ends
        assert all(e["a"] == e["b"] and e["p"] != e["q"] for e in ends)


@pytest.mark.parametrize("which", ["h200"])
def test_device(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Streams are tracks of their names, and every launch points at its kernel."""
    link(request.getfixturevalue(which), tmp_path)
    text = gzip.decompress((tmp_path / "timeline.json.gz").read_bytes())
    with trace_processor(text) as perfetto:
        check_every_event(text, perfetto)
        streams = perfetto.query("select name from thread where name glob 'stream *'")
        assert {s["name"] for s in streams} >= {"stream 7"}
        assert perfetto.count("select count(*) from flow") == 460
