"""A thread for each target: reads the figures, writes them, and costs the program nothing if that fails."""

from __future__ import annotations

import _thread
import threading
import warnings
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Protocol

from dftracer import _core, _messages
from dftracer.metrics import _figures
from dftracer.metrics._targets import MLflow, Otlp, Server, TensorBoard, TextFile, WandB

_FIRST_STEP_S = 0.25  # how often to look for it
_LONGEST_PAUSE_S = 60.0  # between two attempts to reach a target that does not answer
_LAST_WORD_S = 2.0  # how long the end of the program waits for a target that has answered so far


class Target(Protocol):
    """Takes the figures every few seconds."""

    def write(self, figures: _figures.Figures, last: bool) -> None:
        """Raises if it could not."""

    def close(self) -> None:
        """After the last write."""


TARGETS: dict[str, Callable[[str, dict[str, str]], Any]] = {
    "prometheus": Server,
    "textfile": TextFile,
    "tensorboard": TensorBoard,
    "otlp": Otlp,
    "wandb": WandB,
    "mlflow": MLflow,
}
_NEED_PLACE = ("textfile", "tensorboard")


def wanted(text: str) -> list[tuple[str, str]]:
    """The targets in `DFTRACER_METRICS`: name and place; a mistake costs one line and that target."""
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, place = each.partition(":")
        if name not in TARGETS:
            _messages.always(f"DFTRACER_METRICS: {name} is not one of {', '.join(TARGETS)}")
        elif name in _NEED_PLACE and not place:
            _messages.always(f"DFTRACER_METRICS: {name} needs a destination, as in {name}:PATH")
        else:
            found.append((name, place))
    return found


class Exporter:
    """All targets of this process."""

    def __init__(self, text: str, interval_s: float) -> None:
        self._interval_s = interval_s
        self._servers: list[Server] = []
        self._writers: list[_Writer] = []
        self._stopping = threading.Event()
        self._opened = _thread.allocate_lock()
        self._opened.acquire()
        self._wanted = wanted(text)
        # Not a threading.Thread: the program may count its own.
        _thread.start_new_thread(_out_of_trace, (self._open,))

    def _open(self) -> None:
        """With the first step: launchers, helpers and workers of loaders have none, and export nothing."""
        try:
            while _core.row_sums() is None:
                if self._stopping.wait(_FIRST_STEP_S):
                    break
            if _core.row_sums() is not None:
                self._open_targets()
        finally:
            self._opened.release()

    def _open_targets(self) -> None:
        labels = _figures.labels()
        for name, place in self._wanted:
            try:
                target = TARGETS[name](place, labels)
            except Exception as error:  # the program trains whatever happens here
                _messages.always(f"metrics: {name}: {error}")
                continue
            if isinstance(target, Server):
                self._servers.append(target)
                _thread.start_new_thread(_out_of_trace, (target.serve, _figures.read))
            else:
                if not isinstance(target, TextFile):  # which needs no package
                    _hidden_warnings.begin()
                self._writers.append(_Writer(name, target, self._interval_s))

    def stop(self) -> None:
        """The last figures, then nothing more."""
        _core.flush()  # the last step is known once its events have been written
        self._stopping.set()
        self._opened.acquire(timeout=_LAST_WORD_S)
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.stopping.set()
        for writer in self._writers:
            writer.wait()
        if not _hidden_warnings.threads:
            _hidden_warnings.end()

    def close_in_child(self) -> None:
        """In a forked child."""
        for server in self._servers:
            server.close_in_child()
        _hidden_warnings.threads.clear()  # another thread may get the number of one that is not here
        _hidden_warnings.end()


class _HiddenWarnings:
    """Keeps warnings of the packages that targets use from the program, which has nothing to do with them.

    The filters of `warnings` are those of all threads: to change them for one of ours would change them for
    the program. So the function that shows a warning gets other code while there are targets, and stays the
    object it is.
    """

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self._shows: FunctionType | None = None
        self._own_code: CodeType | None = None
        self._ours: CodeType | None = None

    def begin(self) -> None:
        """Drop the warnings of `threads` from now on."""
        shows: Any = getattr(warnings, "_showwarnmsg", None)
        if self._shows is not None or not isinstance(shows, FunctionType) or shows.__closure__ is not None:
            return
        original = FunctionType(shows.__code__, shows.__globals__, shows.__name__)

        def show(message: Any) -> None:
            if _thread.get_ident() not in self.threads:
                original(message)

        def _showwarnmsg(msg: Any) -> None:
            show(msg)

        self._shows, self._own_code, self._ours = shows, shows.__code__, _showwarnmsg.__code__
        _core.exchange_code(shows, _showwarnmsg.__code__, _showwarnmsg.__closure__)

    def end(self) -> None:
        """Leave `warnings` as it was."""
        shows, self._shows = self._shows, None
        if shows is not None and self._own_code is not None and shows.__code__ is self._ours:
            _core.exchange_code(shows, self._own_code, None)


_hidden_warnings = _HiddenWarnings()


class _Writer:
    """Writes to one target until it is stopped, then one last time."""

    def __init__(self, name: str, target: Target, interval_s: float) -> None:
        self._name = name
        self._target = target
        self._interval_s = interval_s
        self._before: _figures.Figures | None = None
        self._failing = self._warned = False
        self.stopping = threading.Event()
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(_out_of_trace, (self._run,))

    def wait(self) -> None:
        """For the last write, unless the one before has failed."""
        self._done.acquire(timeout=0.0 if self._failing else _LAST_WORD_S)

    def _run(self) -> None:
        _hidden_warnings.threads.add(_thread.get_ident())
        try:
            pause = self._interval_s
            while not self.stopping.wait(pause):
                if not self._write(last=False):
                    return
                pause = (
                    max(self._interval_s, min(_LONGEST_PAUSE_S, 2 * pause))
                    if self._failing
                    else self._interval_s
                )
            self._write(last=True)
            self._target.close()
        finally:
            _hidden_warnings.threads.discard(_thread.get_ident())
            self._done.release()

    def _write(self, last: bool) -> bool:
        """Returns whether to go on."""
        figures = _figures.read()
        if not last and self._before is not None and figures.steps == self._before.steps:
            return True
        try:
            self._target.write(figures, last)
        except ImportError as error:
            _messages.always(f"metrics: {self._name}: {error}")
            return False
        except Exception as error:  # whatever the package raises, it is not the program's
            self._failing = True
            if not self._warned:
                self._warned = True
                _messages.error(f"metrics: {self._name}: {type(error).__name__}: {error}; trying again")
        else:
            self._failing, self._before = False, figures
        return True


def _out_of_trace(run: Callable[..., None], *args: Any) -> None:
    _core.hide_io(True)
    try:
        run(*args)
    except Exception as error:
        _messages.error(f"metrics: {type(error).__name__}: {error}")
