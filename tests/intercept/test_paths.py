"""Every event is booked on the right file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, IoRun, compile_c, run_traced

Run = tuple[Path, IoRun]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The fixture's run; its writes tell by their size where they belong."""
    base = tmp_path_factory.mktemp("paths")
    data = base / "data"
    data.mkdir()
    program = compile_c(FIXTURES / "paths.c", base / "paths")
    return data, run_traced([program, data], base, data=str(data))


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (1, "relative"),
        (2, "sub/in_sub"),
        (3, "at_cwd"),
        (4, "relative"),
        (6, "sub/in_sub"),
        (7, "reused"),
        (9, "sub/after_chdir"),
        (10, "sub/after_chdir"),
        (11, "link"),
        (12, "deleted"),
        (13, "before"),
        (14, "over_fork"),
        (15, "over_fork"),
        (16, "odd"),
    ],
)
def test_write_is_booked_on_its_file(run: Run, size: int, name: str) -> None:
    """Relative, dup'ed, reused, high, forked, deleted, renamed: the file is the one that was opened."""
    data, traced = run
    [event] = [e for e in traced.events if e.name == "write" and e.raw["args"]["count"] == size]
    assert traced.paths[event.raw["args"]["fhash"]] == str(data / name)


def test_sockets_are_not_files(run: Run) -> None:
    """A socket on the number of a closed file is not traced."""
    _, traced = run
    assert not [e for e in traced.events if e.raw["args"].get("count") == 8]


def test_stream_over_a_descriptor(run: Run) -> None:
    """What fdopen made of a dup'ed descriptor is booked on the file, and closed with it."""
    data, traced = run
    names = [e.name for e in traced.on(data / "relative") if e.cat == "STDIO"]
    assert names[0] == "fdopen"
    assert names[-1] == "fclose"


def test_failed_open(run: Run) -> None:
    """A failed open is an event with its errno."""
    data, traced = run
    [event] = traced.on(data / "missing/file", "open")
    assert event.raw["args"]["ret"] == -1
    assert event.raw["args"]["errno"] == 2


def test_each_file_is_self_contained(run: Run) -> None:
    """Every hash used in a trace file is explained in it, once; the forked child's too."""
    from support.trace import read_directory  # noqa: PLC0415

    _, traced = run
    files = read_directory(traced.traces).files
    assert len(files) == 2
    for file in files:
        named = [r.raw["args"]["value"] for r in file.records if r.name == "FH"]
        used = {
            v for r in file.records if r.ph == "X" for k, v in r.raw["args"].items() if k.endswith("fhash")
        }
        assert used <= set(named)
        assert len(named) == len(set(named))


SCRIPT = """
import os, sys
for path in sys.argv[1:]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f: f.write(b"x")
"""


@pytest.mark.parametrize(
    ("listed", "seen"),
    [
        ("data", {"data/a", "data/nested/b"}),
        ("data/", {"data/a", "data/nested/b"}),
        ("data:data/nested", {"data/a", "data/nested/b"}),
        ("data/nested", {"data/nested/b"}),
        ("database:nowhere", {"database/c"}),
    ],
)
def test_data_dir_matches_whole_components(listed: str, seen: set[str], tmp_path: Path) -> None:
    """`/data` is not a prefix of `/database`; nested directories may both be listed."""
    wanted = ":".join(
        str(tmp_path / part) + ("/" if part.endswith("/") else "") for part in listed.split(":")
    )
    files = [str(tmp_path / n) for n in ("data/a", "data/nested/b", "database/c")]
    run = run_traced([sys.executable, "-c", SCRIPT, *files], tmp_path, data=wanted)
    written = {run.paths[e.raw["args"]["fhash"]] for e in run.events if e.name == "write"}
    assert written == {str(tmp_path / n) for n in seen}


def test_data_dir_behind_a_symbolic_link(tmp_path: Path) -> None:
    """A listed directory is traced under both of its names."""
    (tmp_path / "real").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "real")
    files = [str(tmp_path / "data/a"), str(tmp_path / "real/b")]
    run = run_traced([sys.executable, "-c", SCRIPT, *files], tmp_path, data=str(tmp_path / "data"))
    assert {run.paths[e.raw["args"]["fhash"]] for e in run.events if e.name == "write"} == set(files)


def test_all_leaves_out_what_nobody_means(tmp_path: Path) -> None:
    """No /proc, /sys, /dev/null, sockets, pipes, sources, shared objects or site-packages."""
    script = """
import os, socket, sys, json, sqlite3, ctypes
for path in ("/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/null", "/dev/urandom"):
    try: open(path, "rb", buffering=0).read(10)
    except OSError: pass
a, b = socket.socketpair(); os.write(a.fileno(), b"x"); os.read(b.fileno(), 1)
r, w = os.pipe(); os.write(w, b"y"); os.read(r, 1)
with open(sys.argv[1], "wb") as f: f.write(b"z")
"""
    wanted = tmp_path / "wanted.bin"
    run = run_traced([sys.executable, "-c", script, wanted], tmp_path)
    for path in run.paths.values():
        assert not path.startswith(("/proc", "/sys", "/dev/null", "/dev/urandom", "socket:", "pipe:"))
        assert not path.endswith((".py", ".pyc", ".so"))
        assert "site-packages" not in path
    assert run.names_on(wanted).count("write") == 1
