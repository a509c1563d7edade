"""Whatever way a process is started and ends: its trace is there, readable, and nothing is lost."""

from __future__ import annotations

import contextlib
import gzip
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.endings import SOURCE
from support.process import Run, clean_environment, recover, run_program
from support.trace import Trace, read_directory, read_file

ENDINGS = {
    "return": 0,
    "sys.exit": 3,
    "exception": 1,
    "os._exit": 4,
    "SIGTERM": -signal.SIGTERM,
    "SIGINT": (1, -signal.SIGINT),
    "SIGKILL": -signal.SIGKILL,
    "SIGSEGV": -signal.SIGSEGV,
    "abort": -signal.SIGABRT,
    "exec": 0,
}
EVENTS = 300

PARENT = """
import multiprocessing, os, subprocess, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from endings import child, pool_task, work
from dftracer.python import ai, dftracer

CHILD = '''
import sys
sys.path.insert(0, {here!r})
from dftracer.python import dftracer
dftracer.initialize_log(None, None, -1)
from endings import child
child(sys.argv[1], sys.argv[2])
'''

def start(method, how):
    if method == "subprocess":
        code = CHILD.format(here=str(Path(__file__).parent))
        return subprocess.Popen([sys.executable, "-c", code, method, how])
    process = multiprocessing.get_context(method).Process(target=child, args=(method, how))
    process.start()
    return process

def status(process):
    if isinstance(process, subprocess.Popen):
        return process.wait()
    process.join()
    return process.exitcode

if __name__ == "__main__":
    method, endings = sys.argv[1], sys.argv[2].split(",")
    log = dftracer.initialize_log(None, None, -1)
    work(f"{method} parent before")
    # Two at a time: the machine may have two cores only.
    waiting = []
    for how in endings:
        waiting.append((how, start(method, how)))
        if len(waiting) == 2:
            done = waiting.pop(0)
            print(done[0], status(done[1]), flush=True)
    for how, process in waiting:
        print(how, status(process), flush=True)
    if method != "subprocess":
        pool = multiprocessing.get_context(method).Pool(2)
        pids = set(pool.map(pool_task, [f"{method} terminate {i}" for i in range(4)], chunksize=1))
        pool.terminate()
        pool.join()
        print("terminate", len(pids) > 0, flush=True)
    work(f"{method} parent after")
"""


def _assert_complete(trace: Trace, cases: list[str]) -> None:
    found = Counter((e.args["case"], e.args["i"]) for e in trace.named("forward"))
    for case in cases:
        missing = [i for i in range(EVENTS) if found[(case, i)] != 1]
        assert missing == [], f"{case}: {len(missing)} events lost or doubled, e.g. {missing[:5]}"
    assert len(found) == len(cases) * EVENTS
    assert len(trace.named("item")) == len(cases), "one call of the decorated function in each case"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver", "subprocess"])
def test_every_ending(method: str, tmp_path: Path) -> None:
    """One parent, a child for every ending; each event of each process exactly once in the traces."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "endings.py").write_text(SOURCE)
    # multiprocessing cannot wait for a process that was replaced, yet exec is as real there as anywhere.
    run = run_program(tmp_path, PARENT, argv=(method, ",".join(ENDINGS)))
    statuses = dict(line.rsplit(" ", 1) for line in run.stdout.splitlines())
    for how, expected in ENDINGS.items():
        allowed = expected if isinstance(expected, tuple) else (expected,)
        assert int(statuses[how]) in allowed, f"{how}: {statuses[how]}, the exit status is the program's own"
    before = run.trace
    recover(run.trace_dir)
    trace = run.trace
    cases = [f"{method} parent before", f"{method} parent after", *(f"{method} {how}" for how in ENDINGS)]
    if method != "subprocess":
        cases += [f"{method} terminate {i}" for i in range(4)]
    _assert_complete(trace, cases)
    # What exec put in the place of the process wrote a file of its own.
    assert [e.args["case"] for e in trace.named("backward")] == [f"{method} exec"]
    exec_pids = {e.pid for e in trace.named("forward") if e.args["case"] == f"{method} exec"}
    assert {e.pid for e in trace.named("backward")} == exec_pids
    graceful = ("return", "sys.exit", "exception")
    ended_well = {f"{method} {how}" for how in graceful} | {
        f"{method} parent before",
        f"{method} parent after",
    }
    closed = {e.args["case"] for f in before if f.closed for e in f.events if e.name == "forward"}
    assert ended_well <= closed
    for file in trace:
        assert file.end_record.args["dropped"] == 0
    assert [p.name for p in run.trace_dir.iterdir() if not p.name.endswith(".pfw.gz")] == []


def _start_alone(directory: Path, source: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=directory,
        env=clean_environment(
            DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(directory / "t"), DFTRACER_DISABLE_IO="1", **env
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("compression", ["1", "0"])
def test_killed_alone(compression: str, tmp_path: Path) -> None:
    """No other process helps: the file is valid as it is, and recovery brings the rest, once."""
    process = _start_alone(
        tmp_path,
        """
        import os, signal
        from dftracer import _core
        from dftracer.python import ai, dftracer
        dftracer.initialize_log(None, None, -1)
        for i in range(1000):
            with ai.compute.forward(args={"i": i}): pass
        assert _core.flush()
        for i in range(1000, 3000):
            with ai.compute.forward(args={"i": i}): pass
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        DFTRACER_TRACE_COMPRESSION=compression,
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    (path,) = tmp_path.glob("*.pfw*")
    left = read_file(path)
    assert not left.closed
    there = [e.args["i"] for e in left.events]
    assert there == list(range(len(there)))
    assert len(there) >= 1000, "what was flushed is on disk"
    recover(tmp_path)
    whole = read_file(path)
    assert [e.args["i"] for e in whole.events] == list(range(3000))
    assert whole.closed
    assert whole.end_record.args["recovered"] is True
    assert sorted(r.id for r in whole.records)[0] == 1
    content = path.read_bytes()
    recover(tmp_path)
    assert path.read_bytes() == content, "recovery happens once"
    assert list(tmp_path.iterdir()) == [path]


def test_killed_before_anything_was_written(tmp_path: Path) -> None:
    """Killed in its first moment: recovery makes the trace from the ring alone."""
    process = _start_alone(
        tmp_path,
        """
        import os, signal
        from dftracer.python import ai, dftracer
        dftracer.initialize_log("named.pfw", None, -1)
        with ai.compute.forward: pass
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    recover(tmp_path)
    assert [e.name for e in read_directory(tmp_path).events] == ["forward"]


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Every event whose end the program has reported is in the trace, none twice."""
    for attempt, pause in enumerate((0.0, 0.013, 0.05, 0.11, 0.2)):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        process = _start_alone(
            folder,
            """
            import sys, threading, time
            from dftracer.python import ai, dftracer
            dftracer.initialize_log(None, None, -1)
            def body(k):
                i = 0
                while True:
                    with ai.compute.forward(args={"k": k, "i": i, "pad": "x" * (i % 700)}): pass
                    i += 1
                    if i % 100 == 0:
                        time.sleep(0.001)
                        if k == 0: print(i, flush=True)
            for k in range(3): threading.Thread(target=body, args=(k,), daemon=True).start()
            threading.Event().wait()
            """,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(pause)
        process.kill()
        output, _ = process.communicate(timeout=60)
        reported = [100] + [int(line) for line in output.split("\n")[:-1] if line]
        for path in folder.glob("*.pfw.gz"):
            with contextlib.suppress(EOFError):  # a write ends at a page when its process is killed
                gzip.decompress(path.read_bytes())
        recover(folder)
        trace = read_directory(folder)
        (file,) = trace.files
        dropped = file.end_record.args["dropped"]
        for k in range(3):
            mine = [e.args["i"] for e in trace.named("forward") if e.args["k"] == k]
            assert len(set(mine)) == len(mine), "doubled"
            if dropped == 0:
                assert sorted(mine) == list(range(len(mine))), "a hole"
            if k == 0:
                assert len(mine) + dropped >= max(reported)


def test_killed_while_it_begins_or_ends(tmp_path: Path) -> None:
    """Death within the first write, or between the last one and the end: one `[`, one `end`, one `]`."""
    source = """
        import os, signal, sys
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        for i in range(200):
            with ai.compute.forward(args={"i": i}): pass
        if os.fork() == 0:
            # The child kills its parent while that begins, writes, or ends.
            parent = os.getppid()
            deadline = log.get_time() + int(sys.argv[1])
            while log.get_time() < deadline: pass
            os.kill(parent, signal.SIGKILL)
            os._exit(0)
        log.finalize()
        """
    for attempt in range(24):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source), str(attempt * 150)],
            env=clean_environment(
                DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(folder / "t"), DFTRACER_DISABLE_IO="1"
            ),
            check=False,
            timeout=60,
        )
        recover(folder)
        (file,) = read_directory(folder).files
        assert [e.args["i"] for e in file.events] == list(range(200))
        assert file.closed
        assert file.end_record is file.records[-1]
        assert {"HH", "FH", "SH", "start"} <= {r.name for r in file.records}


def test_several_readers_recover_at_once(tmp_path: Path) -> None:
    """The rest of a dead process's events is appended once, whoever comes first."""
    process = _start_alone(
        tmp_path,
        """
        import os, signal
        from dftracer.python import ai, dftracer
        dftracer.initialize_log(None, None, -1)
        for i in range(3000):
            with ai.compute.forward(args={"i": i}): pass
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    process.communicate(timeout=60)
    code = "import sys; from dftracer import _core; _core.recover(sys.argv[1])"
    readers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=clean_environment())
        for _ in range(6)
    ]
    assert [reader.wait(60) for reader in readers] == [0] * 6
    (file,) = read_directory(tmp_path).files
    assert [e.args["i"] for e in file.events] == list(range(3000))
    assert file.end_record.args["recovered"] is True


def test_recover_leaves_the_living_alone(tmp_path: Path) -> None:
    """A reader that recovers a directory does not touch the trace of a running process."""
    process = _start_alone(
        tmp_path,
        """
        import sys, time
        from dftracer.python import ai, dftracer
        dftracer.initialize_log(None, None, -1)
        for i in range(100):
            with ai.compute.forward(args={"i": i}): pass
        print("ready", flush=True)
        sys.stdin.readline()
        for i in range(100, 200):
            with ai.compute.forward(args={"i": i}): pass
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    recover(tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == 0
    (file,) = read_directory(tmp_path).files
    assert [e.args["i"] for e in file.events] == list(range(200))
    assert file.closed


def test_recover_of_odd_directories(tmp_path: Path) -> None:
    """Nothing to do, no such directory, foreign files: an answer, no exception, nothing touched."""
    (tmp_path / "x.pfw.gz").write_bytes(b"not gzip")
    (tmp_path / "y.ring").write_bytes(b"DFTRING1" + os.urandom(5000))
    empty = tmp_path / "dftracer-0-0123456789abcdef.ring"
    empty.touch(mode=0o600)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name.startswith(("x", "y"))}
    recover(tmp_path)
    recover(tmp_path / "nowhere")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name.startswith(("x", "y"))} == before


DAMAGE = """
import glob, os, random, sys
from dftracer import _core
folder = sys.argv[1]
(ring,) = glob.glob(folder + "/*.ring")
good = open(ring, "rb").read()
traces = {p: open(p, "rb").read() for p in glob.glob(folder + "/*.pfw.gz")}
used = [i for i in range(len(good)) if good[i]]
odd = [2**64 - 1, 2**63, 2**32, 2**31 - 8, len(good), len(good) - 8, 1 << 20, 4097]
for seed in range(200):
    print(seed, flush=True)
    chance = random.Random(seed)
    data, at = bytearray(good), chance.choice(used)
    kind = chance.choice(["flip", "many", "cut", "zero", "number"])
    if kind == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "many":
        for _ in range(20): data[chance.choice(used)] = chance.randrange(256)
    elif kind == "cut":
        del data[chance.choice([0, 7, 8, 100, 4096, 5000, at]):]
    elif kind == "zero":
        data[at : at + 64] = bytes(64)
    else:
        at &= ~7
        data[at : at + 8] = chance.choice(odd).to_bytes(8, "little")
    for path in glob.glob(folder + "/*"): os.unlink(path)
    for path, content in traces.items(): open(path, "wb").write(content)
    open(ring, "wb").write(data)
    os.chmod(ring, 0o600)
    _core.recover(folder)
print("survived")
"""


def test_damaged_rings(tmp_path: Path) -> None:
    """A ring is a file like any other: whatever it holds, a reader (or a traced program) survives it."""
    process = _start_alone(
        tmp_path,
        """
        import os, signal
        from dftracer import _core
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        for i in range(50):
            with ai.compute.forward(args={"i": i}): pass
        assert _core.flush()
        for i in range(50):
            with ai.compute.forward(args={"i": i}): pass
            log.log_event("e", "c", log.get_time(), 1, {"i": i})
            log.log_metadata_event("k", "v")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        DFTRACER_RING_DIR=str(tmp_path),
    )
    process.communicate(timeout=60)
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(tmp_path)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    last = done.stdout.split()[-1:]
    assert last == ["survived"], f"damage {last}: exit {done.returncode}\n{done.stderr}"


def test_fork_while_threads_record(program: Callable[..., Run]) -> None:
    """Forking in the midst of recording threads neither hangs nor mixes up files."""
    run = program(
        """
        import os, threading, time
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        stop = threading.Event()
        def body():
            while not stop.is_set():
                with ai.data.item(args={"pid": os.getpid()}): pass
                time.sleep(0)
        threads = [threading.Thread(target=body) for _ in range(4)]
        [t.start() for t in threads]
        for n in range(20):
            pid = os.fork()
            if pid == 0:
                for i in range(50):
                    with ai.compute.forward(args={"pid": os.getpid(), "n": n, "i": i}): pass
                def more():
                    with ai.compute.backward(args={"pid": os.getpid(), "n": n}): pass
                t = threading.Thread(target=more); t.start(); t.join()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        [t.join() for t in threads]
        """
    )
    recover(run.trace_dir)
    trace = run.trace
    assert all(e.args["pid"] == e.pid for e in trace.events)
    assert Counter(e.args["n"] for e in trace.named("forward")) == dict.fromkeys(range(20), 50)
    assert len(trace.named("backward")) == 20
    assert all(len({e.pid for e in f.events}) == 1 for f in trace)


def test_fork_inside_an_event(traced: Callable[..., Run]) -> None:
    """Grandchildren too; an event open in the parent is closed there only, and children start at the top."""
    run = traced(
        """
        import os
        with ai.pipeline.train:
            if os.fork() == 0:
                with ai.compute.forward:
                    if os.fork() == 0:
                        with ai.compute.backward: pass
                        os._exit(0)
                    os.wait()
                os._exit(0)
            os.wait()
        """
    )
    recover(run.trace_dir)
    trace = run.trace
    assert sorted(trace.names) == ["backward", "forward", "train"]
    assert len(trace.files) == 3
    assert trace.one("forward").level == 1
    assert trace.one("backward").level == 1


def test_fork_child_that_leaves_the_block(traced: Callable[..., Run]) -> None:
    """A child that runs on to the parent's `__exit__` (and to the end of the program) harms nothing."""
    run = traced(
        """
        import os, sys
        with ai.pipeline.train:
            pid = os.fork()
        with ai.compute.forward(args={"child": pid == 0}): pass
        if pid: os.wait()
        """
    )
    trace = run.trace
    assert sorted(e.args["child"] for e in trace.named("forward")) == [False, True]
    assert all(e.level == 1 for e in trace.named("forward"))
    parent = next(e.pid for e in trace.named("forward") if not e.args["child"])
    assert [e.pid for e in trace.named("train")] == [parent], "the event belongs to whom began it"


def test_finalize_in_the_parent_only(traced: Callable[..., Run]) -> None:
    """A child of a finalised parent may record again once it initialises."""
    run = traced(
        """
        import os
        with ai.compute.forward: pass
        log.finalize()
        if os.fork() == 0:
            with ai.compute.step: pass
            dftracer.initialize_log(None, None, -1)
            with ai.compute.backward: pass
            os._exit(0)
        assert os.wait()[1] == 0
        """
    )
    recover(run.trace_dir)
    assert sorted(run.trace.names) == ["backward", "forward"]


def test_failed_exec_goes_on(traced: Callable[..., Run]) -> None:
    """exec that fails leaves a recorder that records."""
    run = traced(
        """
        import os
        with ai.compute.forward: pass
        try: os.execv("/does/not/exist", ["x"])
        except FileNotFoundError: pass
        with ai.compute.backward: pass
        """
    )
    (file,) = run.trace.files
    assert [e.name for e in file.events] == ["forward", "backward"]
    assert file.closed


def test_subprocess_and_posix_spawn_of_other_programs(traced: Callable[..., Run]) -> None:
    """Children that are no Python leave the parent's trace alone."""
    run = traced(
        """
        import os, subprocess
        with ai.compute.forward: subprocess.run(["true"], check=True)
        with ai.compute.forward: os.system("true")
        with ai.compute.forward: os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ), 0)
        with ai.compute.forward: subprocess.run(["true"], check=True, preexec_fn=lambda: None)
        """
    )
    (file,) = run.trace.files
    assert len(file.events) == 4


def test_concurrent_futures(program: Callable[..., Run]) -> None:
    """ProcessPoolExecutor workers are processes like any other."""
    run = program(
        """
        import concurrent.futures, multiprocessing
        from dftracer.python import ai, dftracer
        @ai.data.item
        def square(x): return x * x
        if __name__ == "__main__":
            dftracer.initialize_log("pool.pfw", None, -1)
            for method in ("fork", "spawn"):
                context = multiprocessing.get_context(method)
                with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
                    assert list(pool.map(square, range(10))) == [x * x for x in range(10)]
        """
    )
    recover(run.cwd)
    trace = read_directory(run.cwd)
    assert len(trace.named("item")) == 20
    assert all(f.path.name.startswith("pool") for f in trace), [f.path.name for f in trace]


LOADER = """
import sys
import torch.utils.data
from dftracer.python import ai, dftracer

class Numbers(torch.utils.data.Dataset):
    @ai.data.item.init
    def __init__(self): pass
    def __len__(self): return 32
    @ai.data.item
    def __getitem__(self, i):
        with ai.data.preprocess(args={"i": i}):
            return i

if __name__ == "__main__":
    log = dftracer.initialize_log(None, None, -1)
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=2, num_workers=int(sys.argv[2]), persistent_workers=True,
        multiprocessing_context=sys.argv[1])
    for epoch in ai.pipeline.epoch.iter(range(2)):
        seen = []
        for batch in ai.dataloader.fetch.iter(loader):
            seen += batch.tolist()
        assert sorted(seen) == list(range(32))
"""


@pytest.mark.parametrize(("method", "workers"), [("fork", 4), ("spawn", 2), ("forkserver", 2)])
def test_data_loader_workers(method: str, workers: int, tmp_path: Path) -> None:
    """torch DataLoader, persistent workers: the event of every item is there."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run = run_program(tmp_path, LOADER, argv=(method, str(workers)), forked=True)
    recover(run.trace_dir)
    trace = run.trace
    assert Counter(e.args["i"] for e in trace.named("preprocess")) == dict.fromkeys(range(32), 2)
    assert len(trace.named("item")) == 64
    assert len({e.pid for e in trace.named("item")}) == workers
    assert len(trace.named("fetch.block")) == 32
    assert all(f.end_record.args["dropped"] == 0 for f in trace)
