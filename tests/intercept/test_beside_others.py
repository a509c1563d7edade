"""Beside other tools, and in programs that restrict themselves: each compared with itself, untraced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, compile_c, preload_library, run_traced
from support.process import clean_environment
from support.trace import read_directory

FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
NEW_PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"))
LONG = "import sys, time\nfor i in range(60):\n    open(sys.argv[1], 'a').write('x'); time.sleep(0.004)"


@pytest.fixture(params=["torn down", "libfaketime"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A library that is preloaded after ours."""
    if request.param == "torn down":
        return compile_c(FIXTURES / "torn_down.c", tmp_path / "other.so", "-shared", "-fPIC")
    if not FAKETIME:
        pytest.skip("needs libfaketime, which is tested for itself")
    return FAKETIME[0]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_library_that_is_torn_down_before_us(other: Path, lasting: bool, tmp_path: Path) -> None:
    """Whether we have a thread by then or not, nothing calls into what is gone; and the trace is complete."""
    (tmp_path / "file").write_text("x")
    program = [sys.executable, "-S", "-c", LONG] if lasting else ["cat"]
    for _ in range(10):
        run = run_traced(
            [*program, tmp_path / "file"],
            tmp_path,
            env={"LD_PRELOAD": f"{preload_library()}:{other}", "FAKETIME": "-1d"},
            mode="HYBRID",
        )
        assert run.stderr == ""
    ends = [r for f in run.trace.files for r in f.records if r.name == "end"]
    assert len(ends) == len(run.trace.files) == 10


@pytest.mark.parametrize("how", [[], ["seccomp"], ["tsync"]])
def test_a_filter_that_ends_the_process_at_an_unexpected_call(how: list[str], tmp_path: Path) -> None:
    """The trace ends where the filter begins, and the program does not end at a call of ours."""
    program = compile_c(FIXTURES / "filters_itself.c", tmp_path / "program", "-w")
    plain = subprocess.run([program, tmp_path / "plain", *how], capture_output=True, text=True, check=False)
    run = run_traced([program, tmp_path / "data", *how], tmp_path, expect=None)
    assert (run.returncode, run.stdout, run.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert run.returncode == 0
    assert run.names_on(tmp_path / "data") == ["open", *["write"] * 50]


def test_a_user_namespace_of_its_own(tmp_path: Path) -> None:
    """Our thread is not there when it would be in the way, and comes back: nothing is lost."""
    program = compile_c(FIXTURES / "user_namespace.c", tmp_path / "program")
    plain = subprocess.run([program, tmp_path / "plain"], capture_output=True, text=True, check=False)
    for attempt in range(5):  # a busy machine uses up the 0.2 s for which our thread is waited for
        place = tmp_path / str(attempt)
        place.mkdir()
        run = run_traced([program, place / "data"], place, expect=None)
        if run.stdout == plain.stdout:
            break
    assert (run.returncode, run.stdout) == (plain.returncode, plain.stdout)
    assert Counter(run.names_on(place / "data"))["write"] == 100


@pytest.mark.parametrize("python", NEW_PYTHONS, ids=lambda p: p.parents[1].name)
def test_no_warning_of_threads_that_the_program_does_not_have(python: Path, tmp_path: Path) -> None:
    """Python 3.12 and later warn of fork() in a process with threads: ours is not one of them."""
    program = tmp_path / "forks.py"
    program.write_text(
        f"{LONG}\n"
        "import os\n"
        "large = b'x' * (200 << 20)  # a fork takes longer than a moment\n"
        "for i in range(2000):\n"
        "    os.path.exists(sys.argv[1] + str(i))  # and there are many events\n"
        "for i in range(5):\n"
        "    if (pid := os.fork()) == 0:\n"
        "        open(sys.argv[1] + 'c', 'a').write('y'); os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "    for i in range(10):\n"
        "        open(sys.argv[1], 'a').write('x'); time.sleep(0.004)\n"
    )
    run = run_traced([python, "-W", "error::DeprecationWarning", program, tmp_path / "data"], tmp_path)
    assert run.stderr == ""
    assert run.names_on(tmp_path / "data").count("write") == 60 + 5 * 10
    assert run.names_on(tmp_path / "datac").count("write") == 5


def test_short_commands_lose_nothing_and_leave_nothing_without_need(tmp_path: Path) -> None:
    """A loop of commands: one trace for each that has read a file, none for others, no event dropped."""
    (tmp_path / "file").write_text("x")
    script = "for i in 1 2 3 4 5 6 7 8 9 10; do cat file >/dev/null; true; test -e file; /bin/true; done"
    for shell in ("sh", "bash"):
        run = run_traced([shell, "-c", script], tmp_path / shell, cwd=tmp_path)
        reads = run.on(tmp_path / "file", "read")
        assert len([e for e in reads if e.raw["args"]["ret"] == 1]) == 10
        assert len({e.pid for e in reads}) == 10
        ends = [r.raw["args"] for f in run.trace.files for r in f.records if r.name == "end"]
        assert [e["dropped"] for e in ends] == [0] * len(run.trace.files)
        assert len(run.trace.files) in (10, 11)  # the shell itself has one if it took its time


def test_a_short_process_starts_no_thread(tmp_path: Path) -> None:
    """Seen by the kernel: the only thread of a command is its own."""
    env = clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_INIT="PRELOAD",
        DFTRACER_LOG_FILE=str(tmp_path / "traces" / "t"),
        LD_PRELOAD=preload_library(),
    )
    code = "cat /proc/self/cmdline file > out; ls /proc/self/task"
    (tmp_path / "file").write_text("x")
    done = subprocess.run(
        ["sh", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.split()) == 1
    assert len(read_directory(tmp_path / "traces").files) >= 1
    assert os.listdir(tmp_path / "traces")
