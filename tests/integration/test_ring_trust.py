"""Rings are recovered by their own user only, from sound files, and deleted only when recovered."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.apart import ATTACKER, apart, as_user, mounted, open_directory
from support.iotrace import preload_library
from support.process import clean_environment
from support.trace import read_directory

SHM = Path("/dev/shm")
COMMIT = 96  # where the ring's header says how much of the trace counts, and in which state

KILLED = """
import os, signal
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
for i in range(100):
    with ai.compute.forward(args={"i": i}): pass
from dftracer import _core
assert _core.flush()
for i in range(100, 300):
    with ai.compute.forward(args={"i": i}): pass
os.kill(os.getpid(), signal.SIGKILL)
"""
RECORDING = """
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
import os
before = os.umask(0o177)
with ai.compute.backward: pass
os.umask(before)
print([l.split()[-1] for l in open("/proc/self/maps") if ".ring" in l][0])
log.finalize()
"""


def _python(
    source: str, traces: Path, expect: int = 0, timeout: float = 60, **env: str
) -> subprocess.CompletedProcess[str]:
    settings = {"DFTRACER_ENABLE": "1", "DFTRACER_LOG_FILE": str(traces / "t"), "DFTRACER_DISABLE_IO": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env=clean_environment(**{**settings, **env}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done


def _killed(traces: Path, **env: str) -> None:
    """A process that recorded 300 events and was killed; some of them are in its ring only."""
    traces.mkdir(parents=True, exist_ok=True)
    _python(KILLED, traces, -signal.SIGKILL, 60, **env)


def _command(*arguments: str | Path, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dftracer.cli", *map(str, arguments)],
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _bytes(ring: Path) -> bytes:
    """Of a ring that another test's process may be done with by now."""
    try:
        return ring.read_bytes()
    except FileNotFoundError:
        return b""


def _forwards(traces: Path) -> list[int]:
    return [e.args["i"] for e in read_directory(traces).events if e.name == "forward"]


def _ring(directory: Path | None = None) -> Path:
    (ring,) = (directory or SHM / f"dftracer-{os.geteuid()}").glob("*.ring")
    return ring


def _left() -> Iterator[Path]:
    """What is in the place of this user's rings, besides what tells who samples the machine."""
    return (p for p in (SHM / "dftracer-0").iterdir() if p.name != "leases")


def _with_trace(ring: bytes, path: Path, first_write: bool) -> bytes:
    """The ring with another trace in both places for its name, perhaps as if nothing were written yet."""
    data = bytearray(ring)
    old = data.index(b"/", 400)
    slots = [old, old + 4096] if data[old + 4096 : old + 4097] == b"/" else [old]
    for at in slots:
        data[at : at + 1024] = os.fsencode(path).ljust(1024, b"\0")
    if first_write:
        word = int.from_bytes(data[COMMIT : COMMIT + 8], "little") & (1 << 63) | 3
        data[COMMIT : COMMIT + 8] = word.to_bytes(8, "little")
    return bytes(data)


def _place(path: Path, data: bytes, owner: int = 0, mode: int = 0o600) -> None:
    path.write_bytes(data)
    path.chmod(mode)
    os.chown(path, owner, owner)


@apart
def test_a_ring_of_another_user_is_never_believed(tmp_path: Path) -> None:
    """Planted wherever a recovery might look: the file it names stays what it was, for root too."""
    _killed(tmp_path / "source")
    good = _ring().read_bytes()
    shutil.rmtree(SHM / "dftracer-0")
    victim = open_directory(tmp_path / "victim")
    victim.chmod(0o1777)
    script = victim / "job.sh"
    script.write_text("#!/bin/sh\necho as it was\n")
    planted = _with_trace(good, script, first_write=True)
    hostile = SHM / "dftracer-0"
    hostile.mkdir()
    hostile.chmod(0o777)
    os.chown(hostile, ATTACKER, ATTACKER)
    for number, place in enumerate((SHM, hostile, victim, SHM)):
        _place(place / f"dftracer-0-{number:016x}.ring", planted, ATTACKER, 0o666 if number == 3 else 0o600)
    done = _python(RECORDING, victim)
    assert str(victim) in done.stdout, "its own ring lies beside the trace"
    for verb in ("info", "validate", "report"):
        _command(verb, victim)
    assert script.read_text() == "#!/bin/sh\necho as it was\n"
    assert not list(hostile.glob("*.tmp"))
    assert len(list(hostile.iterdir())) == 1, "nothing of root's is put where another may take it"


@apart
def test_an_own_ring_is_not_believed_either(tmp_path: Path) -> None:
    """What it names and is not the trace of its process, or not a file of its user, stays as it is."""
    _killed(tmp_path / "source")
    ring = _ring()
    good = ring.read_bytes()
    (trace,) = (tmp_path / "source").glob("*.pfw.gz")
    place = open_directory(tmp_path / "place")
    others = {
        "script": b"#!/bin/sh\n",
        "gzip": b"\x1f\x8b\x08\x00" + bytes(100),
        "longer": trace.read_bytes() + trace.read_bytes(),
        "of_another": trace.read_bytes(),
    }
    for first_write in (True, False):
        for name, content in others.items():
            target = place / f"{name}.pfw.gz"
            target.write_bytes(content)
            if name == "of_another":
                os.chown(target, ATTACKER, ATTACKER)
            _place(ring, _with_trace(good, target, first_write))
            _command("info", place)
            assert target.read_bytes() == content, (name, first_write)
        link = place / "link.pfw.gz"
        link.unlink(missing_ok=True)
        before = trace.read_bytes()
        link.symlink_to(trace)
        _place(ring, _with_trace(good, link, first_write))
        _command("info", place)
        assert trace.read_bytes() == before
    assert ring.exists(), "what was not recovered is kept"
    _place(ring, good)
    _command("info", tmp_path / "source")
    assert _forwards(tmp_path / "source") == list(range(300))
    assert not ring.exists()


@apart
def test_sizes_in_a_ring_are_checked_against_the_trace(tmp_path: Path) -> None:
    """A ring that says that less was written than the trace holds does not make it shorter."""
    for compression in ("1", "0"):
        traces = tmp_path / compression
        _killed(traces, DFTRACER_TRACE_COMPRESSION=compression)
        ring = _ring()
        good = ring.read_bytes()
        (trace,) = traces.glob("*.pfw*")
        content = trace.read_bytes()
        for size in (2, 48, len(content) // 2, len(content) - 1):
            data = bytearray(good)
            data[COMMIT : COMMIT + 8] = (1 << 63 | size << 2).to_bytes(8, "little")
            _place(ring, bytes(data))
            _command("info", traces)
            assert trace.read_bytes() == content, size
        _place(ring, good)
        _command("info", traces)
        assert _forwards(traces) == list(range(300))


@apart
def test_files_that_only_have_the_name_of_a_ring(tmp_path: Path) -> None:
    """Pipes, links, directories, cut and empty files: programs end and commands answer."""
    _killed(tmp_path / "source")
    good = _ring().read_bytes()
    traces = tmp_path / "traces"
    traces.mkdir()
    elsewhere = tmp_path / "elsewhere.ring"
    _place(elsewhere, good)
    for place in (SHM, SHM / "dftracer-0", traces):
        os.mkfifo(place / "dftracer-0-pipe.ring", 0o600)
        (place / "dftracer-0-directory.ring").mkdir()
        (place / "dftracer-0-link.ring").symlink_to(elsewhere)
        for cut in (0, 7, 100, 5000, 9000, 300_000, len(good) - 4096):
            _place(place / f"dftracer-0-cut{cut}.ring", good[:cut])
    preload = preload_library()
    _python(RECORDING, traces)
    env = clean_environment(
        DFTRACER_ENABLE="1", DFTRACER_INIT="PRELOAD", LD_PRELOAD=preload, DFTRACER_LOG_FILE=str(traces / "t")
    )
    subprocess.run(["cat", "/etc/passwd"], env=env, check=True, timeout=60, capture_output=True)
    assert _command("info", traces).returncode == 0
    assert _command("repair", "--rings").returncode in {0, 1}


@apart
def test_held_locks_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """Someone who keeps thirty rings locked is waited for once, not thirty times."""
    if shutil.which("strace") is None:
        pytest.skip("no strace, which counts how often a lock is tried")
    _killed(tmp_path / "traces")
    good = _ring().read_bytes()
    held = []
    for number in range(30):
        path = SHM / f"dftracer-0/dftracer-0-{number:016x}.ring"
        _place(path, good)
        held.append(path.open("rb"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    # Every 2 ms: 0.3 s in all where a program ends, 2 s for a reader. A slow machine tries less often.
    settings = {"DFTRACER_ENABLE": "1", "DFTRACER_LOG_FILE": str(tmp_path / "traces" / "t")}
    assert 0 < _tried_locks(tmp_path, "-c", RECORDING, **settings) <= 300 / 2 + len(held)
    assert (
        0
        < _tried_locks(tmp_path, "-m", "dftracer.cli", "info", str(tmp_path / "traces"))
        <= 2000 / 2 + len(held)
    )


def _tried_locks(tmp_path: Path, *python: str, **env: str) -> int:
    """How often a program found a ring locked."""
    command = ["strace", "-f", "-e", "trace=flock", "-o", str(tmp_path / "calls"), sys.executable, *python]
    subprocess.run(command, env=clean_environment(**env), check=True, capture_output=True)
    return (tmp_path / "calls").read_text().count("EAGAIN")


@apart
def test_where_rings_lie(tmp_path: Path) -> None:
    """In a directory of the user that is closed to others; where that one is not, beside the trace."""
    traces = tmp_path / "traces"
    traces.mkdir()
    own = SHM / "dftracer-0"

    def lies_in() -> str:
        return str(Path(_python(RECORDING, traces).stdout).parent)

    assert lies_in() == str(own)
    assert own.stat().st_mode & 0o7777 == 0o700
    for mode in (0o755, 0o770, 0o777):
        own.chmod(mode)
        assert lies_in() == str(traces), oct(mode)
    own.chmod(0o700)
    assert lies_in() == str(own)
    os.chown(own, ATTACKER, ATTACKER)
    assert lies_in() == str(traces)
    shutil.rmtree(own)
    own.symlink_to(tmp_path)
    assert lies_in() == str(traces)
    own.unlink()
    SHM.chmod(0o777)  # where names do not stay, none is trusted
    assert lies_in() == str(traces)


def _open_preload(base: Path) -> Path:
    """The preloaded library where every user can read it."""
    place = open_directory(base / "lib")
    library = Path(preload_library())
    for file in library.parent.glob("libdftracer*.so*"):
        shutil.copy(file, place)
    return place / library.name


@apart
def test_two_users_beside_each_other(tmp_path: Path) -> None:
    """Each recovers what is his; neither sees, moves or removes what is the other's, not even root."""
    library = _open_preload(tmp_path)
    theirs, ours = open_directory(tmp_path / "theirs"), tmp_path / "ours"
    os.chown(theirs, ATTACKER, ATTACKER)
    env = clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_INIT="PRELOAD",
        LD_PRELOAD=str(library),
        DFTRACER_LOG_FILE=str(theirs / "t"),
    )
    program = "read line < /etc/passwd; kill -9 $$"
    assert as_user(ATTACKER, ["bash", "-c", program], env).returncode == -signal.SIGKILL
    their_directory = SHM / f"dftracer-{ATTACKER}"
    their_ring = _ring(their_directory)
    assert their_ring.stat().st_uid == ATTACKER
    assert their_ring.stat().st_mode & 0o7777 == 0o600
    assert their_directory.stat().st_mode & 0o7777 == 0o700
    _killed(ours)
    before = {p: p.read_bytes() for p in theirs.iterdir()}
    _command("info", theirs)
    _python(RECORDING, theirs.parent / "root")
    assert {p: p.read_bytes() for p in theirs.iterdir()} == before
    assert their_ring.exists(), "root leaves it to its owner"
    listed = json.loads(_command("repair", "--rings", "--json").stdout)["rings"]
    states = {r["ring"]: r["state"] for r in listed}
    assert states[str(their_ring)] == "of another user"
    assert _forwards(ours) == list(range(300)), "and recovers its own by hand"
    # The next traced programs of that user complete the trace, as far as their patience goes.
    # (Those that write one themselves: `cat` alone is too short for that.)
    reads = "for i in {1..3000}; do read line < /etc/passwd; done"
    for _ in range(400):  # a busy machine uses up their patience
        assert as_user(ATTACKER, ["bash", "-c", reads], env).returncode == 0
        if not their_ring.exists():
            break
    assert not their_ring.exists()
    assert any(f.end_record.args.get("recovered") for f in read_directory(theirs))


@apart
def test_a_trace_directory_that_was_moved(tmp_path: Path) -> None:
    """Other processes of the user leave its ring alone; readers find that it belongs to the moved trace."""
    _killed(tmp_path / "before")
    (tmp_path / "before").rename(tmp_path / "after")
    _python(RECORDING, tmp_path / "other")
    assert _ring().exists()
    assert _command("info", tmp_path / "after").returncode == 0
    assert _forwards(tmp_path / "after") == list(range(300))
    assert not list(_left())


@apart
def test_a_trace_directory_that_is_not_visible(tmp_path: Path) -> None:
    """Another file system covers it, as in another mount namespace: nothing is lost until it is back."""
    traces = tmp_path / "traces"
    _killed(traces)
    with mounted(traces, "size=1m"):
        _python(RECORDING, tmp_path / "other")
        _python(RECORDING, traces)
        _command("info", traces)
        _command("repair", "--rings")
        assert _ring().exists()
    shutil.move(traces, tmp_path / "away")
    traces.mkdir()
    _python(RECORDING, tmp_path / "other")
    assert _ring().exists()
    traces.rmdir()
    shutil.move(tmp_path / "away", traces)
    _command("info", traces)
    assert _forwards(traces) == list(range(300))


@apart
def test_rings_in_a_place_of_the_users_choice(tmp_path: Path) -> None:
    """A reader that was never told of DFTRACER_RING_DIR recovers from there all the same."""
    place = tmp_path / "place"
    place.mkdir()
    _killed(tmp_path / "traces", DFTRACER_RING_DIR=str(place))
    assert _ring(place).exists()
    assert _command("info", tmp_path / "traces").returncode == 0
    assert _forwards(tmp_path / "traces") == list(range(300))
    assert not list(place.iterdir())
    assert not list(_left())


@apart
def test_rings_by_hand(tmp_path: Path) -> None:
    """`repair --rings` lists what is there, recovers what has its trace, and the rest where it is told to."""
    _killed(tmp_path / "one")
    _killed(tmp_path / "two")
    _killed(tmp_path / "three")
    old = SHM / "dftracer-0-0123456789abcdef.ring"
    _place(old, b"DFTRING2" + bytes(20_000))
    shutil.rmtree(tmp_path / "two")
    (tmp_path / "three").rename(tmp_path / "moved")
    done = _command("repair", "--rings", "--json")
    assert done.returncode == 1, "one is kept for want of its trace"
    rows = {r["trace"].rsplit("/", 2)[-2] if r["trace"] else "": r for r in json.loads(done.stdout)["rings"]}
    assert rows["one"]["outcome"] == "recovered"
    assert rows["one"]["records"] > 0
    assert rows["two"]["outcome"] == rows["three"]["outcome"] == "kept"
    assert "does not exist" in rows["two"]["why"]
    assert rows[""]["state"] == "of another version"
    assert _forwards(tmp_path / "one") == list(range(300))
    text = _command("repair", "--rings").stdout
    assert rows["two"]["ring"] in text
    # Told where the moved trace is now, and where to put what has none.
    done = _command("repair", "--rings", tmp_path / "moved", "-o", tmp_path / "rescued")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _forwards(tmp_path / "moved") == list(range(300))
    rescued = _forwards(tmp_path / "rescued")
    assert rescued, "what the ring held of a trace that is gone"
    assert rescued == list(range(300))[-len(rescued) :]
    assert _command("info", tmp_path / "rescued").returncode == 0
    assert old.exists(), "never deleted unasked"
    assert not list(_left())


@apart
def test_rings_are_given_up_only_when_asked(tmp_path: Path) -> None:
    _killed(tmp_path / "traces")
    shutil.rmtree(tmp_path / "traces")
    assert _command("repair", "--rings").returncode == 1
    assert _ring().exists()
    place = tmp_path / "place"
    place.mkdir()
    _killed(tmp_path / "traces", DFTRACER_RING_DIR=str(place))
    shutil.rmtree(place)
    assert len(list(_left())) == 2, "the ring, and what knows of the other"
    refused = _command("repair", "--rings", "--discard")
    assert refused.returncode == 2
    assert "--all" in refused.stderr
    assert len(list(_left())) == 2
    assert _command("repair", "--rings", "--discard", "--all").returncode == 0
    assert not list(_left())


@apart
def test_discarding_is_limited_to_the_path(tmp_path: Path) -> None:
    """The events of another directory's run are not given up with those of this one."""
    for name in ("one", "two"):
        _killed(tmp_path / name)
        shutil.rmtree(tmp_path / name)
    (tmp_path / "one").mkdir()
    done = _command("repair", "--rings", tmp_path / "one", "--discard", "--json")
    rows = {Path(r["trace"]).parent.name: r["outcome"] for r in json.loads(done.stdout)["rings"]}
    assert rows == {"one": "discarded", "two": "kept"}
    assert str(tmp_path / "two").encode() in _ring().read_bytes()


# Killed before the writer thread has written anything: recording goes on for less than one flush interval.
KILLED_AT_ONCE = """
import os, signal
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
for i in range(300):
    with ai.compute.forward(args={"i": i}): pass
os.kill(os.getpid(), signal.SIGKILL)
"""


READERS = ["info", "validate", "report", "merge", "slice", "export", "repair", "query"]


@apart
@pytest.mark.parametrize(
    ("verb", "directory"),
    [
        *((verb, "there") for verb in READERS),
        ("info", "missing"),
        ("report", "nested"),
    ],
)
def test_a_trace_that_was_never_created_is_completed_by_every_reader(
    verb: str, directory: str, tmp_path: Path
) -> None:
    given = tmp_path / "traces"
    traces = given / "deeper" / "still" if directory == "nested" else given
    if directory == "there":
        given.mkdir()
    for _ in range(100):  # on a busy machine the writer may be faster than the kill
        _python(KILLED_AT_ONCE, traces, -signal.SIGKILL, DFTRACER_FLUSH_MS="60000")
        if not list(tmp_path.rglob("*.pfw*")):
            break
        _command(
            "repair", "--rings", "--all", "--discard"
        )  # while the folder is there, so that nothing is left
        shutil.rmtree(given)
        if directory == "there":
            given.mkdir()
    assert not list(tmp_path.rglob("*.pfw*"))
    out = tmp_path / "out"
    more: dict[str, list[str | Path]] = {
        "merge": ["-o", tmp_path / "all.pfw.gz"],
        "slice": ["-o", out],
        "repair": ["-o", out],
        "export": ["-o", tmp_path / "t.parquet"],
    }
    first: list[str | Path] = ["select count(*) from events"] if verb == "query" else []
    done = _command(verb, *first, given, *more.get(verb, []))
    assert done.returncode == (1 if verb == "validate" else 0), done.stderr
    assert _forwards(traces) == list(range(300))
    assert not list(_left())


@apart
def test_events_that_wait_for_a_trace_which_cannot_be_created_are_told(tmp_path: Path) -> None:
    """On a file system that is read-only by now, and in a place that is not there any more."""
    with mounted(tmp_path / "disk", "size=8m") as disk:
        for attempt in range(100):  # on a busy machine the writer may be faster than the kill
            traces = disk / f"traces{attempt}"
            traces.mkdir()
            _python(KILLED_AT_ONCE, traces, -signal.SIGKILL, DFTRACER_FLUSH_MS="60000")
            if not list(traces.iterdir()):
                break
            _command("repair", "--rings", "--all", "--discard")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for words in (["info"], ["report"], ["merge", "-o", tmp_path / "out.pfw.gz"]):
            refused = _command(*words, traces)
            assert refused.returncode == 2
            assert "300 events of a killed process are still in its ring" in refused.stderr, refused.stderr
            assert "repair --rings -o" in refused.stderr
        assert _command("repair", "--rings", "-o", tmp_path / "rescued").returncode == 0
        assert _forwards(tmp_path / "rescued") == list(range(300))


@apart
def test_a_ring_whose_process_was_killed_during_its_set_up(tmp_path: Path) -> None:
    """It has no events and no name of a trace: it is listed as what it is, and goes when asked."""
    place = SHM / "dftracer-0"
    place.mkdir(mode=0o700)
    empty, blank, fresh = (place / f"dftracer-0-{c * 16}.ring" for c in "abc")
    _place(empty, b"")
    _place(blank, bytes(1 << 20))
    _place(fresh, bytes(1 << 20))
    for ring in (empty, blank):
        os.utime(ring, (1e9, 1e9))
    states = {
        Path(r["ring"]): r["state"]
        for r in json.loads(_command("repair", "--rings", "--json").stdout)["rings"]
    }
    assert states == {
        empty: "killed during its set-up",
        blank: "killed during its set-up",
        fresh: "being set up",
    }
    assert len(list(place.iterdir())) == 3
    assert _command("repair", "--rings", tmp_path, "--discard").returncode == 0
    assert list(place.iterdir()) == [fresh]


FILLED = """
import os, sys, threading
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
place = os.environ["DFTRACER_RING_DIR"]
def burst(k, n):
    for i in range(n):
        with ai.compute.forward(args={"k": k, "i": i}): pass
burst(0, 10)
with open(place + "/filler", "wb") as f:
    try:
        while True: os.posix_fallocate(f.fileno(), os.fstat(f.fileno()).st_size, 4096)
    except OSError: pass
threads = [threading.Thread(target=burst, args=(k, 5000)) for k in range(1, 5)]
for t in threads: t.start()
burst(0, 20_000)
for t in threads: t.join()
log.finalize()
"""


@apart
def test_the_place_of_rings_fills_up_later(tmp_path: Path) -> None:
    """Threads that find no room there record into private memory, and so does one whose ring cannot grow."""
    with mounted(tmp_path / "small", "size=4m") as small:
        done = _python(FILLED, tmp_path, DFTRACER_RING_DIR=str(small), timeout=120)
    (file,) = read_directory(tmp_path).files
    events = [(e.args["k"], e.args["i"]) for e in file.events]
    expected = [(0, i) for i in (*range(10), *range(20_000))]
    expected += [(k, i) for k in range(1, 5) for i in range(5000)]
    assert sorted(events) == sorted(expected)
    assert file.end_record.args["dropped"] == 0
    assert file.end_record.args["recoverable"] == 0
    assert done.stderr.count("private memory") == 1
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("limited", ["trace", "stderr"])
def test_a_limit_on_file_sizes_never_ends_the_program(limited: str, tmp_path: Path) -> None:
    """Neither the last write before exec nor a line on stderr raises SIGXFSZ in the program."""
    full = tmp_path / "full"
    full.write_bytes(bytes(4096))
    settings = {"trace": str(tmp_path / "t"), "stderr": "/proc/nowhere/t"}
    env = clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_INIT="PRELOAD",
        LD_PRELOAD=preload_library(),
        DFTRACER_LOG_FILE=settings[limited],
    )
    program = "ulimit -f 1; read line < /etc/passwd; exec cat /etc/passwd"
    with full.open("ab") as at_the_limit:
        done = subprocess.run(
            ["bash", "-c", program],
            env=env,
            stdout=subprocess.PIPE,
            stderr=at_the_limit if limited == "stderr" else subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == Path("/etc/passwd").read_bytes()
    left = Path(f"/dev/shm/dftracer-{os.geteuid()}").glob("*.ring")
    mine = [p for p in left if not p.is_symlink() and settings[limited].encode() in _bytes(p)]
    assert limited == "trace" or mine == [], "nothing is kept for a trace that cannot be"
