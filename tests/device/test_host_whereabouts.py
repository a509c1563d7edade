"""Where the host was while the device waited for it: functions, I/O with the file; in every report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from device.test_known_answers import MS, Gpu, one_percent, steps
from dftracer.analyze import analyze
from dftracer.analyze.device.summary import device_document
from dftracer.testing.synthetic import Process
from support.commands import dftracer


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps of 20 ms, 19 of them in forward; the device works in the last 2 ms of each.

    Before, the host is 10 ms in a function of the program, 4 ms of it writing a file, and 6 ms in one that
    only the profiler saw; another thread reads a file meanwhile, and 2 ms have no name.
    """
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 10, 50, ("compute", "forward", 19 * MS), ("compute", "backward", MS)):
        p.span("app", "write_notes", body, 10 * MS)
        p.span("POSIX", "write", body + 3 * MS, 4 * MS, fhash="/data/notes.txt", ret=4096)
        p.span("POSIX", "read", body, 9 * MS, tid=77, fhash="/data/elsewhere.bin", ret=4096)
        p.span(
            "PP", "train.py(12): augment", body + 10 * MS, 6 * MS, type="python_function", dur_ns=6_000_000
        )
        gpu.work(body + 18 * MS, 2 * MS, body + 18 * MS - 5)
    gpu.window(0, 20 * MS + 50, 10)
    directory = tmp_path_factory.mktemp("host")
    p.write(directory)
    return directory


def rank_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = device_document(analyze(path).job)["ranks"]["0"]
    return found


def test_functions_and_io_by_name(trace: Path) -> None:
    rank = rank_of(trace)
    assert rank["idle"]["host"] == one_percent(10 * 17.995e-3)
    assert rank["host_phases"]["forward"] == one_percent(0.18)
    functions = rank["host_functions"]
    assert functions["write_notes"] == one_percent(0.1)
    assert functions["train.py(12): augment"] == one_percent(0.06)
    assert list(functions)[:2] == ["write_notes", "train.py(12): augment"]
    assert rank["host_io"] == {"write /data/notes.txt": one_percent(0.04)}


def test_a_function_inside_another_counts_once(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    gpu = Gpu(p)
    for body in steps(p, 10, 50, ("compute", "forward", 20 * MS)):
        p.span("app", "outer", body, 18 * MS)
        p.span("app", "inner", body + 2 * MS, 6 * MS)
        gpu.work(body + 18 * MS, 2 * MS, body + 18 * MS - 5)
    gpu.window(0, 20 * MS + 50, 10)
    p.write(tmp_path)
    functions = rank_of(tmp_path)["host_functions"]
    assert functions["outer"] == one_percent(0.12)
    assert functions["inner"] == one_percent(0.06)


def test_the_reports_say_it(trace: Path, tmp_path: Path) -> None:
    def report(*options: str) -> str:
        done = dftracer("report", *options, trace)
        assert done.returncode == 0, done.stderr
        return done.stdout

    output = "write_notes 100 ms, train.py(12): augment 60 ms"
    files = "I/O: write /data/notes.txt 40 ms"
    document = json.loads(report("--json"))
    assert document["bound"]["id"] == "host"
    verdict, why, _ = document["head"]
    assert "most of it in forward" in verdict
    assert output in why
    assert files in why
    terminal = " ".join(report().split())
    assert terminal.count(output) >= 1
    assert files in terminal
    page = tmp_path / "report.html"
    report("-o", str(page))
    assert files in page.read_text()
