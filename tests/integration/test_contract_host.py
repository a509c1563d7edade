"""The tracer is a guest: signals, hooks, descriptors and exit status stay the program's own."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from support.process import Run

STATE = """
import atexit, faulthandler, os, signal, sys, threading
def signals():
    lines = open("/proc/self/status").read().splitlines()
    # Signals 32 and 33 are glibc's own: it catches them from the first thread of any kind on.
    own = ~(1 << 31 | 1 << 32)
    return [int(l.split()[1], 16) & own for l in lines if l.startswith(("SigBlk", "SigIgn", "SigCgt"))]
def hooks():
    return (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile(),
            threading.gettrace(), sys.displayhook, sys.stdout, sys.stderr, sys.flags, sys.getswitchinterval(),
            sys.getrecursionlimit(), [signal.getsignal(s) for s in signal.valid_signals()], os.getcwd(),
            os.umask(0o22) and None, sys.argv[:], sys.path[:], faulthandler.is_enabled())
"""


def test_handlers_and_hooks_stay(program: Callable[..., Run]) -> None:
    """Import, initialise, record and finalise change no signal disposition, mask or hook."""
    run = program(
        STATE
        + """
signal.signal(signal.SIGUSR1, lambda *a: None)
before = signals() + list(hooks())
def changed():
    return [(a, b) for a, b in zip(before, signals() + list(hooks()), strict=True) if a != b]
from dftracer.python import ai, dft_fn, dftracer
log = dftracer.initialize_log(None, None, -1)
with ai.compute: pass
assert not changed(), changed()
log.finalize()
assert not changed(), changed()
"""
    )
    assert run.trace.names == ["compute"]


def test_import_and_initialise_in_a_thread(program: Callable[..., Run]) -> None:
    """Nothing needs the main thread."""
    run = program(
        """
        import threading
        def body():
            from dftracer.python import ai, dftracer
            dftracer.initialize_log(None, None, -1)
            with ai.compute: pass
        t = threading.Thread(target=body); t.start(); t.join()
        """
    )
    assert run.trace.names == ["compute"]
    assert run.stderr == ""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGALRM", "SIGHUP", "SIGABRT"])
def test_the_program_s_own_handler_runs(name: str, traced: Callable[..., Run]) -> None:
    """A Python handler is called once, in the main thread, and the program goes on."""
    run = traced(
        f"""
        import os, signal, threading, time
        calls = []
        def handler(number, frame):
            with ai.comm.send: calls.append((number, threading.current_thread() is threading.main_thread()))
        signal.signal(signal.{name}, handler)
        with ai.compute.forward:
            os.kill(os.getpid(), signal.{name})
            while not calls: time.sleep(0.001)
        assert calls == [(signal.{name}, True)]
        """
    )
    trace = run.trace
    assert trace.one("send").parent_id == trace.one("forward").id


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGABRT", "SIGQUIT"])
def test_default_action_is_kept(name: str, traced: Callable[..., Run]) -> None:
    """The exit status tells of the signal, as without the tracer."""
    run = traced(
        f"""
        import os, signal, time
        with ai.compute: pass
        os.kill(os.getpid(), signal.{name})
        time.sleep(60)
        """,
        expect=-getattr(signal, name),
        env={"PYTHONFAULTHANDLER": "0"},
    )
    assert ("KeyboardInterrupt" in run.stderr) == (name == "SIGINT")


def test_tracer_threads_take_no_signals(traced: Callable[..., Run]) -> None:
    """The writer blocks every signal: they go to the program's threads."""
    traced(
        """
        import os
        from dftracer import _core
        with ai.compute: pass
        assert _core.flush()
        tids = os.listdir("/proc/self/task")
        ours = [tid for tid in tids if open(f"/proc/self/task/{tid}/comm").read() == "dftracer\\n"]
        assert ours, tids
        for tid in ours:
            status = open(f"/proc/self/task/{tid}/status").read()
            blocked = int(next(l for l in status.splitlines() if l.startswith("SigBlk")).split()[1], 16)
            for number in (1, 2, 3, 10, 12, 13, 14, 15, 17):
                assert blocked >> (number - 1) & 1, (number, hex(blocked))
        """
    )


def test_the_writer_is_invisible_to_threading(traced: Callable[..., Run]) -> None:
    """No Python thread is started; `threading` sees only the program's own."""
    traced(
        """
        import os, sys, threading
        from dftracer import _core
        with ai.compute: pass
        assert _core.flush()
        assert len(os.listdir("/proc/self/task")) > 1
        assert threading.enumerate() == [threading.main_thread()]
        assert len(sys._current_frames()) == 1
        """
    )


def test_exit_order(program: Callable[..., Run]) -> None:
    """atexit callbacks run in their order, and annotations inside them are recorded, whenever registered."""
    run = program(
        """
        import atexit
        order = []
        def early():
            order.append("early")
            with ai.data.item: pass
            print(order)
        atexit.register(early)
        from dftracer.python import ai, dftracer
        atexit.register(lambda: order.append("between"))
        log = dftracer.initialize_log(None, None, -1)
        def late():
            order.append("late")
            with ai.data.preprocess: pass
        atexit.register(late)
        with ai.compute: pass
        """
    )
    assert run.stdout == "['late', 'between', 'early']\n"
    assert sorted(run.trace.names) == ["compute", "item", "preprocess"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [("pass", 0), ("sys.exit(7)", 7), ("raise SystemExit('message')", 1), ("1 / 0", 1), ("os._exit(9)", 9)],
)
def test_exit_status(ending: str, status: int, traced: Callable[..., Run]) -> None:
    """The status and the streams are the program's."""
    run = traced(f"import os, sys\nwith ai.compute: print('out', flush=True)\n{ending}\n", expect=status)
    assert run.stdout == "out\n"
    assert run.stderr == "" or "ZeroDivisionError" in run.stderr or run.stderr == "message\n"
    assert run.trace.names == ["compute"]


def test_daemon_thread_recording_while_the_interpreter_ends(traced: Callable[..., Run]) -> None:
    """A daemon thread in the midst of events at exit neither hangs nor crashes the end."""
    for _ in range(3):
        run = traced(
            """
            import threading, time
            busy = [threading.Event() for _ in range(3)]
            def body(mine):
                while True:
                    for _ in range(50):
                        with ai.compute.forward(args={"k": 1}): pass
                    mine.set()
                    time.sleep(0.001)
            for each in busy: threading.Thread(target=body, args=(each,), daemon=True).start()
            for each in busy: each.wait()
            """
        )
        assert run.stderr == ""
    assert len(run.trace.events) > 100


def test_descriptors_of_the_program(traced: Callable[..., Run]) -> None:
    """Standard descriptors that the program closed are not taken by the tracer."""
    run = traced(
        """
        import os
        from dftracer import _core
        os.close(0)
        with ai.compute: pass
        _core.flush()
        assert os.open("/dev/null", os.O_RDONLY) == 0
        """
    )
    assert run.trace.names == ["compute"]


def test_lowest_free_descriptor_at_start(program: Callable[..., Run]) -> None:
    """Also when they were closed before the tracer came."""
    run = program(
        """
        import os
        os.close(0)
        from dftracer import _core
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        with ai.compute: pass
        _core.flush()
        assert os.open("/dev/null", os.O_RDONLY) == 0
        """
    )
    assert run.trace.names == ["compute"]


def test_descriptors_closed_under_the_tracer(traced: Callable[..., Run]) -> None:
    """A program that closes all descriptors and opens its own file finds nothing of the trace in it."""
    run = traced(
        """
        import os
        from dftracer import _core
        with ai.compute: pass
        _core.flush()
        os.closerange(3, 1024)
        files = [open(f"mine{i}", "wb", buffering=0) for i in range(50)]
        for i in range(1000):
            with ai.compute.forward: pass
        _core.flush()
        log.finalize()
        for f in files: f.write(b"mine")
        for i in range(50):
            assert open(f"mine{i}", "rb").read() == b"mine", i
        """
    )
    assert all(p.stat().st_size == 4 for p in run.cwd.iterdir())


def test_children_inherit_nothing(traced: Callable[..., Run]) -> None:
    """An exec'ed child sees no descriptor of the tracer, even with `close_fds=False`."""
    run = traced(
        """
        import subprocess
        from dftracer import _core
        with ai.compute: pass
        _core.flush()
        out = subprocess.check_output(["ls", "-l", "/proc/self/fd"], close_fds=False, text=True)
        print(out)
        """
    )
    assert "pfw" not in run.stdout
    assert "shm" not in run.stdout


def test_standard_streams_are_silent(traced: Callable[..., Run]) -> None:
    """A good run prints nothing at the default level."""
    run = traced("for _ in range(1000):\n    with ai.compute: pass")
    assert (run.stdout, run.stderr) == ("", "")


def test_rlimits_and_memory_growth(traced: Callable[..., Run]) -> None:
    """A million events do not grow the process."""
    traced(
        """
        def rss():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        def burst(n):
            for _ in range(n):
                with ai.compute.forward: pass
        burst(200_000)
        before = rss()
        burst(1_000_000)
        assert rss() - before < 32 * 2**20, (before, rss())
        """
    )
