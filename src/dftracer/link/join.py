"""Which row of the profiler's trace is which node of the execution trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dftracer._torch_files import plain_name
from dftracer.link._columns import Flags, Ints, contains, distinct
from dftracer.link.activity import ANNOTATION, OP, ActivityTable
from dftracer.link.execution_trace import ExecutionTrace

__all__ = ["BY_ORDER", "BY_RF", "MIN_AGREEMENT", "Join", "join"]

BY_RF, BY_ORDER = 1, 2
# Two windows of one process share ids by chance and then agree on about a quarter of the names.
MIN_AGREEMENT = 0.8
_LOOKAHEAD = 256


@dataclass
class Join:
    """For each node the row of its activity (-1 without one), how it was found, and any problems."""

    row: Ints
    how: Ints
    et_nodes: int
    matched: int  # the same id, whatever the name
    joined: int
    refused: str = ""
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        return self.joined / self.et_nodes if self.et_nodes else 0.0

    @property
    def name_agreement(self) -> float | None:
        """The share of the nodes with a common id whose names also agree; None without common ids."""
        return self.agreeing / self.matched if self.matched else None

    agreeing: int = 0


def join(et: ExecutionTrace, activity: ActivityTable) -> Join:
    """Join by record function id, checked against pid and name; without ids, by the order on each thread."""
    real = et.real
    total = int(real.sum())
    none = np.full(len(et), -1, dtype=np.int64)
    out = Join(none, np.zeros(len(et), dtype=np.int64), total, 0, 0)
    if not len(activity) or not total:
        return _refuse(out, "there is nothing to join with")
    et_name, act_name = _common_names(et, activity)
    host = activity.is_kind(OP, ANNOTATION)
    with_ids = et.has_rf_ids and bool((activity.rf[host] > 0).any())
    if et.has_rf_ids and not with_ids and _knows_ids(activity):
        return _refuse(
            out, "the observer was off while the profiler recorded: none of its events has a record id"
        )
    if with_ids:
        _by_rf(out, et, activity, host, et_name, act_name)
        if et.pid is not None and activity.main_pid is not None and et.pid != activity.main_pid:
            return _refuse(
                out,
                f"wrong pair: the execution trace belongs to process {et.pid},"
                f" the profiler's to {activity.main_pid}",
            )
        agreement = out.name_agreement
        if agreement is not None and agreement < MIN_AGREEMENT:
            return _refuse(
                out,
                f"wrong pair: ids match, but only {agreement:.0%} of the names agree;"
                " the files belong to different windows or processes",
            )
        if not out.joined:
            return _refuse(out, _no_common_id(et, activity, host))
    else:
        _by_order(out, et, activity, host, et_name, act_name, real)
    out.how[~real] = 0
    out.row[~real] = -1
    out.joined = int((out.row >= 0).sum())
    _explain(out, et, activity, real, with_ids)
    return out


def _refuse(out: Join, why: str) -> Join:
    out.row[:] = -1
    out.how[:] = 0
    out.joined = 0
    out.refused = why
    if out.et_nodes:
        out.reasons = {why: out.et_nodes}
    return out


def _knows_ids(activity: ActivityTable) -> bool:
    """Whether the writer of the file could have put ids into it; older versions and nsys cannot."""
    return activity.source == "kineto" and activity.writes_ids


def _no_common_id(et: ExecutionTrace, activity: ActivityTable, host: Flags) -> str:
    there = activity.rf[host & (activity.rf > 0)]
    if int(there.min()) > int(et.rf.max()):
        return (
            "no common id: the profiler's file belongs to a later window; without repeat=1 in its schedule"
            " each cycle overwrites the file of the one before"
        )
    return "no common id: the two files belong to different windows"


def _common_names(et: ExecutionTrace, activity: ActivityTable) -> tuple[Ints, Ints]:
    """Codes of both tables' names in one numbering; differences in escaping are ignored."""
    numbers: dict[str, int] = {}
    both = []
    for names in (et.names, activity.names):
        both.append(np.array([numbers.setdefault(plain_name(n), len(numbers)) for n in names] or [0]))
    return both[0][et.name].astype(np.int64), both[1][activity.name].astype(np.int64)


def _by_rf(
    out: Join, et: ExecutionTrace, activity: ActivityTable, host: Flags, et_name: Ints, act_name: Ints
) -> None:
    own = host & (activity.rf > 0)
    if activity.main_pid is not None:
        own &= activity.pid == activity.main_pid
    rows = np.flatnonzero(own)
    wide = int(max(et_name.max(), act_name.max())) + 1
    candidates = np.flatnonzero((et.rf > 0) & et.real)
    out.matched = int(contains(activity.rf[rows], et.rf[candidates]).sum())
    there, first = np.unique(activity.rf[rows] * wide + act_name[rows], return_index=True)
    key = et.rf[candidates] * wide + et_name[candidates]
    out.agreeing = int(contains(there, key).sum())
    # A forked child repeats ids: the first node with each id gets the row.
    _, once = np.unique(key, return_index=True)
    candidates, key = candidates[once], key[once]
    at = np.searchsorted(there, key)
    at[at == there.size] = 0
    hit = there[at] == key if there.size else np.zeros(key.size, dtype=bool)
    out.row[candidates[hit]] = rows[first[at[hit]]]
    out.how[candidates[hit]] = BY_RF
    out.joined = int(hit.sum())


def _by_order(
    out: Join,
    et: ExecutionTrace,
    activity: ActivityTable,
    host: Flags,
    et_name: Ints,
    act_name: Ints,
    real: Flags,
) -> None:
    """Threads with the most similar names belong together; on each, names must come in the same order."""
    ours = {t: np.flatnonzero(real & (et.tid == t)) for t in distinct(et.tid[real]).tolist()}
    theirs = {t: np.flatnonzero(host & (activity.tid == t)) for t in distinct(activity.tid[host]).tolist()}
    counts = {t: Counter(act_name[rows].tolist()) for t, rows in theirs.items()}
    free = set(theirs)
    for nodes in sorted(ours.values(), key=len, reverse=True):
        wanted = Counter(et_name[nodes].tolist())
        best = max(free, key=lambda t: (sum((wanted & counts[t]).values()), -len(theirs[t])), default=None)
        if best is None or not wanted & counts[best]:
            continue
        free.discard(best)
        rows = theirs[best]
        for i, j in _align(et_name[nodes].tolist(), act_name[rows].tolist()):
            out.row[nodes[i]] = rows[j]
            out.how[nodes[i]] = BY_ORDER
    out.matched = out.agreeing = out.joined = int((out.row >= 0).sum())


def _align(a: list[int], b: list[int]) -> list[tuple[int, int]]:
    """Pairs of equal items in order; where the lists differ, the shortest jump to two equal in a row."""
    pairs = []
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i] == b[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
            continue
        for jump in range(1, _LOOKAHEAD):
            if _agree(a, b, i, j + jump):
                j += jump
                break
            if _agree(a, b, i + jump, j):
                i += jump
                break
        else:
            i, j = i + 1, j + 1
    return pairs


def _agree(a: list[int], b: list[int], i: int, j: int) -> bool:
    return a[i : i + 2] == b[j : j + 2] and i < len(a) and j < len(b)


def _explain(out: Join, et: ExecutionTrace, activity: ActivityTable, real: Flags, with_ids: bool) -> None:
    """Count the nodes that were not joined by reason."""
    if out.refused:
        return
    lost = real & (out.row < 0)
    if not lost.any():
        return
    rows = np.arange(len(et))
    joined = np.flatnonzero(out.row >= 0)
    watched = contains(et.tid[joined], et.tid)
    seen = contains(activity.rf[activity.rf > 0], et.rf)
    repeated = np.zeros(len(et), dtype=bool)
    if with_ids:
        first = np.zeros(len(et), dtype=bool)
        first[np.unique(et.rf, return_index=True)[1]] = True
        repeated = ~first & (et.rf > 0)
    checks = []
    if with_ids:
        checks.append(("no record id: the profiler was off while the observer ran", et.rf <= 0))
        checks.append(("id repeated: a forked child wrote into the same file", repeated))
        checks.append(("the id is there with another name", seen))
    checks.append(("on a thread that the profiler did not watch", ~watched))
    if joined.size:
        checks.append(("before the profiler's window", rows < joined[0]))
        checks.append(("after the profiler's window", rows > joined[-1]))
    checks.append(("not in the profiler's trace", np.ones(len(et), dtype=bool)))
    for reason, applies in checks:
        n = int((lost & applies).sum())
        if n:
            out.reasons[reason] = n
        lost &= ~applies
