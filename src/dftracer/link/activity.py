"""What ran, when, and where: the common table for every source of timed activity."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link._columns import Codes, Flags, Ints
from dftracer.link._json_stream import Repairs

OP, ANNOTATION, RUNTIME, KERNEL, MEMCPY, MEMSET, SYNC = range(7)
KIND_NAMES = ("op", "annotation", "runtime", "kernel", "memcpy", "memset", "sync")
HOST_KINDS = (OP, ANNOTATION, RUNTIME)
DEVICE_KINDS = (KERNEL, MEMCPY, MEMSET)

# Integers of every activity; -1 (0 for rf) if the source has none.
COLUMNS = (
    "kind",
    "pid",
    "tid",
    "start",  # ns since the epoch
    "dur",  # ns
    "rf",
    "external",
    "correlation",
    "seq",
    "fw_tid",
    "device",
    "stream",
)


@dataclass
class ActivityTable:
    """Activities of one process and its devices in order of their start; outer ones before inner ones."""

    path: Path | None
    source: str  # "kineto" or "nsys"
    kind: Ints
    pid: Ints
    tid: Ints
    start: Ints
    dur: Ints
    rf: Ints
    external: Ints
    correlation: Ints
    seq: Ints
    fw_tid: Ints
    device: Ints
    stream: Ints
    name: Codes
    names: list[str]
    details: dict[int, dict[str, Any]] = field(default_factory=dict)  # by row: collectives, copies, syncs
    main_pid: int | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: list[dict[str, Any]] = field(default_factory=list)
    host: str = ""
    threads: dict[int, str] = field(default_factory=dict)
    writes_ids: bool = False  # events carry record ids, though perhaps all of them 0
    repairs: Repairs = field(default_factory=Repairs)

    def __len__(self) -> int:
        return int(self.kind.size)

    @property
    def end(self) -> Ints:
        end: Ints = self.start + self.dur
        return end

    def is_kind(self, *kinds: int) -> Flags:
        """Which rows are of these kinds."""
        wanted: Flags = np.isin(self.kind, kinds)
        return wanted

    @property
    def span(self) -> tuple[int, int]:
        """First start and last end; (0, 0) without any activity."""
        return (int(self.start.min()), int(self.end.max())) if len(self) else (0, 0)


def empty_activity(source: str = "kineto") -> ActivityTable:
    """A table without rows."""
    columns: dict[str, Any] = {c: np.zeros(0, dtype=np.int64) for c in COLUMNS}
    return ActivityTable(path=None, source=source, **columns, name=np.zeros(0, dtype=np.int32), names=[])
