"""The machine in the reports: lines on a terminal, plots on the page, and words for what is not known."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from dftracer.analyze import Analysis, analyze
from dftracer.report import print_report
from dftracer.report.html import page_data
from dftracer.testing.synthetic import Process

S = 1_000_000


def _job(folder: Path, counters: bool, **end: str) -> Analysis:
    """Ten seconds of training: the machine is busy, a GPU hot for the second half."""
    p = Process(10, rank=0, end=end)
    for i in range(100):
        p.step(i + 1, i * 100_000, 20_000, 80_000)
        p.span("compute", "forward", i * 100_000 + 20_000, 80_000)
    for t in range(0, 10 * S + 1, S) if counters else ():
        p.counter("cpu", t, user_us=t, system_us=0, ran_us=int(0.6 * t), waited_us=int(0.3 * t))
        p.counter("memory", t, rss=300 << 20, major_faults=0)
        p.counter("io", t, read_bytes=t, write_bytes=2 * t)
        p.counter("host.cpu", t, user_us=2 * t, system_us=0, cpus=2, runnable=9)
        p.counter("host.disk", t, read_bytes=5 * t, written_bytes=0, busy_us=0)
        hot = t > 5 * S
        p.counter("gpu.0", t, utilization=80, power_mw=500_000, throttle=0x40 if hot else 0, sm_mhz=1000)
    p.write(folder)
    return analyze(folder)


def _text(a: Analysis) -> str:
    out = io.StringIO()
    print_report(a, Console(file=out, width=140))
    return out.getvalue()


def test_lines_on_a_terminal(tmp_path: Path) -> None:
    text = _text(_job(tmp_path, True))
    assert "main thread  on a CPU 60 %, waited 30 % of the time for a CPU" in text
    assert "at most 300.0 MiB in a process, 9.5 MiB read from storage, 19.1 MiB written" in text
    assert "host node0  2 cores 100 % busy, 9 runnable; disk: read 4.8 MiB/s" in text
    assert "GPU 0  80 % busy, 500 W, 1000 MHz, throttled 45 % of the time" in text


def test_plots_on_the_page(tmp_path: Path) -> None:
    machine = page_data(_job(tmp_path, True))["machine"]
    plots = {p["title"]: p for p in machine["plots"]}
    assert list(plots) == ["Main thread", "Resident memory", "CPUs", "Disks", "GPU 0", "GPU 0 power"]
    ran, waited = plots["Main thread"]["lines"]
    assert ran["t"][0] == 0.5
    assert set(ran["v"]) == {0.6}
    assert set(waited["v"]) == {0.3}
    assert set(plots["CPUs"]["lines"][0]["v"]) == {1.0}
    busy, throttled = plots["GPU 0"]["lines"]
    assert set(busy["v"]) == {0.8}
    assert throttled["v"] == [0.0] * 6 + [1.0] * 5


def test_nothing_sampled_nothing_shown(tmp_path: Path) -> None:
    a = _job(tmp_path, False)
    assert page_data(a)["machine"] is None
    assert "Machine" not in _text(a)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    a = _job(tmp_path, False, counters_missing="schedstat pressure")
    output = "waiting for a CPU (/proc/self/schedstat), pressure (/proc/pressure)"
    assert f"not available here  {output}" in _text(a)
    assert ("not available here", output) in page_data(a)["machine"]["rows"]
