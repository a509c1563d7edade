"""Where traces go, what they are called, and what every file says of itself."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.process import Run, clean_environment
from support.trace import read_directory, read_file

OWN_NAME = r"-[0-9a-f]{16}-app\.pfw\.gz"


def _hash(text: str) -> str:
    return hashlib.md5(text.encode()).digest()[::2].hex()


def _members(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Raw bytes and text of each gzip member."""
    data = path.read_bytes()
    while data:
        inflater = zlib.decompressobj(31)
        text = inflater.decompress(data)
        assert inflater.eof
        rest = inflater.unused_data
        yield data[: len(data) - len(rest)], text
        data = rest


def test_name_without_one_given(traced: Callable[..., Run]) -> None:
    """Prefix of DFTRACER_LOG_FILE, 16 hex digits, `app`."""
    run = traced("with ai.compute: pass")
    (name,) = run.written
    assert re.fullmatch("traces/t" + OWN_NAME, name)


def test_default_prefix_is_trace_in_the_working_directory(traced: Callable[..., Run]) -> None:
    """Nothing set: `./trace-….pfw.gz`, and no other file."""
    run = traced("with ai.compute: pass", env={"DFTRACER_LOG_FILE": None})
    (name,) = run.written
    assert re.fullmatch("cwd/trace" + OWN_NAME, name)


@pytest.mark.parametrize(
    ("given", "compression", "expected"),
    [
        ("ai_trace.pfw", "1", "ai_trace.pfw.gz"),
        ("ai_trace.pfw", "0", "ai_trace.pfw"),
        ("ai_trace.pfw.gz", "1", "ai_trace.pfw.gz"),
        ("new/folder/x.pfw", "1", "new/folder/x.pfw.gz"),
    ],
)
def test_a_given_name_is_honoured(
    given: str, compression: str, expected: str, program: Callable[..., Run]
) -> None:
    """Clients look for exactly this file; a missing folder is made."""
    run = program(
        f"""
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log({given!r}, None, -1)
        with ai.compute: pass
        """,
        env={"DFTRACER_TRACE_COMPRESSION": compression},
    )
    assert run.written == [f"cwd/{expected}"]
    assert read_directory(run.cwd).names == ["compute"]


def test_the_working_directory_of_initialise_counts(program: Callable[..., Run]) -> None:
    """A later `chdir` does not move the trace."""
    run = program(
        """
        import os
        from dftracer.python import ai, dftracer
        os.mkdir("later")
        log = dftracer.initialize_log("x.pfw", None, -1)
        os.chdir("later")
        with ai.compute: pass
        """
    )
    assert run.written == ["cwd/x.pfw.gz"]


def test_a_second_run_moves_the_file_aside(program: Callable[..., Run]) -> None:
    """A finished trace is neither replaced nor appended to; the name is the newest run's."""
    for name in ("forward", "backward"):
        run = program(
            f"""
            from dftracer.python import ai, dftracer
            log = dftracer.initialize_log("x.pfw", None, -1)
            with ai.compute.{name}: pass
            """
        )
    earlier, newest = run.written
    assert newest == "cwd/x.pfw.gz"
    assert re.fullmatch(r"cwd/x-\d{8}-\d{6}-[0-9a-f]{8}\.pfw\.gz", earlier)
    assert [e.name for e in read_file(run.cwd / "x.pfw.gz").events] == ["backward"]
    assert [e.name for e in read_file(run.cwd.parent / earlier).events] == ["forward"]


def test_two_live_processes_with_one_name(tmp_path: Path) -> None:
    """The second writes a file of its own beside the first."""
    script = tmp_path / "p.py"
    script.write_text(
        textwrap.dedent(
            """
            import glob, sys, time
            from dftracer.python import ai, dftracer
            log = dftracer.initialize_log("same.pfw", None, -1)
            count = 0
            while len(glob.glob("same*.pfw.gz")) < int(sys.argv[1]):  # until its own is there
                with ai.compute: count += 1
                time.sleep(0.01)
            print(count, flush=True)
            sys.stdin.readline()
            """
        )
    )
    env = clean_environment(DFTRACER_ENABLE="1")
    procs, counts = [], []
    for files_then in ("1", "2"):
        proc = subprocess.Popen(
            [sys.executable, str(script), files_then],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # inherited it may be a file, whose use is an event
        )
        assert proc.stdout is not None
        counts.append(int(proc.stdout.readline()))
        procs.append(proc)
    for proc in procs:
        proc.communicate(b"\n", timeout=60)
        assert proc.returncode == 0
    files = sorted(p.name for p in tmp_path.glob("*.pfw*"))
    assert len(files) == 2
    assert re.fullmatch("same" + OWN_NAME, files[0])
    assert files[1] == "same.pfw.gz"
    assert [len(read_file(tmp_path / name).events) for name in (files[1], files[0])] == counts


def test_no_events_no_file(program: Callable[..., Run]) -> None:
    """Initialise, do nothing, finish: nothing is left anywhere."""
    run = program(
        """
        import os
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        named = dftracer.initialize_log("x.pfw", None, -1)
        for node in (ai.compute, ai.data):
            with node(enable=False): pass
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        log.finalize()
        """
    )
    assert run.written == []


def test_only_the_trace_is_left(traced: Callable[..., Run]) -> None:
    """After a clean end no ring, lock, index or temporary file remains, here or in /dev/shm."""
    run = traced(
        """
        with ai.compute: pass
        mapped = {line.split()[5] for line in open("/proc/self/maps") if len(line.split()) > 5}
        print("\\n".join(sorted(m for m in mapped if m.endswith(".ring"))))
        """
    )
    assert len(run.written) == 1
    assert run.stdout != "", "the rings are mapped from a file that outlives a killed process"
    for ring in run.stdout.split():
        assert not Path(ring).exists(), ring


def test_first_line_last_line_and_ids(traced: Callable[..., Run]) -> None:
    """`[`, records with ids from 1 without a gap, `]`."""
    run = traced("for _ in range(100):\n    with ai.compute: pass")
    (file,) = run.trace.files
    assert file.closed
    assert sorted(r.id for r in file.records) == list(range(1, len(file.records) + 1))
    assert file.pid == file.events[0].pid


def test_start_and_end(traced: Callable[..., Run]) -> None:
    """`start` is the first event, `end` the last; both carry what the format names."""
    run = traced(
        "import os\nfor _ in range(10):\n    with ai.compute: pass\nprint(os.getpid(), os.getppid())"
    )
    pid, ppid = map(int, run.stdout.split())
    (file,) = run.trace.files
    complete = [r for r in file.records if r.ph == "X"]
    start, end = complete[0], complete[-1]
    assert (start.name, start.cat, start.dur) == ("start", "dftracer", 0)
    assert {"cwd", "cmd_hash", "exec_hash", "version", "date", "ppid"} <= set(start.args)
    assert start.args["ppid"] == ppid
    assert start.pid == pid
    assert (end.name, end.cat) == ("end", "dftracer")
    assert end.args["num_events"] == len(file.records) - 1, "every record before it, as in the public format"
    assert end.args["dropped"] == 0
    assert all(start.ts <= e.ts and e.end <= end.ts for e in file.events)
    assert file.records[-1] is end


def test_hashes_resolve_in_the_same_file(traced: Callable[..., Run]) -> None:
    """Every hash used in args is explained by a record of this file, also in a forked child's."""
    run = traced(
        """
        import os
        with ai.compute: pass
        if os.fork() == 0:
            with ai.data: pass
            os._exit(0)
        os.wait()
        """
    )
    trace = run.trace
    assert len(trace.files) == 2
    for file in trace:
        known = {r.args["value"]: r.args["name"] for r in file.records if r.name in ("HH", "FH", "SH")}
        assert all(_hash(name) == value for value, name in known.items())
        assert known[file.records[0].args["hhash"]] == socket.gethostname()
        start = next(r for r in file.records if r.name == "start")
        assert known[start.args["cwd"]] == str(run.cwd)
        assert "program.py" in known[start.args["cmd_hash"]]
        assert start.args["exec_hash"] in known
        assert {r.args["hhash"] for r in file.records} == {_hash(socket.gethostname())}


def test_threads_are_named(traced: Callable[..., Run]) -> None:
    """Each thread with events has a `thread_name` record."""
    run = traced(
        """
        import threading
        def body():
            with ai.compute: pass
        with ai.data: pass
        t = threading.Thread(target=body, name="loader"); t.start(); t.join()
        """
    )
    (file,) = run.trace.files
    named = {r.tid for r in file.records if r.name == "thread_name"}
    assert {e.tid for e in file.events} <= named


def test_members_are_small_and_cut_at_records(traced: Callable[..., Run]) -> None:
    """Independent members of whole lines, each with its size, lines and time range in the header."""
    run = traced(
        """
        for i in range(30_000):
            with ai.compute.forward(args={"i": i}): pass
        """
    )
    (file,) = run.trace.files
    members = list(_members(file.path))
    assert len(members) > 3
    assert b"".join(text for _, text in members).decode() == file.text
    for raw, text in members:
        assert text.endswith(b"\n")
        assert len(text) <= 1.25 * 2**20
        assert raw[3] & 4, "FEXTRA"
        (extra,) = struct.unpack_from("<H", raw, 10)
        field = raw[12 : 12 + extra]
        assert field[:4] == b"DF" + struct.pack("<H", 32)
        size, length, lines, reserved, first, last = struct.unpack_from("<IIIIQQ", field, 4)
        assert (size, length, lines, reserved) == (len(raw), len(text), text.count(b"\n"), 0)
        stamps = [int(m) for m in re.findall(rb'"ts":(\d+)', text)]
        assert (first, last) == ((min(stamps), max(stamps)) if stamps else (0, 0))


def test_nothing_is_appended_to_a_foreign_file(program: Callable[..., Run]) -> None:
    """A file of that name that is no trace of ours is not mixed with one."""
    run = program(
        """
        open("x.pfw.gz", "w").write("not a trace")
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log("x.pfw", None, -1)
        with ai.compute: pass
        """
    )
    assert (run.cwd / "x.pfw.gz").read_text() == "not a trace"
    (own,) = [p for p in run.written if p != "cwd/x.pfw.gz"]
    assert re.fullmatch("cwd/x" + OWN_NAME, own)
    assert [e.name for e in read_file(run.cwd.parent / own).events] == ["compute"]


def test_ids_are_unique_over_many_processes(program: Callable[..., Run]) -> None:
    """Twenty short processes at once: twenty files."""
    run = program(
        """
        import os
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        for _ in range(20):
            if os.fork() == 0:
                with ai.compute: pass
                os._exit(0)
        for _ in range(20): os.wait()
        with ai.data: pass
        """
    )
    trace = run.trace
    assert len(trace.files) == 21
    assert len({f.pid for f in trace}) == 21
    assert sum("-fork" in f.path.name for f in trace) == 20
    assert os.path.commonpath([str(f.path) for f in trace]) == str(run.trace_dir)
