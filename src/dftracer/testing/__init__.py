"""For tests: the events that a block of code records, as Python objects.

::

    from dftracer.testing import capture   # before dftracer.python: turns tracing on
    from dftracer.python import ai

    def test_forward_is_traced():
        with capture() as events:
            train_step()
        forward = events.one("forward")
        assert forward.cat == "compute"
        assert forward.parent is events.one("train")

Events of processes that the block starts are included, too, once they have been written: a worker that is
still running when the block ends can be read later, with `refresh()`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, overload

from dftracer import _config, _inherited
from dftracer._text import plural
from dftracer.format import reader
from dftracer.format.records import RESERVED_ARGS, is_own_event
from dftracer.format.trace_names import find_traces, is_trace_name

__all__ = ["Capture", "Event", "capture", "read"]

# The switch is read once, when the annotations are imported.
if "dftracer.python" not in sys.modules:
    _config.turn_on()

_ATTEMPTS, _PAUSE = 20, 0.01


class Event:
    """One complete event; times are in us, `args` holds the user's arguments."""

    __slots__ = (
        "args",
        "cat",
        "children",
        "dur",
        "id",
        "level",
        "name",
        "parent",
        "parent_id",
        "pid",
        "record",
        "tid",
        "ts",
    )

    def __init__(self, record: reader.Record) -> None:
        args: dict[str, Any] = record["args"]
        self.record = record
        self.id: int | None = record["id"]
        self.name: str = record["name"]
        self.cat: str = record["cat"]
        self.pid: int = record["pid"]
        self.tid: int = record["tid"]
        self.ts: int = record["ts"]
        self.dur: int = record["dur"]
        self.args = {key: value for key, value in args.items() if key not in RESERVED_ARGS}
        self.level: int | None = args.get("level")
        parent_id = args.get("p_idx")
        self.parent_id: int | None = None if parent_id == -1 else parent_id
        self.parent: Event | None = None
        self.children: list[Event] = []

    def __repr__(self) -> str:
        args = f" {self.args}" if self.args else ""
        return f"<{self.cat}:{self.name} {self.dur} us{args}>"


class Capture(Sequence[Event]):
    """The events of a block or of files, ordered by their begin."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._trace = reader.TraceText([], [], reader.Problems())

    @property
    def events(self) -> list[Event]:
        """All events except the tracer's own `start` and `end`."""
        return self._events

    @property
    def metadata(self) -> list[reader.Record]:
        """The metadata records, see the description of the format."""
        return self._trace.metadata

    @property
    def counters(self) -> list[reader.Record]:
        return self._trace.counters

    @property
    def records(self) -> list[reader.Record]:
        """Everything, in the order of the files."""
        return self._trace.records

    @property
    def problems(self) -> reader.Problems:
        """What could not be read."""
        return self._trace.problems

    def named(self, name: str) -> list[Event]:
        """The events of this name."""
        return [event for event in self._events if event.name == name]

    def one(self, name: str) -> Event:
        """The only event of this name; otherwise an AssertionError that shows what was recorded."""
        found = self.named(name)
        if len(found) != 1:
            recorded = self.tree() or "(nothing)"
            raise AssertionError(
                f"{plural(len(found), 'event')} named {name!r}, expected one; recorded:\n{recorded}"
            )
        return found[0]

    def roots(self) -> list[Event]:
        """The events without a parent in this capture."""
        return [event for event in self._events if event.parent is None]

    def tree(self) -> str:
        """The nesting as indented text, one line per event."""
        lines: list[str] = []
        todo = [(event, 0) for event in reversed(self.roots())]
        while todo:
            event, depth = todo.pop()
            lines.append("  " * depth + repr(event)[1:-1])
            todo += [(child, depth + 1) for child in reversed(event.children)]
        return "\n".join(lines)

    def resolve(self, hash_: str) -> str | None:
        """The path, host or string that a hash in `args` stands for."""
        return self._trace.resolve(hash_)

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        return self._events[index]

    def __repr__(self) -> str:
        return f"<Capture of {plural(len(self), 'event')}>\n{self.tree()}"

    def _show(self, files: list[str], by_file: list[list[reader.Record]], problems: reader.Problems) -> None:
        self._trace = reader.TraceText(files, [record for part in by_file for record in part], problems)
        self._events = _linked(by_file)


class _BlockCapture(Capture):
    """The context manager behind `capture()`."""

    def __init__(self) -> None:
        super().__init__()
        self._directory: str | None = None
        self._is_private = False
        self._is_over = False
        self._before: dict[str, int] = {}
        self._own: dict[str, list[reader.Record]] = {}  # what this process recorded, once the block is over
        self._log_file_before: str | None = None

    def __enter__(self) -> _BlockCapture:
        core = _core_with_tracing_on()
        with _own_io_hidden():
            if core.active():
                self._use_active_session(core)
            else:
                self._start_private_session()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._is_private:
            from dftracer import _session  # noqa: PLC0415 - it was there on entry

            _session.end()
            _inherited.set_log_file(self._log_file_before)
        with _own_io_hidden():
            found = self._look()
        self._own = {path: part for path, part in found.items() if part[0]["pid"] == os.getpid()}
        self._is_over = True

    def refresh(self) -> None:
        """Look again: inside the block at everything so far, after it at workers that were still running."""
        with _own_io_hidden():
            self._look()

    def _look(self) -> dict[str, list[reader.Record]]:
        if self._directory is None:
            raise RuntimeError("nothing is captured yet; enter the block first")
        from dftracer import _core  # noqa: PLC0415

        problems = reader.Problems()
        if _core.active() and not _core.flush():
            problems.unreadable[str(_core.trace_path())] = "the tracer could not write all that was recorded"
        _recover(self._directory)
        found = {
            path: records
            for path in _traces_in(self._directory)
            if (records := _records_of(path, self._before.get(path, 0), problems))
        }
        if not self._is_private:
            found = _of_this_process_and_below(found, self._directory)
        if self._is_over:
            found = {path: part for path, part in found.items() if part[0]["pid"] != os.getpid()} | self._own
        self._show(list(found), list(found.values()), problems)
        return found

    def resolve(self, hash_: str) -> str | None:
        """The path, host or string that a hash in `args` stands for."""
        found = super().resolve(hash_)
        if found is None and self._directory is not None:
            # Named before the block began.
            found = reader.read_trace(self._trace.paths).resolve(hash_)
        return found

    def _use_active_session(self, core: Any) -> None:
        core.flush()
        path = core.trace_path()
        self._directory = os.path.dirname(os.path.abspath(path)) if path else os.getcwd()
        _recover(self._directory)
        self._before = {path: _text_size(path) for path in _traces_in(self._directory)}

    def _start_private_session(self) -> None:
        self._is_private = True
        self._directory = tempfile.mkdtemp(prefix="dftracer-capture-")
        weakref.finalize(self, _remove, self._directory, os.getpid())
        prefix = os.path.join(self._directory, "capture")
        self._log_file_before = _inherited.set_log_file(prefix)
        from dftracer import _session  # noqa: PLC0415 - reads the settings, which are complete only now

        _session.begin(prefix + ".pfw")


def capture() -> _BlockCapture:
    """Record what happens in a `with` block, for a test to look at.

    Within an active session the block's events go to its file as usual and are read back from there;
    without one, a session in a temporary directory lasts as long as the block.
    """
    return _BlockCapture()


def read(path: str | os.PathLike[str]) -> Capture:
    """The events of a trace file, or of all trace files of a directory."""
    text = os.fspath(path)
    _recover(text if os.path.isdir(text) else os.path.dirname(os.path.abspath(text)))
    if not os.path.exists(text):
        raise FileNotFoundError(f"no trace at {text}")
    result = Capture()
    problems = reader.Problems()
    files = find_traces(text)
    result._show(files, [_records_of(each, 0, problems) for each in files], problems)
    reader.check_ends(result.records, problems)
    return result


@contextlib.contextmanager
def _own_io_hidden() -> Iterator[None]:
    """Do not record what this module itself reads."""
    from dftracer import _core  # noqa: PLC0415 - it was there on entry

    _core.hide_io(True)
    try:
        yield
    finally:
        _core.hide_io(False)


def _core_with_tracing_on() -> Any:
    from dftracer import _core, python  # noqa: PLC0415 - reading needs neither

    if not python.DFTRACER_ENABLE:
        raise RuntimeError(
            "tracing is off: dftracer.python was imported before dftracer.testing. "
            "Import dftracer.testing first, or set DFTRACER_ENABLE=1."
        )
    return _core


def _recover(directory: str) -> None:
    """Complete the traces of processes that died; a directory that cannot be written to is read as it is."""
    try:
        from dftracer import _core  # noqa: PLC0415 - reading works without the native part

        _core.recover(directory)
    except (ImportError, OSError, RuntimeError):
        return


def _linked(events_by_file: Iterable[list[reader.Record]]) -> list[Event]:
    """Events with their parents, which are in the same file or in another part of the process's trace."""
    files = [
        [Event(record) for record in records if record["ph"] == "X" and not is_own_event(record)]
        for records in events_by_file
    ]
    by_process = {(_host(event), event.pid, event.id): event for events in files for event in events}
    everything: list[Event] = []
    for events in files:
        by_id = {(event.pid, event.id): event for event in events}
        for event in events:
            if event.parent_id is not None:
                event.parent = by_id.get((event.pid, event.parent_id)) or by_process.get(
                    (_host(event), event.pid, event.parent_id)
                )
        everything += events
    everything.sort(key=lambda event: (event.ts, event.id or 0))
    for event in everything:
        if event.parent is not None:
            event.parent.children.append(event)
    return everything


def _host(event: Event) -> Any:
    return event.record["args"].get("hhash")


def _traces_in(directory: str) -> list[str]:
    """The trace files directly in `directory`; a session has none below it, and the user may have many."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if is_trace_name(name)]


def _records_of(path: str, skip: int, problems: reader.Problems) -> list[reader.Record]:
    """The records of a file, read again until it did not change meanwhile: its end may be being merged."""
    for _ in range(_ATTEMPTS):
        before = _state_of(path)
        trial = reader.Problems()
        try:
            records = list(reader.read_records(path, trial, skip=skip))
        except OSError as error:
            problems.unreadable[path] = error.strerror or str(error)
            return []
        if before == _state_of(path) and not trial:
            break
        time.sleep(_PAUSE)
    problems.add(trial)
    return records


def _text_size(path: str) -> int:
    for _ in range(_ATTEMPTS):
        before = _state_of(path)
        size = reader.text_size(path)
        if before == _state_of(path):
            break
        time.sleep(_PAUSE)
    return size


def _state_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _process_of(path: str) -> tuple[int, int] | None:
    """(pid, parent pid) as the `start` event of the file tells; parts of a rotated trace may lack it."""
    try:
        for record in reader.read_records(path):
            if record["ph"] == "X":
                return record["pid"], int(record["args"].get("ppid", 0))
    except OSError:
        pass
    return None


def _of_this_process_and_below(
    found: dict[str, list[reader.Record]], directory: str
) -> dict[str, list[reader.Record]]:
    parents = dict(filter(None, map(_process_of, _traces_in(directory))))
    return {path: part for path, part in found.items() if _descends(part[0]["pid"], parents)}


def _descends(pid: int, parents: dict[int, int]) -> bool:
    for _ in range(64):
        if pid == os.getpid():
            return True
        # A fork server records nothing itself; while it lives, the kernel knows its parent.
        pid = parents.get(pid) or _parent_of_live(pid)
        if pid <= 1:
            break
    return False


def _parent_of_live(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _remove(directory: str, owner: int) -> None:
    # A forked child inherits the finalizer, not the directory.
    if os.getpid() == owner:
        with _own_io_hidden():
            shutil.rmtree(directory, ignore_errors=True)
