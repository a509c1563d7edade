"""Where each moment of a training thread went: its exclusive timeline, as a part with a single row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import Intervals, difference, union
from dftracer.analyze.lanes import Lane, overlay
from dftracer.analyze.stages import CLASSES, NONE, RULES, STAGE_INDEX, STAGES, class_of
from dftracer.load._scan import timeline
from dftracer.load.chunk import Ints, int64s, uint8s
from dftracer.view.kinds import KIND_INDEX
from dftracer.view.part import BLOCK, Part, Spans, build_part

__all__ = ["LEDGER", "ledger_between", "ledger_part"]

LEDGER = "ledger"
_KIND = {"fetch_wait": "fetch wait", "comm": "communication", "own_code": "own code"}
_STEPS = [CLASSES.index(c) for c in ("block", "fetch_wait")]
_COMPUTE = [CLASSES.index(c) for c in ("forward", "backward", "optimizer", "update", "any_compute")]
_SKIP = CLASSES.index("skip")


def ledger_part(part: Part, auto: bool = False) -> Part | None:
    """The timeline of the training thread; None if there is none. Pairs are numbered as in STAGES.

    `auto`: its steps were recorded automatically, so what no stage covers in them is the program's own code.
    """
    cls_of_pair = np.array([class_of(cat, name) for cat, name, _ in part.pairs], np.uint8)
    main = _training_tid(part, cls_of_pair)
    if main is None:
        return None
    lanes = [_lane(part, tid, cls_of_pair) for tid in np.unique(part.row_tid).tolist()]
    mine = next(lane for lane in lanes if lane.tid == main)
    start, end, stage = overlay(mine, [lane for lane in lanes if lane.tid != main], auto)
    told = stage != NONE
    start, end, stage = start[told], end[told], stage[told]
    if auto:
        own = _uncovered(part, main, cls_of_pair, union(start, end))
        start, end = (np.concatenate(pair) for pair in ((start, own[0]), (end, own[1])))
        stage = np.concatenate((stage, np.full(own[0].size, STAGE_INDEX["own_code"], stage.dtype)))
        order = np.argsort(start, kind="stable")
        start, end, stage = start[order], end[order], stage[order]
    pairs = [
        (LEDGER, s.replace("_", " "), KIND_INDEX.get(_KIND.get(s, s), KIND_INDEX["other"])) for s in STAGES
    ]
    n = start.size
    spans = Spans(
        np.full(n, main, np.int64),
        start,
        end,
        stage.astype(np.int32),
        np.full(n, -1, np.int32),
        np.zeros(n, np.int64),
        np.full(n, -1, np.int64),
    )
    return build_part({**part.info, "source": LEDGER, "tid": main}, pairs, [], spans)[0]


def _uncovered(part: Part, tid: int, cls_of_pair: npt.NDArray[np.uint8], covered: Intervals) -> Intervals:
    """What nothing covers in the steps of a thread, evaluation inside them left out."""
    rows = [part.row_span(r) for r in np.flatnonzero(part.row_tid == tid).tolist()]
    at = np.concatenate([np.arange(low, high) for low, high in rows])
    cls = cls_of_pair[part.pair[at]]
    body, around = at[cls == CLASSES.index("block")], at[cls == CLASSES.index("container")]
    evaluates = np.array([name.startswith(("evaluate", "test")) for _, name, _ in part.pairs], bool)
    around = around[evaluates[part.pair[around]]]
    steps = union(part.start[body], part.end[body])
    return difference(difference(steps, covered), union(part.start[around], part.end[around]))


def _training_tid(part: Part, cls_of_pair: npt.NDArray[np.uint8]) -> int | None:
    """The thread with the most steps; without any, the one with the most compute."""
    for wanted in (_STEPS, _COMPUTE):
        of_pair = np.isin(cls_of_pair, wanted)
        if not of_pair.any():
            continue
        counts: dict[int, int] = {}
        for row in range(part.rows):
            low, high = part.row_span(row)
            tid = int(part.row_tid[row])
            counts[tid] = counts.get(tid, 0) + int(of_pair[part.pair[low:high]].sum())
        best = max(counts, key=lambda t: counts[t])
        if counts[best]:
            return best
    return None


def _lane(part: Part, tid: int, cls_of_pair: npt.NDArray[np.uint8]) -> Lane:
    rows = [part.row_span(r) for r in np.flatnonzero(part.row_tid == tid).tolist()]
    at = np.concatenate([np.arange(low, high) for low, high in rows])
    # Among equal intervals, the later one encloses: here deeper rows come last.
    at = at[::-1]
    cls = cls_of_pair[part.pair[at]]
    at, cls = at[cls != _SKIP], cls[cls != _SKIP]
    start = part.start[at]
    pieces = timeline(start, part.end[at] - start, np.ascontiguousarray(cls), RULES, len(STAGES), NONE)
    return Lane(tid, int64s(pieces[0]), int64s(pieces[1]), uint8s(pieces[2]), int(at.size))


def ledger_between(part: Part, t0: int, t1: int) -> Ints:
    """The time of each stage between two moments; it adds up to the length of the range."""
    out = np.zeros(len(STAGES), np.int64)
    if len(part):
        out += _until(part, t1) - _until(part, t0)
    out[NONE] = (t1 - t0) - out[:NONE].sum()
    return out


def _until(part: Part, t: int) -> Any:
    out = np.zeros(len(STAGES), np.int64)
    upto = int(np.searchsorted(part.start, t, side="left"))
    block = upto // BLOCK
    # Each stage has its own kind, so classes are stages.
    of_pair = part.class_of_pair().tolist()
    for k, c in enumerate(part.classes.tolist()):
        out[of_pair.index(c)] = int(part.sums[block * part.classes.size + k])
    for i in range(block * BLOCK, upto):
        out[part.pair[i]] += int(part.end[i]) - int(part.start[i])
    if upto and part.end[upto - 1] > t:
        out[part.pair[upto - 1]] -= int(part.end[upto - 1]) - t
    return out
