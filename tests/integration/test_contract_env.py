"""Every environment variable of the format, and the configuration file."""

from __future__ import annotations

import os
import signal
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from support.process import Run

WORK = """
import threading
def body():
    for i in range(3):
        with ai.compute.forward(args={"k": i}): pass
body()
t = threading.Thread(target=body); t.start(); t.join()
"""


def test_compression_off(traced: Callable[..., Run]) -> None:
    """Plain text under `.pfw`, otherwise the same."""
    run = traced(WORK, env={"DFTRACER_TRACE_COMPRESSION": "0"})
    (name,) = run.written
    assert name.endswith("-app.pfw")
    trace = run.trace
    assert len(trace.events) == 6
    assert trace.files[0].closed


def test_inc_metadata_off(traced: Callable[..., Run]) -> None:
    """Only name, category and times."""
    run = traced(WORK + "ai.update(epoch=3)\nwith ai.data.item: pass\n", env={"DFTRACER_INC_METADATA": "0"})
    events = run.trace.events
    assert len(events) == 7
    for event in events:
        assert "k" not in event.args
        assert "epoch" not in event.args
        assert event.ts > 0


def test_disable_tids(traced: Callable[..., Run]) -> None:
    """The process id stands for every thread."""
    run = traced(WORK, env={"DFTRACER_DISABLE_TIDS": "1"})
    assert {e.tid for e in run.trace.events} == {run.trace.events[0].pid}


def test_tids_are_real(traced: Callable[..., Run]) -> None:
    """By default two threads are two tids, the main one with the pid's number."""
    run = traced(WORK)
    tids = {e.tid for e in run.trace.events}
    assert len(tids) == 2
    assert run.trace.events[0].pid in tids


def test_write_buffer_size(traced: Callable[..., Run]) -> None:
    """Bytes of text per gzip member."""
    run = traced(
        "for i in range(5000):\n    with ai.compute.forward(args={'i': i}): pass\n",
        env={"DFTRACER_WRITE_BUFFER_SIZE": "16384"},
    )
    (file,) = run.trace.files
    data, sizes = file.path.read_bytes(), []
    while data:
        inflater = zlib.decompressobj(31)
        sizes.append(len(inflater.decompress(data)))
        data = inflater.unused_data
    assert len(sizes) >= len(file.text) // (2 * 16384)
    assert max(sizes) <= 2 * 16384
    assert len(file.events) == 5000


@pytest.mark.parametrize("level", ["ERROR", "WARN", "INFO", "DEBUG"])
def test_log_level(level: str, traced: Callable[..., Run]) -> None:
    """Messages go to stderr only, and the trace is the same at each level."""
    run = traced(WORK, env={"DFTRACER_LOG_LEVEL": level})
    assert run.stdout == ""
    assert all(line.startswith("dftracer: ") for line in run.stderr.splitlines())
    assert len(run.trace.events) == 6


def test_disable_io_switches_are_accepted(traced: Callable[..., Run]) -> None:
    """Interception off: the user's events remain."""
    for name in ("DFTRACER_DISABLE_IO", "DFTRACER_DISABLE_POSIX", "DFTRACER_DISABLE_STDIO"):
        run = traced(WORK, env={name: "1", "DFTRACER_DATA_DIR": "/nonexistent:/tmp"})
        assert run.stderr == ""
    assert len(run.trace.named("forward")) == 18


def test_set_core_affinity(traced: Callable[..., Run]) -> None:
    """The affinity mask is a PR record."""
    run = traced(WORK, env={"DFTRACER_SET_CORE_AFFINITY": "1"})
    facts = {r.args["name"]: r.args["value"] for r in run.trace.metadata("PR")}
    values = [v for k, v in facts.items() if "affinity" in k]
    assert len(values) == 1
    assert {int(c) for c in values[0].split(",")} == os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, "3"),
        ({"SLURM_PROCID": "5"}, "5"),
        ({"OMPI_COMM_WORLD_RANK": "2"}, "2"),
        ({"PMI_RANK": "4"}, "4"),
        ({"RANK": "1", "SLURM_PROCID": "0"}, "1"),
    ],
)
def test_rank(env: dict[str, str], rank: str, traced: Callable[..., Run]) -> None:
    """The rank of the launcher is a PR record."""
    run = traced(WORK, env=dict(env))
    facts = {r.args["name"]: r.args["value"] for r in run.trace.metadata("PR")}
    assert facts["rank"] == rank
    if "WORLD_SIZE" in env:
        assert facts["world_size"] == "8"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_bind_signals_flushes_and_chains(number: signal.Signals, traced: Callable[..., Run]) -> None:
    """On a fatal signal everything recorded is in the file, and the process dies of it as before."""
    run = traced(
        f"""
        import os
        for i in range(2000):
            with ai.compute.forward(args={{"i": i}}): pass
        os.kill(os.getpid(), {int(number)})
        import time; time.sleep(60)
        """,
        env={"DFTRACER_BIND_SIGNALS": "1"},
        expect=-number,
    )
    assert [e.args["i"] for e in run.trace.named("forward")] == list(range(2000))


def test_bind_signals_chains_to_the_program_s_handlers(program: Callable[..., Run]) -> None:
    """Handlers of the program and of faulthandler still run; Ctrl-C is still an exception."""
    run = program(
        """
        import faulthandler, os, signal, sys, time
        faulthandler.enable()
        calls = []
        signal.signal(signal.SIGTERM, lambda *a: calls.append("term"))
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        with ai.compute: pass
        os.kill(os.getpid(), signal.SIGTERM)
        while not calls: time.sleep(0.001)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        read_end, write_end = os.pipe()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGSEGV)
        """,
        env={"DFTRACER_BIND_SIGNALS": "1"},
        expect=-signal.SIGSEGV,
    )
    assert run.stdout == "interrupted\n"
    assert "Fatal Python error: Segmentation fault" in run.stderr


def test_bind_signals_keeps_blocking_calls_interruptible(program: Callable[..., Run]) -> None:
    """Ctrl-C during a blocking read is still a KeyboardInterrupt."""
    run = program(
        """
        import os, signal, sys, threading, time
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        with ai.compute: pass
        read_end, write_end = os.pipe()
        main = threading.main_thread().ident
        def interrupt():
            time.sleep(0.3)
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(5)
            os.write(write_end, b"restarted")
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            print(os.read(read_end, 100))
        except KeyboardInterrupt:
            print("interrupted")
        """,
        env={"DFTRACER_BIND_SIGNALS": "1"},
    )
    assert run.stdout == "interrupted\n"


BAD = {
    "DFTRACER_ENABLE": "perhaps",
    "DFTRACER_TRACE_COMPRESSION": "maybe",
    "DFTRACER_WRITE_BUFFER_SIZE": "many",
    "DFTRACER_LOG_LEVEL": "LOUD",
    "DFTRACER_INIT": "SOMEHOW",
    "DFTRACER_INC_METADATA": "-",
    "DFTRACER_ROTATE_SIZE": "-5",
    "DFTRACER_RING_SIZE": "12345",
    "DFTRACER_CONFIGURATION": "/does/not/exist.yaml",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_costs_one_line(name: str, traced: Callable[..., Run]) -> None:
    """The line names the variable and the value; the program's result is unchanged."""
    run = traced(WORK + "print('result')\n", env={name: BAD[name]})
    assert run.stdout == "result\n"
    assert run.stderr.count("\n") == 1, run.stderr
    assert name in run.stderr
    assert BAD[name] in run.stderr
    if name != "DFTRACER_ENABLE":
        assert len(run.trace.events) == 6


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.yaml", "trace_compression: false\ndisable_tids: yes\n"),
        ("s.toml", "trace_compression = false\ndisable_tids = 1\n"),
        ("env.yaml", "DFTRACER_TRACE_COMPRESSION: 0\nDFTRACER_DISABLE_TIDS: 1\n"),
    ],
)
def test_configuration_file(name: str, text: str, traced: Callable[..., Run], tmp_path: Path) -> None:
    """The same settings by file."""
    (tmp_path / name).write_text(text)
    run = traced(WORK, env={"DFTRACER_CONFIGURATION": str(tmp_path / name)})
    assert run.stderr == ""
    assert run.written[0].endswith(".pfw")
    assert {e.tid for e in run.trace.events} == {run.trace.events[0].pid}


def test_environment_wins_over_the_file(traced: Callable[..., Run], tmp_path: Path) -> None:
    """flag > environment > file > default."""
    (tmp_path / "s.yaml").write_text("trace_compression: false\n")
    run = traced(
        WORK,
        env={"DFTRACER_CONFIGURATION": str(tmp_path / "s.yaml"), "DFTRACER_TRACE_COMPRESSION": "1"},
    )
    assert run.written[0].endswith(".pfw.gz")


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\xff\xfe", b"{{{", b"a: b: c:\n- [", b"- 1\n- 2\n", b"unknown_setting: 3\n", b"x" * 100_000],
    ids=["empty", "binary", "braces", "broken", "list", "unknown", "long"],
)
def test_a_bad_configuration_file_is_never_fatal(
    content: bytes, traced: Callable[..., Run], tmp_path: Path
) -> None:
    """It is reported, and everything else works."""
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    run = traced(WORK + "print('result')\n", env={"DFTRACER_CONFIGURATION": str(path)})
    assert run.stdout == "result\n"
    assert run.stderr.count("\n") == (1 if content else 0), run.stderr
    assert len(run.trace.events) == 6


def test_two_settings_wrong_two_lines(traced: Callable[..., Run]) -> None:
    """Each mistake is named once per process, also in forked children."""
    run = traced(
        WORK + "import os\nif os.fork() == 0: os._exit(0)\nos.wait()\n",
        env={"DFTRACER_DISABLE_TIDS": "?", "DFTRACER_LOG_LEVEL": "?"},
    )
    # Python 3.12 also warns of the thread that was joined, as long as the system counts it.
    assert sum(line.startswith("dftracer: ") for line in run.stderr.splitlines()) == 2


def test_optimised_and_isolated_interpreters(traced: Callable[..., Run]) -> None:
    """`-O`, `-I`, `-X dev`: same trace, no warning."""
    for flags in (("-O",), ("-I",), ("-X", "dev", "-W", "error")):
        run = traced(WORK, python_flags=flags)
        assert run.stderr == "", (flags, run.stderr)
    assert len(run.trace.named("forward")) == 18
    assert sys.version_info >= (3, 11)
