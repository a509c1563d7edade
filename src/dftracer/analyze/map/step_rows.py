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
from dftracer.analyze.map.steps import Checkpoint, Marks, StepTable, find_phases
from dftracer.analyze.stages import INPUT_STAGES, STAGE_INDEX, STAGES
from dftracer.load.chunk import MISSING, Ints
from dftracer.load.process import ProcessInfo, as_integer
from dftracer.load.rows import (
    AUTOMATIC,
    COLUMNS,
    FORWARD_UNSEEN,
    INFERENCE,
    LOOP_BEGINS,
    RESTORES,
    RowFile,
    read_row_files,
)

_START, _EVALUATION = COLUMNS.index("start_us"), COLUMNS.index("evaluation_us")
_CHECKPOINT = COLUMNS.index("checkpoint_us")
_INPUT = [4 + STAGE_INDEX[s] for s in INPUT_STAGES]
_STAGES = slice(4, 4 + len(STAGES))


def rows_of_run(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], run: str | None = None
) -> tuple[list[RowFile], list[str]]:
    """The processes of a run, the newest unless `run` names one or is `all`; and the ids of the others."""
    files = [f for f in read_row_files(paths) if len(f.steps)]
    newest = {f.run: max(int(g.steps[-1, _START]) for g in files if g.run == f.run) for f in files}
    runs = sorted(newest, key=lambda r: -newest[r])
    if run != "all" and runs:
        wanted = run if run is not None else runs[0]
        files = [f for f in files if f.run == wanted]
        runs = [r for r in runs if r != wanted]
    return files, [r or "(no id)" for r in runs]


def process_of_rows(file: RowFile) -> ProcessInfo:
    """The process that made some rows. Whether it reported its end shows in what follows its last step."""
    facts = file.facts
    first = min(int(t[0, _START]) for t in (file.steps, file.between) if len(t))
    last = max(int(_ends(t[-1:])[0]) for t in (file.steps, file.between) if len(t))
    ended = not len(file.steps) or (
        len(file.between) and int(file.between[-1, _START]) >= int(file.steps[-1, _START])
    )
    run = {"id": file.run, **{k: v for k, v in facts.items() if k not in {"run", "columns", "format"}}}
    out = ProcessInfo(Path(file.path), as_integer(facts.get("pid"), -1) or -1)
    out.rank, out.world_size = file.rank, as_integer(facts.get("world_size"), None)
    out.host, out.command = file.host or "", str(facts.get("command") or "")
    out.start_us, out.born_us, out.end_us = as_integer(facts.get("start"), first), first, last
    out.end = {} if ended else None
    out.run = run if file.run else None
    out.facts = {k: v for k, v in facts.items() if k.startswith("run_") and isinstance(v, str)}
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


def partial_of_rows(file: RowFile) -> Partial:
    """What rows tell of their process."""
    steps, between = file.steps, file.between
    start, end, flags = steps[:, _START].copy(), _ends(steps), file.column("flags")
    step, epoch = (np.where(file.column(c) < 0, MISSING, file.column(c)) for c in ("step", "epoch"))
    waited = bool(steps[:, 4 + STAGE_INDEX["fetch_wait"]].any())
    table = StepTable(start, start, end, step, epoch, "fetch" if waited else "block")
    table.loop = np.cumsum((flags & LOOP_BEGINS) != 0).astype(np.int64)
    table.flags = flags & (FORWARD_UNSEEN | INFERENCE)
    process = process_of_rows(file)
    first, last = process.born_us or 0, process.end_us or 0
    out = Partial(process, first_us=first, last_us=last, steps=table)
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
    out.batches, out.samples_made = len(steps), int(file.column("samples").sum())
    out.device_busy = file.device_busy
    out.input, out.checkpoints = _input(steps, between), _checkpoints(steps, between)
    out.spent = _spent(table, steps, between)
    return out


def _input(*tables: Ints) -> Intervals:
    """Loading data, or waiting for it, has its time right after the evaluation of its row."""
    both = np.concatenate(tables)
    starts = both[:, _START] + both[:, _EVALUATION]
    return union(starts, starts + both[:, _INPUT].sum(axis=1))


def _checkpoints(*tables: Ints) -> list[Checkpoint]:
    """Those of one row are one, at its end. Where they are, and what number is in them, is not known."""
    both = np.concatenate(tables)
    both = both[both[:, _CHECKPOINT] > 0]
    done = np.searchsorted(tables[0][:, _START], both[:, _START], side="right")
    return [
        Checkpoint(
            0, end - us, end, restored=bool(flags & RESTORES), path=None, counter=None, failed=False, done=n
        )
        for end, us, flags, n in zip(
            _ends(both).tolist(),
            both[:, _CHECKPOINT].tolist(),
            both[:, -1].tolist(),
            done.tolist(),
            strict=True,
        )
    ]


def _spent(table: StepTable, steps: Ints, between: Ints) -> Spent:
    out = Spent(int(np.flatnonzero(table.steady)[0]) if table.steady.any() else 0)
    inside = (between[:, _START] >= table.start[out.first]) & (between[:, _START] < table.end[-1])
    out.between = between[inside, _STAGES].sum(axis=0)
    out.evaluation_us = int(steps[out.first :, _EVALUATION].sum() + between[inside, _EVALUATION].sum())
    out.size = np.zeros(len(table), np.int64)
    return out
