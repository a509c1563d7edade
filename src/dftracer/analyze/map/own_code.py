"""What the program's own code was doing: its long functions and I/O calls, and samples of it.

The long calls only serve to explain the device's idle time, so short ones are left out, and only the longest
of very many are kept: their size does not grow with the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dftracer.analyze.intervals import Intervals, measure
from dftracer.analyze.stages import AI_CATEGORIES, CLASSES, class_of, is_io
from dftracer.analyze.thresholds import MAJORITY
from dftracer.load._scan import arg_texts
from dftracer.load.chunk import Chunk, Ints, int64s

NEITHER, FUNCTION, IO = range(3)
LONG_US: Final = 50  # a long call takes at least this
_MAX = 50_000  # long calls that are kept
_COLUMNS = 5  # tid, ts, dur, pair, file
_CALLS = (CLASSES.index("inherit"), CLASSES.index("process"))
# The innermost function of a thread that waits for another one, or for a process.
_WAITING: Final = {
    "Condition.wait threading.py",
    "Thread._wait_for_tstate_lock threading.py",
    "Thread.join threading.py",
    "Queue.get queue.py",
    "Queue.get queues.py",
    "SimpleQueue.get queues.py",
    "Connection._recv connection.py",
    "EpollSelector.select selectors.py",
    "_PollLikeSelector.select selectors.py",
    "Popen.poll popen_fork.py",
    "Popen._try_wait subprocess.py",
}
# The functions of a framework in which it goes from step to step: their caller is no place to look at.
_LOOPS: Final = {
    "Trainer._inner_training_loop trainer.py",
    "Trainer._run_epoch trainer.py",
    "_FitLoop.run fit_loop.py",
    "_FitLoop.advance fit_loop.py",
    "_TrainingEpochLoop.run training_epoch_loop.py",
    "_TrainingEpochLoop.advance training_epoch_loop.py",
}
_MIN = 0.002  # of all samples: what is less is not drawn


def _none() -> Ints:
    return np.empty(0, np.int64)


def kind_of(cat: str, name: str) -> int:
    """The kind of an event: a function of the program, an I/O call, or neither."""
    if is_io(cat, name):
        return IO
    own = cat.lower() not in AI_CATEGORIES and cat not in ("PP", "device_time", "dftracer")
    return FUNCTION if own and class_of(cat, name) in _CALLS else NEITHER


@dataclass
class WorkRows:
    """Gathered while the trace is read: columns of tid, ts, dur (us), name and file."""

    parts: list[Ints] = field(default_factory=list)
    held: int = 0
    shortest: int = 0  # of the longest ones so far

    def add(self, rows: Ints) -> None:
        if self.shortest:
            rows = rows[:, rows[2] >= self.shortest]
        self.parts.append(rows)
        self.held += rows.shape[1]
        if self.held > 2 * _MAX:
            everything = self.taken()
            longest = np.zeros(everything.shape[1], bool)
            longest[np.argpartition(-everything[2], _MAX)[:_MAX]] = True
            self.parts, self.held = [everything[:, longest]], _MAX
            self.shortest = int(self.parts[0][2].min())

    def taken(self) -> Ints:
        return np.concatenate(self.parts, axis=1) if self.parts else np.empty((_COLUMNS, 0), np.int64)


@dataclass
class HostWork:
    """The same with names; times in ns, in order of their start."""

    names: list[str] = field(default_factory=list)
    tid: Ints = field(default_factory=_none)
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    name: Ints = field(default_factory=_none)
    io: Ints = field(default_factory=_none)  # whether it is I/O

    @staticmethod
    def of(rows: WorkRows, keys: list[tuple[str, str]], paths: list[str]) -> HostWork:
        """`keys` and `paths`: the meaning of the numbers in the rows."""
        tid, ts, dur, pair, file = rows.taken()
        numbers: dict[tuple[int, int], int] = {}
        names: list[str] = []
        name = np.empty(pair.size, np.int64)
        io = np.zeros(pair.size, np.int64)
        for i, (p, f) in enumerate(zip(pair.tolist(), file.tolist(), strict=True)):
            cat, event = keys[p]
            does_io = is_io(cat, event)
            number = numbers.setdefault((p, f if does_io else -1), len(names))
            if number == len(names):
                where = paths[f] if does_io and 0 <= f < len(paths) else ""
                names.append(f"{event} {where}".strip())
            name[i], io[i] = number, does_io
        order = np.lexsort((-dur, ts))
        start = ts[order] * 1000
        return HostWork(names, tid[order], start, start + dur[order] * 1000, name[order], io[order])


@dataclass
class Samples:
    """Where the own code was, and how long each sample stands for, in us.

    `where` and `stack` are numbers of `names`.
    """

    names: list[str] = field(default_factory=list)
    start: Ints = field(default_factory=_none)
    dur: Ints = field(default_factory=_none)
    where: Ints = field(default_factory=_none)
    stack: Ints = field(default_factory=_none)
    _parts: list[Samples] = field(default_factory=list)

    def add(self, more: Samples | None) -> None:
        if more is not None:
            self._parts.append(more)

    def joined(self) -> Samples:
        """All that was added, in order."""
        numbers: dict[str, int] = {}
        columns: list[list[Ints]] = [[], [], [], []]
        for part in self._parts:
            number = np.array([numbers.setdefault(n, len(numbers)) for n in part.names], np.int64)
            for column, values in zip(
                columns, (part.start, part.dur, number[part.where], number[part.stack]), strict=True
            ):
                column.append(values)
        if not self._parts:
            return Samples()
        start, dur, where, stack = (np.concatenate(c) for c in columns)
        names = [*numbers]
        pairs, pair = np.unique(where * len(names) + stack, return_inverse=True)
        places = [_place(names[p // len(names)], names[p % len(names)].split(";")) for p in pairs.tolist()]
        where = np.array([numbers.setdefault(place, len(numbers)) for place in places], np.int64)[pair]
        return Samples([*numbers], start, dur, where, stack)

    def less(self, known: Intervals) -> Samples:
        """What is left beside time that has a name of its own: a function also waits, and saves."""
        dur = self.dur - measure(known, self.start, self.start + self.dur)
        left = dur > 0
        return Samples(self.names, self.start[left], dur[left], self.where[left], self.stack[left])

    def seconds(self, within: Intervals | None = None) -> dict[str, float]:
        """By place, in some time; the longest first."""
        time = self.dur if within is None else measure(within, self.start, self.start + self.dur)
        sums = np.bincount(self.where, weights=time, minlength=len(self.names))
        order = sorted(np.flatnonzero(sums).tolist(), key=lambda i: (-sums[i], self.names[i]))
        return {self.names[i]: float(sums[i]) / 1e6 for i in order}

    def places(self, within: Intervals) -> dict[str, float]:
        """By place: the lines of the function that takes longest come first, whatever a line of another one takes."""
        lines = self.seconds(within)
        functions: dict[str, float] = {}
        for where, seconds in lines.items():
            function = where.rpartition(":")[0]
            functions[function] = functions.get(function, 0.0) + seconds
        order = sorted(lines, key=lambda where: -functions[where.rpartition(":")[0]])  # stable: then by line
        return {where: lines[where] for where in order}

    def waits_at(self, place: str) -> bool:
        """Whether the program mostly waits there for another thread or process."""
        if place not in self.names:
            return False
        here = self.where == self.names.index(place)
        waiting = [n.rpartition(";")[2].rpartition(":")[0] in _WAITING for n in self.names]
        waits = here & np.array(waiting, bool)[self.stack]
        return bool(self.dur[waits].sum() > MAJORITY * self.dur[here].sum())

    def flame(self) -> dict[str, Any]:
        """The stacks as a tree: `name`, `seconds` with everything below it, `children`, the longest first."""
        sums = np.bincount(self.stack, weights=self.dur, minlength=len(self.names))
        root: dict[str, Any] = {"name": "all", "seconds": 0.0, "children": {}}
        for i in np.flatnonzero(sums).tolist():
            seconds, at = float(sums[i]) / 1e6, root
            root["seconds"] += seconds
            for frame in filter(None, self.names[i].split(";")):
                at = at["children"].setdefault(frame, {"name": frame, "seconds": 0.0, "children": {}})
                at["seconds"] += seconds
        return _listed(root, root["seconds"] * _MIN)


def _place(where: str, stack: list[str]) -> str:
    """Where a sample was; of a framework's loop, that the program called, what the loop called."""
    loops = [i for i, frame in enumerate(stack) if frame.rpartition(":")[0] in _LOOPS]
    if not loops or where in stack[loops[-1] + 1 :]:
        return where
    return stack[min(loops[-1] + 1, len(stack) - 1)]


def _listed(node: dict[str, Any], least: float) -> dict[str, Any]:
    below = sorted(node["children"].values(), key=lambda c: (-c["seconds"], c["name"]))
    return {
        "name": node["name"],
        "seconds": round(node["seconds"], 6),
        "children": [_listed(c, least) for c in below if c["seconds"] >= least],
    }


def samples_of_chunk(chunk: Chunk, rows: Any, start: Ints, dur: Ints) -> Samples:
    """The samples among some rows of a trace."""
    ends, text = chunk.args_of(np.asarray(rows))
    ends = ends.astype(np.int64)
    names: list[str] = []
    columns: list[Ints] = []
    for key in (b'"where":"', b'"stack":"'):
        raw, found = arg_texts(ends, text, key)
        code = int64s(raw)
        columns.append(np.where(code < 0, len(names) + len(found), code + len(names)))
        names += [*found, ""]
    return Samples(names, start.copy(), dur.copy(), columns[0], columns[1])
