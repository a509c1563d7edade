"""Starting the user's program so that neither it nor whoever started us can tell the difference.

Either this process becomes the program, or it stays as its parent, to print something at the end. A parent
passes every signal on, stops and continues with its program, and exits as the program did.
"""

from __future__ import annotations

import os
import sys

# Imports here delay the program: `signal` would load `enum`, to give numbers names that nobody reads; the
# rest is needed only where this process stays.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal

# Python ignores these from start-up, whatever it inherited.
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# Programs whose ignored signals are meant for their children too. Others that ignore a signal, such as
# daemons and language runtimes, do so for themselves only.
_PASS_THEIR_SIGNALS_ON = frozenset(
    [
        "sh",
        "ash",
        "bash",
        "dash",
        "fish",
        "ksh",
        "mksh",
        "zsh",
        "csh",
        "tcsh",
        "busybox",
        "make",
        "time",
        "timeout",
        "xargs",
        "find",
        "strace",
        "sudo",
        "su",
        "script",
    ]
)
LAUNCHER_SAW = "DFTRACER_IGNORED_SIGNALS"  # from native/launcher.cpp, no setting
_SENT_BY_KERNEL = 0x80  # SI_KERNEL: a key of the terminal, which the whole group receives
_TERMINAL_SIGNALS = frozenset(
    (
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGHUP,
        signal.SIGCONT,
        signal.SIGWINCH,
        signal.SIGXCPU,  # of our own processor time: the program has its own limit
    )
)
_MOMENT_S = 0.003
_LOOK_EVERY_S = 0.1
_PID_BYTES = 4


def exec_program(command: list[str], env: dict[str, str]) -> None:
    """Replace this process with the program: same pid, group, descriptors and signals."""
    ignored = _inherited_signals(env)
    _flush()
    _set_signal_handlers(ignored)
    try:
        os.execvpe(command[0], command, env)
    except OSError as error:
        error.filename = error.filename or command[0]
        raise


def run_as_child(command: list[str], env: dict[str, str], alongside: Callable[[], None] | None = None) -> int:
    """Run the program to its end; returns its exit code, or minus the signal that ended it.

    `alongside` is called once it runs, and may start threads.
    """
    ignored = _inherited_signals(env)
    _flush()
    # We handle no signal: each one is taken from the queue, so that we know who sent it.
    every = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, nobody could wait for the program
    witness = None
    try:
        if children == signal.SIG_IGN:
            ignored |= {signal.SIGCHLD}
        witness = _SignalWitness()  # before the program: we may be stopped as soon as that runs
        child = _started(command, env, mask, ignored, witness)
        _close_inherited()
        if alongside is not None:
            alongside()
        return _follow(child, witness, every)
    finally:
        if witness is not None:
            witness.dismiss()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if children is None else children)
        # One that came too late must not keep us from printing the verdict.
        while signal.sigtimedwait(every - mask, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def exit_like(code: int) -> int:
    """Returns the exit code to use; if a signal ended the program, ends this process by the same one."""
    if code >= 0:
        return code
    _flush()
    number = -code
    import contextlib
    import resource

    with contextlib.suppress(OSError, ValueError):  # otherwise there are two core files
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left the core file that counts
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    return 128 + number


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by whoever started us
            try:
                stream.flush()
            except (OSError, ValueError):  # a broken pipe
                continue


def _inherited_signals(env: dict[str, str]) -> frozenset[int]:
    """Which signals that Python ignores were ignored before it; removes the launcher's variable."""
    seen = env.pop(LAUNCHER_SAW, None)
    if seen is not None:
        return frozenset(number for number in _CHANGED_BY_PYTHON if str(int(number)) in seen.split(","))
    return _ignored_by(os.getppid())  # `python -m dftracer.cli`


def _set_signal_handlers(ignored: frozenset[int]) -> None:
    for number in {*_CHANGED_BY_PYTHON, *ignored}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)


def _ignored_by(parent: int) -> frozenset[int]:
    """The signals that a process ignores and its children therefore inherit as ignored, as far as known."""
    try:
        with open(f"/proc/{parent}/status", encoding="utf-8", errors="replace") as status:
            fields = dict(line.split(":", 1) for line in status if ":" in line)
        bits = int(fields["SigIgn"], 16)
    except (OSError, KeyError, ValueError):
        return frozenset()
    if fields["Name"].strip() not in _PASS_THEIR_SIGNALS_ON:
        return frozenset()
    return frozenset(number for number in _CHANGED_BY_PYTHON if bits >> (number - 1) & 1)


def _started(
    command: list[str],
    env: dict[str, str],
    mask: set[int | signal.Signals],
    ignored: frozenset[int],
    witness: _SignalWitness,
) -> int:
    reading, writing = os.pipe()  # closed by a successful exec
    child = os.fork()
    if child == 0:
        try:
            witness.watch_this_process()
            _set_signal_handlers(ignored)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(command[0], command, env)
        except OSError as error:
            os.write(writing, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as failed:
        number = failed.read()
    if number:
        os.waitpid(child, 0)
        raise OSError(int(number), os.strerror(int(number)), command[0])
    return child


def _close_inherited() -> None:
    """Close the descriptors meant for the program: otherwise the other end of a pipe never sees it closed."""
    import contextlib

    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):  # closed since it was listed
            if fd in (1, 2) or not os.get_inheritable(fd):  # for the verdict, or our own
                continue
            if fd == 0:
                nothing = os.open(os.devnull, os.O_RDONLY)
                os.dup2(nothing, 0)
                os.close(nothing)
            else:
                os.close(fd)


def _follow(child: int, witness: _SignalWitness, every: set[signal.Signals]) -> int:
    import contextlib

    while True:
        sent = signal.sigwaitinfo(every)
        if sent.si_signo == signal.SIGCHLD and sent.si_code > 0:
            while True:
                pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    break
                if not os.WIFSTOPPED(status):
                    return os.waitstatus_to_exitcode(status)
                # Otherwise we were stopped first, and have been continued already.
                if signal.SIGCONT not in signal.sigpending():
                    witness.stops_with_program()
                    _stop(os.WSTOPSIG(status))
            continue
        ours = sent.si_pid in (os.getpid(), witness.pid)  # such as a write of our own to a closed pipe
        at_terminal = sent.si_code == _SENT_BY_KERNEL and sent.si_signo in _TERMINAL_SIGNALS
        if not witness.group_received(sent.si_signo) and not ours and not at_terminal:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, sent.si_signo)


def _stop(number: int) -> None:
    """Stop as the program has, so that a shell sees its job stopped."""
    if number != signal.SIGSTOP:
        signal.signal(number, signal.SIG_DFL)
    # Blocked, it merges with one that the terminal has sent us meanwhile: together they stop us once.
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


class _SignalWitness:
    """A process of our group that sees what we cannot.

    A signal that it received as well was sent to the whole group, so the program received it too. It passes
    on that we were stopped, and that the program was continued meanwhile; and if we are killed, it kills the
    program.
    """

    def __init__(self) -> None:
        ours, its = os.pipe(), os.pipe()  # closed by exec
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(ours[1])
                os.close(its[0])
                _watch(parent, ours[0], its[1])
            finally:
                os._exit(0)
        os.close(ours[0])
        os.close(its[1])
        self._questions, self._answers = ours[1], its[0]

    def watch_this_process(self) -> None:
        """Called in the program's process before it becomes the program."""
        os.write(self._questions, os.getpid().to_bytes(_PID_BYTES, sys.byteorder))

    def group_received(self, number: int) -> bool:
        """Whether the whole group received this signal."""
        return self._ask(number) == b"1"

    def stops_with_program(self) -> None:
        """The program has stopped, and we are about to."""
        self._ask(0)

    def dismiss(self) -> None:
        """The program has ended."""
        import contextlib

        self._ask(255)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._questions)
        os.close(self._answers)

    def _ask(self, what: int) -> bytes:
        try:
            os.write(self._questions, bytes([what]))
            return os.read(self._answers, 1)
        except OSError:
            return b""


def _watch(parent: int, questions: int, answers: int) -> None:
    import select

    _rename_process()
    os.closerange(0, min(questions, answers))
    os.closerange(min(questions, answers) + 1, max(questions, answers))
    os.closerange(max(questions, answers) + 1, 1 << 16)
    first = os.read(questions, _PID_BYTES)
    if len(first) < _PID_BYTES:  # no program was started
        os.write(answers, b"0")
        return
    child = int.from_bytes(first, sys.byteorder)
    stopped_with_program = False
    while True:
        if select.select([questions], [], [], _LOOK_EVERY_S)[0]:
            asked = os.read(questions, 1)
            if asked == b"":
                os.kill(child, signal.SIGKILL)
                return
            number = asked[0]
            if number == 255:
                os.write(answers, b"0")
                return
            stopped_with_program = number == 0
            received = number and signal.sigtimedwait([number], _MOMENT_S) is not None
            os.write(answers, b"1" if received else b"0")
        elif _state(parent) == "T" != _state(child):
            os.kill(*(parent, signal.SIGCONT) if stopped_with_program else (child, signal.SIGSTOP))
        elif _state(parent) != "T":
            stopped_with_program = False


def _rename_process() -> None:
    """Take another name: what is sent to all processes of our name is not for this one."""
    import contextlib

    with contextlib.suppress(Exception):
        import ctypes

        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
        name = b"(follows its parent)"
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, name, min(len(name), end - begin - 1))
        ctypes.CDLL(None).prctl(15, b"witness", 0, 0, 0)
