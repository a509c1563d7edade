"""`dftracer clean` shows what is left, deletes it only if told to, and never a trace that was not named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dftracer import _core
from dftracer.testing.synthetic import Process
from support.process import clean_environment

_DAY = 86400


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with traces, a cache, an unfinished output, and a temporary folder of its own."""
    traces = tmp_path / "traces" / "one"
    traces.mkdir(parents=True)
    process = Process(7)
    process.span("compute", "forward", 10, 20)
    process.write(traces, "a")
    (traces / ".dftracer-cache").mkdir()
    (traces / ".dftracer-cache" / "a.parquet").write_bytes(b"x" * 100)
    part = traces / ".dftracer-0123456789abcdef.part"
    part.write_bytes(b"y" * 50)
    os.utime(part, (1, 1))
    for name in ("tmp", "cache/dftracer"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cache" / "dftracer" / "old.parquet").write_bytes(b"z" * 10)
    return tmp_path


def _clean(place: Path, *words: str, code: int = 0, verb: str = "clean") -> str:
    env = clean_environment(XDG_CACHE_HOME=str(place / "cache"), TMPDIR=str(place / "tmp"))
    done = subprocess.run(
        [sys.executable, "-m", "dftracer", verb, *words],
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def _files(place: Path) -> set[str]:
    return {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}


def test_it_shows_first_and_deletes_only_if_told_to(place: Path) -> None:
    before = _files(place)
    shown = _clean(place)
    assert "traces/one/.dftracer-cache" in shown
    assert ".dftracer-0123456789abcdef.part" in shown
    assert _files(place) == before
    rows: list[dict[str, Any]] = json.loads(_clean(place, "traces", "--json"))
    assert {(r["kind"], r["bytes"], r["deleted"]) for r in rows} == {
        ("cache", 100, False),
        ("cache", 10, False),
        ("temporary", 50, False),
    }
    assert _files(place) == before
    result = _clean(place, "traces", "--yes")
    assert "deleted: 2 caches (110 B), 1 temporary file (50 B)" in result
    assert _files(place) == {"traces/one/a.pfw.gz"}
    assert "nothing to delete" in _clean(place)


def test_traces_are_deleted_only_if_they_are_named(place: Path) -> None:
    (place / "traces" / "one" / "ended-x.json").write_text("{}")
    (place / "traces" / "one" / "notes.txt").write_text("mine")
    (place / "traces" / "two").mkdir()
    Process(8).write(place / "traces" / "two", "b")
    _clean(place, "--traces", code=2)
    _clean(place, "--traces", "traces/one")
    assert "traces/one/a.pfw.gz" in _files(place)
    _clean(place, "--traces", "traces/one", "--yes")
    assert _files(place) == {"traces/one/notes.txt", "traces/two/b.pfw.gz"}
    _clean(place, "traces/three", code=2)


def test_temporary_files_that_someone_may_use_stay(place: Path) -> None:
    old, used, fresh = (place / "tmp" / f"dftracer-run-{name}" for name in ("old", "used", "fresh"))
    for each in (old, used, fresh):
        each.write_text("x")
    view = place / "tmp" / "dftracer-view-x"
    view.mkdir()
    (view / "part").write_text("x")
    for each in (old, used, view / "part", view):
        os.utime(each, (os.stat(place).st_mtime - 2 * _DAY,) * 2)
    # As a process that `dftracer run` has started has it in its environment.
    program = [sys.executable, "-c", "input()"]
    with subprocess.Popen(
        program, env={**os.environ, "DFTRACER_STEMS_FILE": str(used)}, stdin=subprocess.PIPE
    ) as process:
        _clean(place, "traces", "--yes")
        process.communicate(b"\n")
    assert (old.exists(), used.exists(), fresh.exists(), view.exists()) == (False, True, True, False)


def test_the_ring_of_a_killed_process_completes_its_trace_or_goes(place: Path) -> None:
    program = (
        "import glob, os, signal, sys, time\n"
        "from dftracer.python import ai, dftracer\n"
        "dftracer.initialize_log()\n"
        "with ai.compute.forward: pass\n"
        "while not any(os.path.getsize(f) for f in glob.glob(sys.argv[1] + '/*.pfw.gz')): time.sleep(0.05)\n"
        "with ai.compute.forward: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    def killed(folder: str) -> None:
        env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(place / folder / "t"))
        words = [sys.executable, "-c", program, str(place / folder)]
        done = subprocess.run(words, env=env, timeout=240, check=False)
        assert done.returncode == -signal.SIGKILL

    killed("traces/kept")
    killed("traces/gone")
    for file in (place / "traces" / "gone").iterdir():
        file.unlink()
    (place / "traces" / "gone").rmdir()

    def dead() -> list[str]:
        return [r["trace"] for r in _core.rings([]) if r["state"] == "dead" and str(place) in r["trace"]]

    assert len(dead()) == 2
    assert "ring of a killed" not in _clean(place, "cache")  # its trace is not there
    shown = _clean(place, "traces")
    assert [Path(trace).parent.name for trace in dead()] == ["gone"]  # the other one is in its trace now
    assert "ring of a killed process" in shown
    assert "is gone" in shown
    _clean(place, "traces", "--yes")
    assert dead() == []
    assert list((place / "traces" / "kept").glob("*.pfw.gz"))


def test_doctor_says_what_is_there(place: Path) -> None:
    result = json.loads(_clean(place, "--quick", "--json", verb="doctor"))
    (left,) = [c["text"] for c in result["checks"] if c["check"] == "left over"]
    assert "2 caches (110 B)" in left
    assert "dftracer clean --all" in left  # rings of other places are counted, too
