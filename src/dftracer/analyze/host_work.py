"""Long-running work of a program's own threads: functions named in the trace, and I/O with its file.

This only serves to explain the device's idle time, so short calls are left out, and only the longest of very
many are kept: its size does not grow with the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dftracer.analyze.stages import AI_CATEGORIES, CLASSES, class_of, is_io
from dftracer.load.chunk import Ints

__all__ = ["FUNCTION", "IO", "LONG_US", "NEITHER", "HostWork", "WorkRows", "kind_of"]

NEITHER, FUNCTION, IO = range(3)
LONG_US: Final = 50
_MOST = 50_000
_INHERIT = CLASSES.index("inherit")
_COLUMNS = 5  # tid, ts, dur, pair, file


def kind_of(cat: str, name: str) -> int:
    """The kind of an event: a function of the program, an I/O call, or neither."""
    if is_io(cat, name):
        return IO
    own = cat.lower() not in AI_CATEGORIES and cat not in ("PP", "device_time", "dftracer")
    return FUNCTION if own and class_of(cat, name) == _INHERIT else NEITHER


@dataclass
class WorkRows:
    """Gathered while the trace is read: columns of tid, ts, dur (us), name and file."""

    parts: list[Ints] = field(default_factory=list)
    held: int = 0

    def add(self, rows: Ints) -> None:
        self.parts.append(rows)
        self.held += rows.shape[1]
        if self.held > 2 * _MOST:
            everything = self.taken()
            longest = np.argpartition(-everything[2], _MOST)[:_MOST]
            self.parts, self.held = [everything[:, np.sort(longest)]], _MOST

    def taken(self) -> Ints:
        return np.concatenate(self.parts, axis=1) if self.parts else np.empty((_COLUMNS, 0), np.int64)


@dataclass
class HostWork:
    """The same with names; times in ns, in order of their start."""

    names: list[str] = field(default_factory=list)
    tid: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    start: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    end: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    name: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    io: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # whether it is I/O

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
