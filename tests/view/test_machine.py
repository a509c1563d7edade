"""Tracks of the machine below the lanes: from the trace, on the time of the view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing.synthetic import Process
from support.view_tab import Tab

S = 1_000_000


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    """Two ranks of one host; rank 1 samples what they share."""
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in (0, 1):
        p = Process(10 + rank, rank=rank, world_size=2)
        for i in range(50):
            p.step(i + 1, i * 200_000, 50_000, 150_000)
            p.span("compute", "forward", i * 200_000 + 50_000, 150_000)
        for t in range(0, 10 * S + 1, S):
            p.counter("cpu", t, ran_us=int(0.5 * t), waited_us=int(0.25 * t), user_us=t, system_us=0)
            p.counter("memory", t, rss=(1 << 30) + 100 * t)
            if rank == 1:
                p.counter("host.cpu", t, user_us=t, system_us=t, cpus=4, runnable=3)
                p.counter("gpu.0", t, utilization=70, power_mw=300_000, throttle=0)
        p.write(folder)
    return folder


def test_the_tracks_of_a_trace(start: Callable[..., Any], sampled: Path) -> None:
    server = start(sampled).ready()
    for _ in range(2):  # read, then from the cache
        tracks = {t["title"]: t for t in server.json("machine", run=0)}
        assert list(tracks) == ["Main thread", "Resident memory", "CPUs", "GPU 0", "GPU 0 power"]
        ran, waited = tracks["Main thread"]["lines"]
        assert (set(ran["v"]), set(waited["v"])) == ({0.5}, {0.25})
        assert ran["t"][:2] == [0.5, 1.5]
        assert set(tracks["CPUs"]["lines"][0]["v"]) == {0.5}
        assert set(tracks["GPU 0 power"]["lines"][0]["v"]) == {300.0}
        server = start(sampled).ready()


def test_a_trace_without_counters_has_no_tracks(server: Any) -> None:
    assert server.ready().json("machine", run=0) == []


def test_tracks_follow_the_view(start: Callable[..., Any], browser: Any, sampled: Path) -> None:
    """Drawn on the page, and drawn again for another time; a pointer is told the values."""
    tab = Tab(browser, start(sampled).ready().url)
    tab.page.wait_for_selector("#machine .track canvas")
    assert tab.page.locator("#machine .track-name").all_inner_texts()[:2] == [
        "Main thread",
        "Resident memory",
    ]
    picture = "() => document.querySelectorAll('#machine .track canvas')[1].toDataURL()"
    before = tab.page.evaluate(picture)
    assert tab.page.evaluate("() => document.querySelector('#machine .track canvas').clientWidth") > 500
    tab.press("w")
    tab.press("d")
    assert tab.page.evaluate(picture) != before
    tab.page.locator("#machine .track canvas").first.hover()
    assert "on a CPU 50 %" in tab.page.locator("#tip").inner_text()
    tab.page.locator("#machine summary").click()
    assert not tab.page.locator("#machine .track canvas").first.is_visible()
    tab.close()
