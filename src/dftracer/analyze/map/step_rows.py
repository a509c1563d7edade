"""A run of which only the step rows are left: steps, ledger, account and ranks, without events.

Where inside a step a stage was is not known, and not needed: a row has the sums that the report would make
from the events.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dftracer.analyze.intervals import Intervals, union
from dftracer.analyze.map.account import Spent
from dftracer.analyze.map.partial import Partial
from dftracer.analyze.map.steps import Marks, StepTable, find_phases
from dftracer.analyze.stages import STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING, Ints
from dftracer.load.process import ProcessInfo, as_integer
from dftracer.load.rows import (
    AUTOMATIC,
    COLUMNS,
    FORWARD_UNSEEN,
    INFERENCE,
    LOOP_BEGINS,
    RowFile,
    read_row_files,
)

_START, _EVALUATION = COLUMNS.index("start_us"), COLUMNS.index("evaluation_us")
_STAGES = slice(4, 4 + len(STAGES))


def partials_of_rows(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], run: str | None = None
) -> tuple[list[Partial], list[str]]:
    """The processes of a run, the newest unless `run` names one or is `all`; and the ids of the others."""
    files = [f for f in read_row_files(paths) if len(f.steps)]
    newest = {f.run: max(int(g.steps[-1, _START]) for g in files if g.run == f.run) for f in files}
    runs = sorted(newest, key=lambda r: -newest[r])
    if run != "all" and runs:
        wanted = run if run is not None else runs[0]
        files = [f for f in files if f.run == wanted]
        runs = [r for r in runs if r != wanted]
    return [_partial(file) for file in files], [r or "(no id)" for r in runs]


def _process(file: RowFile, first: int, last: int) -> ProcessInfo:
    facts = file.facts
    ended = len(file.between) and int(file.between[-1, _START]) >= int(file.steps[-1, _START])
    run = {"id": file.run, **{k: v for k, v in facts.items() if k not in {"run", "columns", "format"}}}
    out = ProcessInfo(Path(file.path), as_integer(facts.get("pid"), -1) or -1)
    out.rank, out.world_size = file.rank, as_integer(facts.get("world_size"), None)
    out.host, out.command = file.host or "", str(facts.get("command") or "")
    out.start_us, out.born_us, out.end_us = as_integer(facts.get("start"), first), first, last
    out.end = {} if ended else None
    out.run = run if file.run else None
    size = os.path.getsize(file.path) if os.path.isfile(file.path) else 0
    out.counts = {"file_bytes": size, "rows": len(file.steps), "members_cut": int(file.damaged > 0)}
    return out


def _ends(table: Ints) -> Ints:
    out: Ints = table[:, _START] + table[:, COLUMNS.index("wall_us")] + table[:, _EVALUATION]
    return out


def _evaluation(*tables: Ints) -> Intervals:
    """Evaluation is somewhere inside its row: as good as any place is its beginning."""
    starts = np.concatenate([t[:, _START] for t in tables])
    return union(starts, starts + np.concatenate([t[:, _EVALUATION] for t in tables]))


def _partial(file: RowFile) -> Partial:
    steps, between = file.steps, file.between
    start, end, flags = steps[:, _START].copy(), _ends(steps), file.column("flags")
    step, epoch = (np.where(file.column(c) < 0, MISSING, file.column(c)) for c in ("step", "epoch"))
    waited = bool(steps[:, 4 + STAGE_INDEX["fetch_wait"]].any())
    table = StepTable(start, start, end, step, epoch, "fetch" if waited else "block")
    table.loop = np.cumsum((flags & LOOP_BEGINS) != 0).astype(np.int64)
    table.flags = flags & (FORWARD_UNSEEN | INFERENCE)
    first = min([int(start[0]), *(int(b) for b in between[:1, _START])])
    last = max([int(end[-1]), *(int(e) for e in _ends(between[-1:]))])
    out = Partial(_process(file, first, last), first_us=first, last_us=last, steps=table)
    # After the last step, what is in no stage is the end of the process, not of the training.
    tail = between[between[:, _START] >= start[-1]].sum(axis=0)
    tail[[4 + STAGE_INDEX["own_code"], 4 + STAGE_INDEX["unexplained"]]] = 0
    trained = int(end[-1] + tail[_STAGES].sum() + tail[_EVALUATION])
    marks = Marks(evaluate=_evaluation(steps, between), first_us=int(start[0]), last_us=trained)
    marks.born_us, marks.over_us, marks.cut = first, last, out.process.end is None
    out.phases = find_phases(table, marks, (np.empty(0, np.int64), np.empty(0, np.int64)))
    out.account = np.ascontiguousarray(steps[:, _STAGES])
    out.auto, out.from_rows = bool((flags & AUTOMATIC).any()), True
    out.seen = frozenset(s for i, s in enumerate(STAGES) if steps[:, 4 + i].any())
    inside = (between[:, _START] >= start[0]) & (between[:, _START] < start[-1])
    out.outside = between[inside, _STAGES].sum(axis=0) + tail[_STAGES]
    out.before = between[between[:, _START] < start[0], _STAGES].sum(axis=0)
    out.batches = len(steps)
    out.spent = _spent(table, steps, between)
    return out


def _spent(table: StepTable, steps: Ints, between: Ints) -> Spent:
    out = Spent(int(np.flatnonzero(table.steady)[0]) if table.steady.any() else 0)
    inside = (between[:, _START] >= table.start[out.first]) & (between[:, _START] < table.end[-1])
    out.between = between[inside, _STAGES].sum(axis=0)
    out.evaluation_us = int(steps[out.first :, _EVALUATION].sum() + between[inside, _EVALUATION].sum())
    out.size = np.zeros(len(table), np.int64)
    return out
