"""Step rows: one small row per training step, which every process keeps beside its trace.

They are enough for the steps, the ledger and the ranks of a run, and remain when the trace itself is gone.
What they contain is described in docs/format.md.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from dftracer.format.members import ROW_FLAGS
from dftracer.format.trace_names import NoTraces, Paths, find_rows, find_traces, is_rows_name, rows_of
from dftracer.load._scan import pack_step_rows, step_row_columns, step_rows
from dftracer.load.chunk import Ints, int64s
from dftracer.load.find import here

if TYPE_CHECKING:
    import polars as pl

COLUMNS: Final = step_row_columns()
STAGES: Final = tuple(c.removesuffix("_us") for c in COLUMNS[4:-6])
_AT: Final = {name: i for i, name in enumerate(COLUMNS)}

# What `flags` says.
FORWARD_UNSEEN, INFERENCE, LEARNS, LOOP_BEGINS, AUTOMATIC, BETWEEN, BY_UPDATES, CUT, DEVICE, RESTORES = (
    ROW_FLAGS.values()
)
_THREAD_SHIFT = 12


@dataclass
class RowFile:
    """The rows of one process."""

    path: str
    facts: dict[str, Any] = field(default_factory=dict)  # run, rank, attempt, host, start, command ...
    steps: Ints = field(default_factory=lambda: np.empty((0, len(COLUMNS)), np.int64))
    between: Ints = field(default_factory=lambda: np.empty((0, len(COLUMNS)), np.int64))
    damaged: int = 0  # bytes that could not be read

    def column(self, name: str) -> Ints:
        return self.steps[:, _AT[name]]

    @property
    def stages(self) -> Ints:
        """Time by step and stage, in us."""
        return self.steps[:, 4 : 4 + len(STAGES)]

    @property
    def device_busy(self) -> float | None:
        """The share of the steps in which the device was busy; None if it was not observed."""
        wall = int(self.column("wall_us").sum())
        if not wall or not (self.column("flags") & DEVICE).any():
            return None
        return round(min(1.0, int(self.column("device_busy_us").sum()) / wall), 6)

    def since(self, time_us: int) -> RowFile:
        """Only rows that begin then or later."""
        steps, between = (t[t[:, _AT["start_us"]] >= time_us] for t in (self.steps, self.between))
        return replace(self, steps=steps, between=between)

    @property
    def rank(self) -> int | None:
        return _int(self.facts.get("rank"))

    @property
    def run(self) -> str | None:
        run = self.facts.get("run")
        return run if isinstance(run, str) else None

    @property
    def attempt(self) -> int | None:
        return _int(self.facts.get("attempt"))

    @property
    def host(self) -> str | None:
        host = self.facts.get("host")
        return host if isinstance(host, str) else None


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def parse_rows(data: bytes, path: str = "") -> RowFile:
    """The rows in the bytes of a file; whatever is damaged is left out and counted."""
    raw, texts, damaged = step_rows(data)
    out = RowFile(path, damaged=damaged)
    for text in texts:
        try:
            more = json.loads(text)
        except ValueError:
            continue
        if isinstance(more, dict):
            out.facts |= more
    table = int64s(raw).reshape(-1, len(COLUMNS))
    flags = table[:, _AT["flags"]]
    thread = flags >> _THREAD_SHIFT
    is_step = (flags & BETWEEN) == 0
    if not is_step.any():
        return out
    if thread.any():  # the thread with the most steps, as in the report
        mine = thread == np.bincount(thread[is_step]).argmax()
        table, flags, is_step = table[mine], flags[mine], is_step[mine]
    if (flags & BY_UPDATES).any():
        by_updates = (flags & BY_UPDATES) != 0
        if (is_step & ~by_updates).any():
            table, flags, is_step = (each[~by_updates] for each in (table, flags, is_step))
    if is_step.all():
        out.steps = table
    else:
        out.between, out.steps = table[~is_step], table[is_step]
    out.steps = _without_evaluation(_without_inner(out.steps))
    return out


def _without_inner(steps: Ints) -> Ints:
    """Without loops that turned out to be inside a step, and without rows that are there twice."""
    start = steps[:, _AT["start_us"]]
    end = start + steps[:, _AT["wall_us"]] + steps[:, _AT["evaluation_us"]]
    if start.size < 2 or (start[1:] >= end[:-1]).all():
        return steps
    order = np.lexsort((-end, start))
    reach = np.maximum.accumulate(end[order])
    outer = np.ones(start.size, bool)
    outer[1:] = start[order][1:] >= reach[:-1] - 1
    result: Ints = steps[order[outer]]
    return result


def _without_evaluation(steps: Ints) -> Ints:
    """Without annotated loops that never learn, if others do."""
    flags = steps[:, _AT["flags"]]
    learns = (flags & LEARNS) != 0
    if learns.all() or not learns.any() or (flags & AUTOMATIC).any():
        return steps
    loop = np.cumsum((flags & LOOP_BEGINS) != 0)
    trains = np.zeros(int(loop[-1]) + 1, bool)
    trains[loop[learns]] = True
    result: Ints = steps[trains[loop]]
    return result


def pack_rows(table: Ints, facts: dict[str, Any]) -> bytes:
    """The bytes of a file with these rows, for rows that were made elsewhere."""
    rows = np.ascontiguousarray(table, np.int64)
    return pack_step_rows(rows, json.dumps({"format": 1, "columns": list(COLUMNS), **facts}))


def read_row_file(path: str) -> RowFile:
    with open(path, "rb") as file:
        return parse_rows(file.read(), path)


def rows_without_traces(paths: Paths) -> list[str]:
    """The files of rows under `paths` whose traces are gone."""
    local = here(paths)
    given = [local] if isinstance(local, str | os.PathLike) else list(local)
    there = {rows_of(file) for file in find_traces([path for path in given if not is_rows_name(path)])}
    return [file for file in find_rows(given) if file not in there]


def read_row_files(paths: Paths) -> list[RowFile]:
    """The files of rows under `paths`, with one attempt of a rank after the other."""
    files = [read_row_file(path) for path in find_rows(here(paths, heads=True))]
    files = [f for f in files if len(f.steps) or len(f.between)]
    files.sort(key=lambda f: (f.run or "", f.attempt or 0, -1 if f.rank is None else f.rank, _began(f)))
    return files


def _began(file: RowFile) -> int:
    starts = [int(t[0, _AT["start_us"]]) for t in (file.between, file.steps) if len(t)]
    return min(starts, default=0)


def ranks_of(files: Iterable[RowFile]) -> list[int]:
    """The rank of each file; processes of a run that were given none are numbered in their order."""
    without: Counter[str | None] = Counter()
    out: list[int] = []
    for file in files:
        out.append(without[file.run] if file.rank is None else file.rank)
        without[file.run] += file.rank is None
    return out


def read_rows(paths: Paths, between: bool = False) -> pl.DataFrame:
    """The steps under `paths` (files of rows, or directories), one row each.

    Columns: `rank`, `epoch`, `step`, `start_us` (since the epoch), `wall_us`, one `<stage>_us` for each stage
    of the ledger, `evaluation_us` (not part of the wall), `device_busy_us`, `read_bytes`, `written_bytes`,
    `samples`, `flags`, `run`, `attempt` and `host`. What is not known is null. With `between`, there are also
    rows of what lies between steps, before the first and after the last, marked by the flag `BETWEEN`.
    """
    import polars as pl  # noqa: PLC0415 - what only reads files does not need it

    files = read_row_files(paths)
    if not files:
        raise NoTraces(f"no step rows under {paths}")
    frames = [_frame(file, rank, between) for file, rank in zip(files, ranks_of(files), strict=True)]
    return pl.concat(frames)


def _frame(file: RowFile, rank: int, between: bool) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415

    table = file.steps
    if between:
        table = np.concatenate((table, file.between))
        table = table[np.argsort(table[:, _AT["start_us"]], kind="stable")]
    n = len(table)
    columns: dict[str, npt.NDArray[np.int64]] = {
        name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMNS)
    }
    frame = pl.DataFrame({"rank": np.full(n, rank, np.int64), **columns})
    known = pl.col("flags") & DEVICE != 0
    return frame.with_columns(
        *(pl.when(pl.col(c) >= 0).then(pl.col(c)).alias(c) for c in ("epoch", "step")),
        pl.when(known).then(pl.col("device_busy_us")).alias("device_busy_us"),
        pl.lit(file.run, dtype=pl.String).alias("run"),
        pl.lit(file.attempt, dtype=pl.Int64).alias("attempt"),
        pl.lit(file.host, dtype=pl.String).alias("host"),
    )
