"""A program under `run` and `collect` sees and does what it would without: each compared with itself."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.iotrace import compile_c
from support.process import clean_environment

FIXTURES = Path(__file__).parent / "fixtures"
DFTRACER = str(Path(sys.executable).with_name("dftracer"))
MODES = {
    "run": [DFTRACER, "run", "--"],
    "run -q": [DFTRACER, "run", "-q", "--"],
    "run --report": [DFTRACER, "run", "--report", "--"],
    "collect": [DFTRACER, "collect", "--"],
    "collect -q": [DFTRACER, "collect", "-q", "--"],
    "python -m": [sys.executable, "-m", "dftracer.cli", "run", "--"],
}
USUAL = ["run", "run -q", "collect"]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program that tells what it sees."""
    return str(compile_c(FIXTURES / "what_it_sees.c", tmp_path_factory.mktemp("probe") / "probe"))


def shell(script: str, cwd: Path, launcher: list[str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script that starts "$@", the program with or without the launcher."""
    return subprocess.run(
        ["bash", "-c", script, "script", *launcher, *args],
        cwd=cwd,
        env=clean_environment(LC_ALL=None, LC_CTYPE=None, LANG=None),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=60,
        check=False,
    )


SITUATIONS = {
    "plain": '"$@" < /dev/null',
    "descriptors": 'exec 7</etc/hostname 12>>log; "$@" 0< <(echo in; echo put) 9> >(cat)',
    "a socket's number": 'exec 3<>log; export LISTEN_FDS=1; "$@" </dev/null',
    "stdin": 'printf "a\\nb\\nc" | "$@"',
    "ignored": "trap '' PIPE XFSZ USR1 HUP INT QUIT TERM CHLD TSTP; \"$@\" </dev/null; exit $?",
    "ignored, exec": "trap '' PIPE XFSZ; exec \"$@\" </dev/null",
    "nothing ignored": 'trap - PIPE XFSZ; exec "$@" </dev/null',
    "blocked": "exec python3 -c 'import os, signal, sys; signal.pthread_sigmask(0, [10, 12, 15, 17]); "
    'os.execvp(sys.argv[1], sys.argv[1:])\' "$@" </dev/null',
    "nice": 'nice -n 5 "$@" </dev/null',
    "umask": 'umask 037; "$@" </dev/null',
    "limits": 'ulimit -Sn 200; ulimit -Sc 0; ulimit -s 4096; ulimit -Sv 4000000; "$@" </dev/null',
    "C locale": 'LANG=C "$@" </dev/null',
    "environment": 'env -i PATH="$PATH" ODD="$(printf "a\\nb")" BAD="$(printf "\\377")" "$@" </dev/null',
    "session": 'setsid -w "$@" </dev/null',
    "closed": '"$@" <&- 2>&-',
    "deleted directory": 'mkdir gone; cd gone; rmdir ../gone; TMPDIR=/tmp "$@" </dev/null',
    "arguments": '"$@" -- -q --json "a b" "" "*" </dev/null',
}


# Every situation with the two commands; their options in the situations that differ most.
MOST_UNLIKE = ("plain", "descriptors", "ignored", "environment")


def _thorough(situation: str, mode: str) -> list[pytest.MarkDecorator]:
    return [] if mode in ("run", "collect") or situation in MOST_UNLIKE else [pytest.mark.thorough]


@pytest.mark.parametrize(
    ("situation", "mode"),
    [pytest.param(each, mode, marks=_thorough(each, mode)) for each in SITUATIONS for mode in MODES],
)
def test_it_is_started_as_without(situation: str, mode: str, probe: str, tmp_path: Path) -> None:
    """Descriptors, signals, group, nice, umask, limits, directory, environment, stdin, exit code."""
    if mode == "python -m" and situation in ("ignored, exec", "blocked", "deleted directory"):
        pytest.skip("Python has forgotten what it was given, or cannot find itself")
    (tmp_path / "log").touch()
    plain = shell(SITUATIONS[situation], tmp_path, [], probe)
    traced = shell(SITUATIONS[situation], tmp_path, MODES[mode], probe)
    assert traced.returncode == plain.returncode == 7, traced.stderr
    seen, expected = traced.stdout.splitlines(), plain.stdout.splitlines()
    if situation == "session":  # a new one each time
        seen, expected = (
            [line for line in each if not line.startswith("group")] for each in (seen, expected)
        )
    if mode == "run --report":  # on stdout, after the program
        seen = seen[: len(expected)]
    assert [line for line in seen if line not in expected] == []
    assert seen == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "ending", ["exit 0", "exit 3", "exit 255", "kill -TERM $$", "kill -KILL $$", "kill -SEGV $$"]
)
def test_it_ends_as_without(ending: str, mode: str, tmp_path: Path) -> None:
    """Exit codes, and signals as signals."""
    ends = [
        subprocess.run(
            [*launcher, "sh", "-c", ending],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode
        for launcher in ([], MODES[mode])
    ]
    assert ends[0] == ends[1]


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(pid: int) -> str:
    """As `ps` shows it; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextlib.contextmanager
def counting(launcher: list[str], tmp_path: Path, *signals: str):  # type: ignore[no-untyped-def]
    """A program that counts signals: what was started, the program's own pid, and how to get its answer."""
    ready = tmp_path / f"ready{len(launcher)}"
    started = subprocess.Popen(
        [*launcher, sys.executable, str(FIXTURES / "counts_signals.py"), str(ready), *signals],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip

    def answer() -> str:
        Path(f"{ready}.enough").touch()
        return started.communicate(timeout=60)[0]

    try:
        until(ready.exists)
        yield started, int(ready.read_text()), answer
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        if started.stdout is not None:
            started.stdout.close()


SIGNALS = [
    "SIGUSR1",
    "SIGUSR2",
    "SIGTERM",
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGALRM",
    "SIGWINCH",
    "SIGCONT",
    "SIGURG",
]


@pytest.mark.parametrize("mode", USUAL)
@pytest.mark.parametrize("sent_to", ["pid", "group"])
def test_it_gets_every_signal_once(sent_to: str, mode: str, tmp_path: Path) -> None:
    """Sent to the process that was started, or to its group as srun and a shell do."""
    answers = []
    for launcher in ([], MODES[mode]):
        with counting(launcher, tmp_path, *SIGNALS) as (started, _, answer):
            for name in SIGNALS:
                (os.kill if sent_to == "pid" else os.killpg)(started.pid, signal.Signals[name])
                time.sleep(0.05)
            answers.append(answer())
            assert started.returncode == 0
    assert answers[0] == answers[1] == str(dict.fromkeys(SIGNALS, 1)) + "\n"


@pytest.mark.parametrize("mode", ["run", "run -q", "collect"])
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGTSTP])
@pytest.mark.parametrize("whom", ["started", "program", "group"])
def test_it_stops_and_continues(whom: str, how: signal.Signals, mode: str, tmp_path: Path) -> None:
    """Whoever is stopped or continued, both are."""
    with counting(MODES[mode], tmp_path, "SIGUSR1") as (started, program, answer):
        target = {"started": started.pid, "program": program, "group": -started.pid}[whom]
        with contextlib.suppress(PermissionError):
            os.kill(target, how)
        if how == signal.SIGTSTP:
            # In a session without a terminal a group is orphaned, and this does not stop it: as without us.
            time.sleep(0.3)
            assert state(started.pid) != "T"
            assert state(program) != "T"
        else:
            until(lambda: state(started.pid) == "T" and state(program) == "T")
            os.kill(target, signal.SIGCONT)
            until(lambda: state(started.pid) not in ("T", "") and state(program) not in ("T", ""))
            time.sleep(0.3)
            assert state(program) != "T"
        assert answer() == "{'SIGUSR1': 0}\n"
        assert started.returncode == 0


# A launcher that gets no processor for a while before each process that it starts.
SLOW_LAUNCHER = """
import os, sys, time
from dftracer.cli import main
fork = os.fork
os.fork = lambda: (time.sleep(0.3), fork())[1]
sys.exit(main(sys.argv[1:]))
"""


def test_it_may_be_stopped_as_soon_as_the_program_runs(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}; kill -STOP $PPID; exec sleep 60"
    started = subprocess.Popen(
        [sys.executable, "-c", SLOW_LAUNCHER, "run", "--", "sh", "-c", script],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: state(started.pid) == "T")
        until(lambda: state(int(pid.read_text())) == "T")
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.mark.parametrize("mode", USUAL)
def test_a_shell_can_suspend_it_and_bring_it_back(mode: str, tmp_path: Path) -> None:
    """At a terminal: Ctrl-Z, `jobs`, `fg`, Ctrl-C, each as often as it was typed."""
    seen = [_at_a_terminal(tmp_path, launcher) for launcher in ([], MODES[mode])]
    assert seen[0] == seen[1]
    assert "Stopped" in seen[0]
    assert "{'SIGINT': 1, 'SIGCONT': 1}" in seen[0]


def _at_a_terminal(tmp_path: Path, launcher: list[str]) -> list[str]:
    ready = tmp_path / f"terminal{len(launcher)}"
    program = [sys.executable, str(FIXTURES / "counts_signals.py"), str(ready), "SIGINT", "SIGCONT"]
    (tmp_path / f"rc{len(launcher)}").write_text("PS1=''; PS2=''; stty -echo\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execvpe(
            "bash", ["bash", "--norc", "--noprofile", "-i"], {**clean_environment(PS1=""), "TERM": "dumb"}
        )
    text = b""

    def type_(line: str) -> None:
        os.write(terminal, line.encode())

    def shown(wanted: str) -> None:
        nonlocal text
        os.set_blocking(terminal, False)

        def there() -> bool:
            nonlocal text
            with contextlib.suppress(BlockingIOError, OSError):
                text += os.read(terminal, 4096)
            return wanted.encode() in text

        until(there)

    try:
        type_("stty -echo; PS1=; echo be''gin\n")
        shown("begin")
        type_(" ".join([*launcher, *program]) + " 2>/dev/null; echo code=$?\n")
        until(ready.exists)
        started = int(ready.read_text())
        type_("\x1a")
        until(lambda: state(started) == "T")
        shown("Stopped")
        type_("fg >/dev/null; echo again=$?\n")
        until(lambda: state(started) not in ("T", ""))
        time.sleep(0.3)
        type_("\x03")
        time.sleep(0.3)
        Path(f"{ready}.enough").touch()
        shown("again=")
        type_("exit\n")
    finally:
        os.close(terminal)
        os.kill(pid, signal.SIGHUP)
        os.waitpid(pid, 0)
    words = []
    for line in text.decode(errors="replace").splitlines():
        if "Stopped" in line:
            words.append("Stopped")
        elif line.startswith(("{", "code=", "again=")):
            words.append(line.strip())
    return words


def members(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


@pytest.mark.parametrize("mode", USUAL)
@pytest.mark.parametrize("option", [[], ["-s", "KILL"], ["--foreground"], ["-s", "USR1"]])
def test_nothing_is_left_behind_by_timeout(option: list[str], mode: str, tmp_path: Path) -> None:
    """`timeout` ends the program and everything around it, with the same code."""
    codes = []
    for launcher in ([], MODES[mode]):
        started = subprocess.Popen(
            ["timeout", *option, "1.5", *launcher, "sleep", "100"],
            cwd=tmp_path, env=clean_environment(), stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        codes.append(started.wait(timeout=60))
        until(lambda pid=started.pid: members(pid) == [])  # type: ignore[misc]
    assert codes[0] == codes[1]


@pytest.mark.parametrize("mode", USUAL)
@pytest.mark.parametrize("whom", ["started", "group"])
def test_kill_ends_the_program_too(whom: str, mode: str, tmp_path: Path) -> None:
    """SIGKILL for what was started does not leave the program without a parent."""
    with counting(MODES[mode], tmp_path, "SIGUSR1") as (started, program, _):
        (os.kill if whom == "started" else os.killpg)(started.pid, signal.SIGKILL)
        assert started.wait(timeout=60) == -signal.SIGKILL
        until(lambda: state(program) == "")
        until(lambda: members(started.pid) == [])


def test_quietly_it_is_the_program(tmp_path: Path) -> None:
    """Same pid; and no directory is left for a run that recorded nothing."""
    done = shell('echo $$; exec "$@"', tmp_path, MODES["run -q"], "sh", "-c", "echo $$")
    shells, programs = done.stdout.split()
    assert shells == programs
    assert list(tmp_path.iterdir()) == []


def test_the_verdict_is_there_before_it_returns(tmp_path: Path) -> None:
    """Whoever waits for the command has all it says."""
    done = shell('"$@" 2>said; cat said', tmp_path, MODES["run"], "sh", "-c", "echo x > file")
    assert "1 trace file" in done.stdout


def test_the_other_end_of_a_pipe_sees_the_program_close_it(tmp_path: Path) -> None:
    """Nobody but the program keeps an inherited descriptor open."""
    script = 'exec 9> >(cat >/dev/null; echo closed >end); "$@" 9>&9'
    waits = "exec 9>&-; i=0; while [ ! -s end ] && [ $i -lt 500 ]; do sleep 0.01; i=$((i+1)); done; cat end"
    done = shell(
        script.replace('"$@" 9>&9', '"$@" & exec 9>&-; wait $!'), tmp_path, MODES["run"], "sh", "-c", waits
    )
    assert done.stdout == "closed\n"
