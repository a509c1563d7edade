"""Counters of the process beside its events."""

from __future__ import annotations

from collections.abc import Callable

from support.process import Run


def test_counters_are_off_by_default(traced: Callable[..., Run]) -> None:
    """No `C` record without the setting."""
    run = traced("with ai.compute.forward: pass")
    assert [r for f in run.trace.files for r in f.records if r.ph == "C"] == []


def test_counters_at_an_interval(traced: Callable[..., Run]) -> None:
    """Memory, CPU and bytes; forked children have their own."""
    run = traced(
        """
        import os, time
        with ai.compute.forward:
            block = b"x" * 50_000_000; time.sleep(0.2)
            if os.fork() == 0:
                with ai.data.item: time.sleep(0.1)
                os._exit(0)
            os.wait()
        log.finalize()
        """,
        env={"DFTRACER_COUNTER_MS": "10"},
    )
    files = run.trace.files
    assert len(files) == 2
    for file in files:
        counters = [r for r in file.records if r.ph == "C"]
        assert {r.name for r in counters} >= {"memory", "cpu", "io"}
        assert all(r.cat == "counter" for r in counters)
    rss = [r.raw["args"]["rss"] for f in files for r in f.records if r.ph == "C" and r.name == "memory"]
    assert len(rss) >= 4
    assert max(rss) > 50_000_000
