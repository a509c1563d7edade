"""Looking at traces of running, killed and finished processes: everything is seen, nothing is touched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dftracer import _core
from dftracer.format.members import inflate
from dftracer.live import LiveFile, look, running_directories, traces_of_process, whole_copy
from dftracer.load import Trace, recover
from support.process import clean_environment

JOB = """
import os, signal, sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1] + "/t.pfw", None)
until, pause = int(sys.argv[2]), float(sys.argv[3])
print("begun", flush=True)
for i in range(until):
    with ai.compute.forward(step=i):
        pass
    if pause:
        time.sleep(pause)
print("made", flush=True)
sys.stdin.readline()
if sys.argv[4] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
log.finalize()
"""


@contextmanager
def job(directory: Path, events: int, pause: float = 0.0, end: str = "end", **env: str) -> Iterator[Any]:
    directory.mkdir(exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-c", JOB, str(directory), str(events), str(pause), end],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=clean_environment(DFTRACER_ENABLE="1", DFTRACER_DISABLE_IO="1", **env),
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
        child.stdout.close()


def _lines(file: LiveFile) -> list[bytes]:
    before = b""
    if file.final:
        with file.path.open("rb") as f:
            if file.packed:
                before = b"".join(inflate(f, lambda _: None))
                # Members after `final` may be there by now.
                f.seek(0)
                settled = f.read(file.final)
                (place := file.path.with_name("settled")).write_bytes(settled)
                with place.open("rb") as g:
                    before = b"".join(inflate(g, pytest.fail))
                place.unlink()
            else:
                before = f.read(file.final)
    return (before + file.rest()).splitlines()


def _steps(file: LiveFile) -> list[int]:
    records = [json.loads(line.rstrip(b",")) for line in _lines(file) if line.startswith(b"{")]
    return [r["args"]["step"] for r in records if r["name"] == "forward"]


@pytest.mark.parametrize("packed", ["1", "0"], ids=["gz", "plain"])
def test_a_running_process_is_seen_up_to_now(tmp_path: Path, packed: str) -> None:
    """Again and again beside a process that records as fast as it can, its ring wrapping many times."""
    looks = 0
    with job(
        tmp_path / "t",
        60_000,
        DFTRACER_TRACE_COMPRESSION=packed,
        DFTRACER_RING_SIZE="65536",
        DFTRACER_MAX_STALL_US="60000000",  # waits for the writer rather than drop
    ) as child:
        while not look(tmp_path / "t"):
            time.sleep(0.01)
        seen = -1
        while looks < 12 and seen < 59_999:
            (file,) = look(tmp_path / "t")
            assert file.state == "running"
            assert file.pid == child.pid
            steps = _steps(file) if file.consistent else []
            if steps:
                assert steps == list(range(len(steps))), "something is missing, torn or there twice"
                assert len(steps) - 1 >= seen
                seen = len(steps) - 1
                looks += 1
        assert looks >= 1
        assert child.stdout.readline() == "made\n"
        (file,) = look(tmp_path / "t")
        assert _steps(file) == list(range(60_000))
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait() == 0
    (file,) = look(tmp_path / "t")
    assert (file.state, file.final, file.rest()) == ("finished", file.size, b"")
    assert _steps(file) == list(range(60_000))


def _state(*places: Path) -> dict[str, tuple[int, int, bytes]]:
    files = [p for place in places for p in (place.iterdir() if place.is_dir() else [place])]
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_size, p.read_bytes()) for p in files}


def test_a_killed_process_is_seen_and_left_for_those_who_recover_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    monkeypatch.setenv("DFTRACER_RING_DIR", str(rings))  # readers look there as well
    with job(tmp_path / "t", 500, pause=0.001, end="kill", DFTRACER_RING_DIR=str(rings)) as child:
        assert child.stdout.readline() == "made\n"
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait() == -signal.SIGKILL
    before = _state(tmp_path / "t", rings)
    (file,) = look(tmp_path / "t")
    assert file.state == "killed"
    assert file.pid == child.pid
    assert _steps(file) == list(range(500))
    copy = tmp_path / "copy.pfw.gz"
    whole_copy(file, copy)
    assert Trace(copy).polars().filter(name="forward").height == 500
    assert _state(tmp_path / "t", rings) == before
    assert list(rings.iterdir())
    # Whoever recovers it completes it, as if nobody had looked.
    recover(tmp_path / "t")
    assert Trace(tmp_path / "t").polars().filter(name="forward").height == 500
    assert not list(rings.iterdir())
    (file,) = look(tmp_path / "t")
    assert file.state == "killed"  # its trace is whole now; how it ended has not changed
    assert file.final == file.size


def test_looking_takes_no_lock_and_opens_for_reading_alone(tmp_path: Path) -> None:
    with job(tmp_path / "t", 50) as child:
        assert child.stdout.readline() == "made\n"
        (ring,) = (r for r in _core.ring_paths([]) if (_core.peek_ring(r) or {}).get("pid") == child.pid)
        code = "import sys; from dftracer.live import look; print([f.state for f in look(sys.argv[1])])"
        traced = None
        if _has_strace():
            watched = "trace=openat,flock,fcntl,ftruncate,unlink,pwrite64,kill"
            looking = [sys.executable, "-c", code, str(tmp_path / "t")]
            traced = subprocess.run(
                ["strace", "-f", "-e", watched, "-o", tmp_path / "calls", *looking],
                capture_output=True,
                text=True,
                env=clean_environment(),
                check=False,
            )
        (file,) = look(tmp_path / "t")
        assert file.state == "running"
        if traced is not None:
            assert traced.stdout == "['running']\n"
            calls = (tmp_path / "calls").read_text().splitlines()
            mine = [c for c in calls if ".pfw" in c or Path(ring).name in c]
            assert mine
            assert all("openat" in c and "O_RDONLY" in c for c in mine), mine
            assert not [c for c in calls if re.search(r"\b(flock|ftruncate|pwrite64)\(", c)]


def _has_strace() -> bool:
    return any(os.access(Path(p) / "strace", os.X_OK) for p in os.environ.get("PATH", "").split(os.pathsep))


def test_a_process_is_found_by_its_number_and_by_that_of_its_parent(tmp_path: Path) -> None:
    with job(tmp_path / "t", 50) as child:
        assert child.stdout.readline() == "made\n"
        assert traces_of_process(child.pid) == [tmp_path / "t"]
        assert tmp_path / "t" in running_directories()
        assert tmp_path / "t" in traces_of_process(os.getpid())
        child.stdin.write("\n")
        child.stdin.flush()
        child.wait()
    assert tmp_path / "t" not in running_directories()
    assert traces_of_process(child.pid) == []


def test_a_file_without_a_ring_settles_by_its_members(tmp_path: Path) -> None:
    """As the file of another host's process: nothing is known of it but what is in it."""
    with job(tmp_path / "t", 1000, pause=0.001) as child:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "t").glob("*.gz")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert child.stdout.readline() == "made\n"
        half = tmp_path / "half"
        half.mkdir()
        (source,) = (tmp_path / "t").glob("*.gz")
        while True:
            (half / source.name).write_bytes(source.read_bytes() + b"\x1f\x8b\x08 torn")
            (file,) = look(half)
            if len(_steps(file)) > 100 or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        assert file.state == "cut"
        assert file.final < file.size
        assert _steps(file) == list(range(len(_steps(file))))
        assert len(_steps(file)) > 100


def test_every_reader_of_rings_looks_where_they_are_asked_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = tmp_path / "dftracer-1.ring"
    ring.touch()
    assert str(ring) not in _core.ring_paths([])
    monkeypatch.setenv("DFTRACER_RING_DIR", str(tmp_path))
    assert str(ring) in _core.ring_paths([])
    assert str(ring) in [each["ring"] for each in _core.rings([])]
