"""Which files belong to one run: a directory may contain several, and they are never mixed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer.format.members import last_time
from dftracer.load.process import ProcessInfo

RUN_KEYS = ("id", "start", "command", "host", "launcher", "world_size", "attempt", "version", "python")


@dataclass
class Run:
    """The processes of one run."""

    id: str | None  # None: its files carry no run record
    processes: list[ProcessInfo] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [p.file for p in self.processes]

    @property
    def start_us(self) -> int:
        """When it began, from its record, otherwise from its first process."""
        starts = [p.run["start"] for p in self.processes if p.run and isinstance(p.run.get("start"), int)]
        return min(starts or [p.start_us for p in self.processes if p.start_us is not None], default=0)

    @property
    def end_us(self) -> int:
        return max(p.end_us if p.end_us is not None else last_time(p.file) for p in self.processes)

    @property
    def ranks(self) -> set[int]:
        return {p.rank for p in self.processes if p.rank is not None}

    @property
    def world_sizes(self) -> set[int]:
        return {p.world_size for p in self.processes if p.world_size is not None}

    def identity(self) -> dict[str, Any]:
        return run_identity(self.processes)


def run_identity(processes: list[ProcessInfo]) -> dict[str, Any]:
    """What the run says about itself; the earliest of several records. Null if nothing is known."""
    records = [p.run for p in processes if p.run]
    records.sort(key=_order)
    first = records[0] if records else {}
    out = {key: first.get(key) for key in RUN_KEYS}
    for key in ("launcher", "world_size"):  # the launcher's own process comes first, and knows neither
        out[key] = next((r[key] for r in records if r.get(key)), out[key])
    starts = [p.start_us for p in processes if p.start_us is not None]
    out["start"] = out["start"] if out["start"] is not None else min(starts, default=None)
    if out["command"] is None:
        out["command"] = next((p.command for p in processes if p.command), None)
    if out["host"] is None:
        out["host"] = next((p.host for p in processes if p.host), None)
    out["files"] = len(processes)
    return out


def _order(record: dict[str, Any]) -> tuple[int, str]:
    start = record.get("start")
    return (start if isinstance(start, int) else 1 << 62, str(record.get("id")))


def find_runs(processes: list[ProcessInfo]) -> list[Run]:
    """The runs among the files, the newest first. Files without a run record are one run."""
    groups: dict[str | None, Run] = {}
    for p in processes:
        ident = p.run["id"] if p.run else None
        groups.setdefault(ident, Run(ident)).processes.append(p)
    runs = sorted(groups.values(), key=lambda r: (r.start_us, r.id or ""))
    joined: list[Run] = []
    for run in runs:
        same = next((j for j in joined if _one_job(j, run)), None)
        if same is None:
            joined.append(run)
        else:
            same.processes += run.processes
    joined.reverse()
    return joined


def _one_job(a: Run, b: Run) -> bool:
    """Ranks of one job may have been started separately and not know about each other's run.

    They overlap in time, have the same world size, and no rank appears twice.
    """
    if a.id is None or b.id is None or not a.ranks or not b.ranks or a.ranks & b.ranks:
        return False
    if a.world_sizes != b.world_sizes or len(a.world_sizes) != 1:
        return False
    return a.start_us < b.end_us and b.start_us < a.end_us


def name_of(run: Run) -> str:
    """The name of a run in messages."""
    return run.id or f"(no id) {os.path.commonpath([str(f) for f in run.files])}"
