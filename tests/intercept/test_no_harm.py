"""Nothing crashes, hangs, or gets another result or errno because it is traced."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, IoRun, compile_c, preload_library, run_traced
from support.process import clean_environment


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The traced directory."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def dropped(run: IoRun) -> int:
    """Events that the trace says it lost."""
    return sum(r.raw["args"]["dropped"] for f in run.trace.files for r in f.records if r.name == "end")


def test_eight_threads_of_streams_and_descriptors(data: Path, tmp_path: Path) -> None:
    """Every call of eight threads is an event; the program ends as it should."""
    program = compile_c(FIXTURES / "mixed_threads.c", tmp_path / "mixed")
    run = run_traced(
        [program, data, "8", "300"], tmp_path, data=str(data), env={"DFTRACER_MAX_STALL_US": "1000000"}
    )
    assert dropped(run) == 0
    assert len(run.events) == int(run.stdout)


def test_results_and_errno_are_the_same(data: Path, tmp_path: Path) -> None:
    """Bad pointers, bad descriptors, every kind of failure: traced and untraced print the same."""
    program = compile_c(FIXTURES / "results.c", tmp_path / "results", "-w", "-fno-builtin")
    plain = subprocess.run(
        [program, data], capture_output=True, text=True, check=True, env=clean_environment()
    )
    (data / "f").unlink()
    run = run_traced([program, data], tmp_path, data=str(data))
    assert run.stdout == plain.stdout


def test_vfork_returns_as_it_does_untraced(data: Path, tmp_path: Path) -> None:
    """Children that exit, that exec and that cannot be made; each is an event of the parent."""
    program = compile_c(FIXTURES / "vfork.c", tmp_path / "vfork")
    plain = subprocess.run(
        [program, data], capture_output=True, text=True, check=False, env=clean_environment()
    )
    run = run_traced([program, data], tmp_path, data=str(data), expect=plain.returncode)
    assert run.stdout == plain.stdout
    assert run.stdout.endswith("refused 1\n")
    children = [e.raw["args"] for e in run.events if e.name == "vfork"]
    assert [c["ret"] > 0 for c in children] == [True] * 7 + [False]
    assert (children[-1]["ret"], children[-1]["errno"]) == (-1, errno.EAGAIN)
    assert run.names_on(data / "kept").count("write") == 5


def test_functions_are_looked_up_by_the_same_caller(data: Path, tmp_path: Path) -> None:
    """RTLD_NEXT means what follows the program, not the tracer; versions that do not exist are not found."""
    compile_c(FIXTURES / "dependency.c", tmp_path / "libdependency.so", "-shared", "-fPIC")
    plugin = compile_c(
        FIXTURES / "plugin.c", tmp_path / "plugin.so", "-shared", "-fPIC", f"-L{tmp_path}", "-ldependency",
        "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip
    program = compile_c(FIXTURES / "lookups.c", tmp_path / "lookups", "-rdynamic")
    version = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}.get(platform.machine())
    if version is None:
        pytest.skip("needs to know the oldest version of the C library's symbols")
    command = [str(program), str(plugin), str(data / "f"), version]
    plain = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment())
    assert plain.returncode == 4
    run = run_traced(command, tmp_path, data=str(data), expect=4)
    assert run.stdout == plain.stdout
    assert run.names_on(data / "f") == ["open", "write", "close"]  # the plugin's


@pytest.mark.parametrize(
    "flags", [(), ("-O2", "-D_FORTIFY_SOURCE=2"), ("-no-pie", "-Wl,-z,lazy"), ("-Wl,-z,now,-z,relro",)]
)
def test_however_it_was_linked(flags: tuple[str, ...], data: Path, tmp_path: Path) -> None:
    """FORTIFY'd calls, non-PIC programs, lazy and immediate binding."""
    program = compile_c(FIXTURES / "each_call.c", tmp_path / "program", "-w", *flags)
    run = run_traced([program, data], tmp_path, data=str(data))
    names = {e.name for e in run.events}
    assert {"open", "read", "pread", "fopen", "fread", "fgets", "stat", "close"} <= names


def test_signal_handlers_that_do_io(data: Path, tmp_path: Path) -> None:
    """A handler's calls inside traced calls; what could not be recorded is counted."""
    program = compile_c(FIXTURES / "signals.c", tmp_path / "signals")
    run = run_traced([program, data], tmp_path, data=str(data), env={"DFTRACER_MAX_STALL_US": "1000000"})
    handled = int(run.stdout)
    seen = len(run.on(data / "side", "pwrite"))
    assert seen <= handled <= seen + dropped(run)
    assert len(run.on(data / "main", "pwrite")) == 20000


def test_first_call_of_a_thread_in_a_handler(data: Path, tmp_path: Path) -> None:
    """Handlers that have interrupted malloc set their thread up; nothing hangs, nothing is lost."""
    program = compile_c(FIXTURES / "first_in_handler.c", tmp_path / "handlers")
    run = run_traced([program, data], tmp_path, data=str(data))
    seen = len(run.on(data / "side", "pwrite"))
    assert int(run.stdout) >= 8
    assert seen <= int(run.stdout) <= seen + dropped(run)


def test_first_call_of_a_process_in_a_handler(data: Path, tmp_path: Path) -> None:
    """No recording begins in a handler: what it does before another call is counted as dropped."""
    program = compile_c(FIXTURES / "first_in_handler.c", tmp_path / "handlers")
    run = run_traced([program, data, "first"], tmp_path, data=str(data))
    assert run.names_on(data / "side") == ["close"]
    assert dropped(run) == int(run.stdout) >= 8


def test_fork_while_threads_are_inside_calls(data: Path, tmp_path: Path) -> None:
    """Children of a busy process live, do I/O, and leave their traces."""
    program = compile_c(FIXTURES / "fork_storm.c", tmp_path / "storm", "-w")
    run = run_traced([program, data, "40"], tmp_path, data=str(data))
    assert run.stdout == "0\n"
    for i in range(40):
        assert run.names_on(data / f"c{i}") == ["open", "write", "close"]


def test_interpreter_shutdown(data: Path, tmp_path: Path) -> None:
    """I/O in atexit handlers, in __del__ and in daemon threads at the end of the interpreter."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import atexit, sys, threading, time
            from dftracer.python import dftracer
            log = dftracer.initialize_log(None, None, -1)
            class Late:
                def __del__(self): open(sys.argv[1] + "/del", "w").close()
            keep = Late()
            atexit.register(lambda: open(sys.argv[1] + "/atexit", "w").close())
            def forever():
                while True: open(sys.argv[1] + "/daemon", "w").close()
            threading.Thread(target=forever, daemon=True).start()
            time.sleep(0.05)
            """
        )
    )
    run = run_traced([sys.executable, program, data], tmp_path, data=str(data), mode="FUNCTION")
    assert run.stderr == ""
    assert "open" in run.names_on(data / "atexit")


def test_a_library_is_left_alone_until_the_loader_is_done_with_it(data: Path, tmp_path: Path) -> None:
    """A library that takes long to relocate, looked for all that time, is loaded and then traced."""
    library = compile_c(
        FIXTURES / "slow_load.c", tmp_path / "slow.so", "-shared", "-fPIC", "-Wl,-z,now,-z,relro"
    )
    program = compile_c(FIXTURES / "load_while_recording.c", tmp_path / "program")
    (data / "busy").touch()
    (data / "used").touch()
    run = run_traced([program, data / "busy", library, data / "used"], tmp_path, data=str(data))
    assert run.stdout == "7\n"
    assert run.names_on(data / "used") == ["open", "close"]


def test_low_descriptors_are_the_programs(data: Path, tmp_path: Path) -> None:
    """The recorder's own files never stand, even for a moment, where a program expects its own."""
    program = compile_c(FIXTURES / "low_numbers.c", tmp_path / "program")
    # Rings of other processes are looked through while the program runs: with many it takes longer.
    rings = [Path(f"/dev/shm/dftracer-0-{os.getpid():08x}{i:08x}.ring") for i in range(300)]
    try:
        for ring in rings:
            ring.write_bytes(b"no ring")
        for _ in range(5):
            run = run_traced([program, data / "out"], tmp_path, data=str(data))
            assert run.stderr == ""
    finally:
        for ring in rings:
            ring.unlink(missing_ok=True)


def test_low_descriptors_are_the_programs_while_the_machine_is_sampled(data: Path, tmp_path: Path) -> None:
    """Nor while the recorder reads a dozen files, as it does once a second."""
    program = compile_c(FIXTURES / "low_numbers.c", tmp_path / "program")
    run = run_traced(
        [program, data / "out", "300000"], tmp_path, data=str(data), env={"DFTRACER_COUNTER_MS": "5"}
    )
    assert run.stderr == ""
    assert (data / "out").stat().st_size == 300_000


def test_the_recorders_thread_does_not_keep_a_pipe_open(tmp_path: Path) -> None:
    """Whoever reads a program's output sees its end when the program closes it, not when the program ends."""
    program = compile_c(FIXTURES / "close_output.c", tmp_path / "program")
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    env = clean_environment(
        LD_PRELOAD=preload_library(),
        DFTRACER_ENABLE="1",
        DFTRACER_INIT="PRELOAD",
        DFTRACER_LOG_FILE=str(tmp_path / "traces" / "t"),
        DFTRACER_DATA_DIR="all",
        DFTRACER_COUNTER_MS="5",
    )
    with subprocess.Popen(
        [program, go_on], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert (running.stdout.read(), running.stderr.read()) == (b"", b"")
        assert running.poll() is None
        go_on.write_text("x")
        assert running.wait(timeout=60) == 0


def test_the_recorders_thread_leaves_locks_alone(data: Path, tmp_path: Path) -> None:
    """A record lock of the program is held until the program releases it."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import fcntl, os, subprocess, sys, time
            locked = open(sys.argv[1], "w")
            fcntl.lockf(locked, fcntl.LOCK_EX)
            threads = "/proc/self/task"
            while not any("dftracer" in open(f"{threads}/{t}/comm").read() for t in os.listdir(threads)):
                open(sys.argv[1] + " too", "w").close()
            time.sleep(0.1)
            test = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
            other = [sys.executable, "-c", test, sys.argv[1]]
            print(subprocess.run(other, stderr=subprocess.DEVNULL).returncode)
            """
        )
    )
    run = run_traced([sys.executable, program, data / "locked"], tmp_path, data=str(data))
    assert run.stdout == "1\n"


@pytest.mark.parametrize("sanitizer", ["address", "thread", "undefined"])
@pytest.mark.parametrize("fixture", ["mixed_threads", "fork_storm"])
def test_programs_under_a_sanitizer(sanitizer: str, fixture: str, data: Path, tmp_path: Path) -> None:
    """A program with a sanitizer's own interceptors runs traced, without a report."""
    if platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip("needs a machine with sanitizers")
    try:
        program = compile_c(FIXTURES / f"{fixture}.c", tmp_path / "program", f"-fsanitize={sanitizer}", "-w")
    except AssertionError as missing:
        pytest.skip(f"needs lib{sanitizer} of the compiler: {missing}")
    # As for every library that is not itself instrumented (docs/interception.md).
    quiet = tmp_path / "tsan.txt"
    quiet.write_text("called_from_lib:libdftracer_core.so\nmutex:nptl_deallocate_tsd\n")
    arguments = {"mixed_threads": ["4", "50"], "fork_storm": ["10"]}[fixture]
    run = run_traced(
        [program, data, *arguments], tmp_path, data=str(data),
        env={"ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0",
             "TSAN_OPTIONS": f"halt_on_error=1:suppressions={quiet}",
             "UBSAN_OPTIONS": "halt_on_error=1"},
    )  # fmt: skip
    assert "Sanitizer" not in run.stderr
    # Their allocators may stay locked in the child of a program with threads: it is left alone, said once.
    left_alone = fixture == "fork_storm" and sanitizer in {"address", "thread"}
    assert run.stderr.count("are not recorded") == left_alone
    if fixture == "fork_storm":
        assert bool(run.names_on(data / "c1")) != left_alone
    assert len([e for e in run.events if e.name == "fopen"]) > 10


def test_soak(data: Path, tmp_path: Path) -> None:
    """A few seconds of everything at once: threads, forks, streams, subprocesses, loads and unloads."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import ctypes, os, subprocess, sys, threading, time
            end = time.monotonic() + float(sys.argv[2])
            count = [0] * 6
            def files(i):
                while time.monotonic() < end:
                    with open(f"{sys.argv[1]}/s{i}", "w+b") as f:
                        f.write(b"x" * 100); f.seek(0); f.read()
                    count[i] += 1
            def processes():
                while time.monotonic() < end:
                    copy = ["cp", f"{sys.argv[1]}/s0", f"{sys.argv[1]}/copy"]
                    subprocess.run(copy, check=False, capture_output=True)
                    pid = os.fork()
                    if pid == 0:
                        open(f"{sys.argv[1]}/forked", "w").close(); os._exit(0)
                    assert os.waitpid(pid, 0)[1] == 0
            ts = [threading.Thread(target=files, args=(i,)) for i in range(6)]
            ts.append(threading.Thread(target=processes))
            [t.start() for t in ts]; [t.join() for t in ts]
            print(sum(count))
            """
        )
    )
    run = run_traced(
        [sys.executable, program, data, "2"],
        tmp_path,
        data=str(data),
        env={"DFTRACER_MAX_STALL_US": "1000000"},
    )
    rounds = int(run.stdout)
    opened = sum(len(run.on(data / f"s{i}", "open")) for i in range(6))
    main = run.on(data / "s1", "open")[0].raw["pid"]
    copies = len([e for e in run.on(data / "s0", "open") if e.raw["pid"] != main])
    assert opened - copies == rounds
    assert dropped(run) == 0
