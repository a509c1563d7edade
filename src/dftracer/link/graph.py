"""One table of all nodes of a rank's window: the execution trace's facts with the profiler's times.

First the join: which row of the profiler's trace is which node of the execution trace.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dftracer.format.torch_files import plain_name
from dftracer.link.columns import (
    ANNOTATION,
    DEVICE_KINDS,
    HOST_KINDS,
    OP,
    RUNTIME,
    ActivityTable,
    Codes,
    Flags,
    Interner,
    Ints,
    contains,
    distinct,
)
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.load._scan import nest
from dftracer.load.chunk import int64s

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


# --- The table of all nodes

_USER_SCOPE = 7  # at::RecordScope::USER_SCOPE: regions named by the program


@dataclass
class Graph:
    """Rows are nodes: those of the execution trace first, then the rest of the host's, then the devices'.

    `place` is the position of a node in one order of all; every edge goes from a smaller to a larger
    place, so there is no cycle.
    """

    id: Ints
    et: Ints  # row in the execution trace, -1 without
    activity: Ints  # row in the activity table, -1 without: then there is no time
    kind: Ints
    name: Codes
    names: list[str]
    start: Ints  # ns; for nodes without their own time, the earliest they can have begun
    dur: Ints
    exclusive: Ints  # without what is inside, and without waiting for another thread
    own: Ints  # how long it takes in a replay: its own part plus the pause of its thread before it
    waiting: Ints  # how much of its exclusive time it waited for another thread
    tid: Ints
    parent: Ints  # row, -1 at the top
    launch: Ints  # device work: the row of the call that started it
    place: Ints
    structural: Flags

    def __len__(self) -> int:
        return int(self.id.size)

    @property
    def timed(self) -> Flags:
        has: Flags = self.activity >= 0
        return has

    @property
    def end(self) -> Ints:
        end: Ints = self.start + self.dur
        return end

    def subtract_waiting(self, waiting: Ints) -> None:
        """Time spent waiting for another thread is not the node's own."""
        self.waiting = waiting
        self.exclusive = self.exclusive - waiting

    @property
    def on_device(self) -> Flags:
        there: Flags = np.isin(self.kind, DEVICE_KINDS)
        return there


def nesting(tid: Ints, start: Ints, dur: Ints) -> tuple[Ints, Ints]:
    """Parent row (-1 at the top) and exclusive time; of equal spans of a thread the earlier is the outer."""
    # The native sweep treats the later of two equal spans as the outer one.
    columns = (np.ascontiguousarray(c[::-1]) for c in (tid, start, dur))
    parent, own = (int64s(c)[::-1] for c in nest(*columns))
    rows: Ints = np.where(parent < 0, -1, tid.size - 1 - parent)
    return rows, np.ascontiguousarray(own)


def build_graph(et: ExecutionTrace, activity: ActivityTable, joined: Join) -> Graph:
    """Combine the tables."""
    n_et = len(et)
    taken = np.zeros(len(activity), dtype=bool)
    taken[joined.row[joined.row >= 0]] = True
    more = np.flatnonzero(activity.is_kind(*HOST_KINDS) & ~taken)
    devices = np.flatnonzero(activity.is_kind(*DEVICE_KINDS))
    others = np.concatenate([more, devices])
    row = np.concatenate([joined.row, others])
    n = row.size
    timed = row >= 0
    et_row = np.concatenate([np.arange(n_et), np.full(others.size, -1, dtype=np.int64)])

    def column(values: Ints, missing: int) -> Ints:
        out = np.full(n, missing, dtype=np.int64)
        out[timed] = values[row[timed]]
        return out

    kind = column(activity.kind, OP)
    kind[:n_et] = np.where(timed[:n_et], kind[:n_et], np.where(et.scope == _USER_SCOPE, ANNOTATION, OP))
    structural = np.zeros(n, dtype=bool)
    structural[:n_et] = ~et.real
    start, dur = column(activity.start, 0), column(activity.dur, 0)
    start[:n_et] = _possible_start(start[:n_et], timed[:n_et], structural[:n_et])
    on_device = np.isin(kind, DEVICE_KINDS)
    tid = column(activity.tid, -1)
    host = timed & ~on_device
    parent, exclusive = _parents(et, tid, start, dur, host, structural, n)
    launch = _launches(activity, row, kind, on_device, host)
    at = np.flatnonzero(launch >= 0)
    above = launch[at]
    # A kernel belongs to the operator around the call that launched it.
    parent[at] = np.where((kind[above] == RUNTIME) & (parent[above] >= 0), parent[above], above)
    name, names = _names(et, activity, row, n_et)
    place = _order(start, dur, on_device, launch, timed, structural, et_row, activity.rf, row)
    return Graph(
        id=_ids(et, n),
        et=et_row,
        activity=row,
        kind=kind,
        name=name,
        names=names,
        start=start,
        dur=dur,
        exclusive=exclusive,
        own=exclusive.copy(),
        waiting=np.zeros(n, dtype=np.int64),
        tid=tid,
        parent=parent,
        launch=launch,
        place=place,
        structural=structural,
    )


def _possible_start(start: Ints, timed: Flags, structural: Flags) -> Ints:
    """Ids are assigned when a node begins, so a node without a time began after those with smaller ids."""
    if not timed.any():
        return np.where(structural, 0, 2 * np.arange(start.size, dtype=np.int64))
    known = np.where(timed, start, np.iinfo(np.int64).min)
    latest = np.maximum.accumulate(known)
    first = int(start[timed].min())
    return np.where(timed, start, np.where(structural, first, np.maximum(latest, first)))


def _parents(
    et: ExecutionTrace, tid: Ints, start: Ints, dur: Ints, host: Flags, structural: Flags, n: int
) -> tuple[Ints, Ints]:
    """Nesting by time if there is one: torch's own parents are wrong for asynchronous work."""
    parent = np.full(n, -1, dtype=np.int64)
    exclusive = dur.copy()
    rows = np.flatnonzero(host)
    if rows.size:
        up, own = nesting(tid[rows], start[rows], dur[rows])
        parent[rows] = np.where(up < 0, -1, rows[up])
        exclusive[rows] = own
    n_et = len(et)
    if n_et:
        at = np.searchsorted(et.id, et.parent)
        at[at == n_et] = 0
        known = (et.id[at] == et.parent) & (at < np.arange(n_et))
        untimed = ~host[:n_et]
        # The top nodes of a thread belong to the node that represents the thread.
        use = known & (untimed | ((parent[:n_et] < 0) & structural[at]))
        parent[:n_et][use] = at[use]
    return parent, exclusive


def _launches(activity: ActivityTable, row: Ints, kind: Ints, on_device: Flags, host: Flags) -> Ints:
    """Maps device work to the call with its correlation, otherwise to the operator with its external id."""
    n = row.size
    launch = np.full(n, -1, dtype=np.int64)
    work = np.flatnonzero(on_device)
    if not work.size:
        return launch
    for values, possible in (
        (activity.correlation, np.flatnonzero(host & (kind == RUNTIME))),
        (activity.external, np.flatnonzero(host & (kind == OP))),
    ):
        key = values[row[possible]]
        candidates, key = possible[key >= 0], key[key >= 0]
        if not key.size:
            continue
        there, first = np.unique(key, return_index=True)
        open_work = work[launch[work] < 0]
        wanted = values[row[open_work]]
        at = np.searchsorted(there, wanted)
        at[at == there.size] = 0
        hit = (there[at] == wanted) & (wanted >= 0)
        launch[open_work[hit]] = candidates[first[at[hit]]]
    return launch


def _names(et: ExecutionTrace, activity: ActivityTable, row: Ints, n_et: int) -> tuple[Codes, list[str]]:
    numbers = Interner()
    of_et = np.array(numbers.codes(et.names) or [0], dtype=np.int32)
    of_activity = np.array(numbers.codes(activity.names) or [0], dtype=np.int32)
    return np.concatenate([of_et[et.name], of_activity[activity.name[row[n_et:]]]]), list(numbers)


def _ids(et: ExecutionTrace, n: int) -> Ints:
    """The ids of the execution trace, and new ones for nodes that it lacks or has twice."""
    ids = np.zeros(n, dtype=np.int64)
    ids[: len(et)] = et.id
    new = np.ones(n, dtype=bool)
    if len(et):
        new[np.unique(et.id, return_index=True)[1]] = False
    first = int(et.id.max()) + 1 if len(et) else 1
    ids[new] = first + np.arange(int(new.sum()))
    return ids


def _order(
    start: Ints,
    dur: Ints,
    on_device: Flags,
    launch: Ints,
    timed: Flags,
    structural: Flags,
    et_row: Ints,
    rf: Ints,
    row: Ints,
) -> Ints:
    """A place for every node: by start, outer before inner, device work never before its launch."""
    begin = start.copy()
    launched = np.flatnonzero(launch >= 0)
    # The clocks of host and device may differ by microseconds.
    begin[launched] = np.maximum(begin[launched], start[launch[launched]])
    level = np.where(structural, 0, np.where(on_device, 3, np.where(timed, 1, 2)))
    begin[structural] = begin.min() if begin.size else 0
    record = np.zeros(start.size, dtype=np.int64)
    record[timed] = rf[row[timed]]
    record[record <= 0] = np.iinfo(np.int64).max
    within = np.where(structural | ~timed, et_row, 0)
    length = np.where(timed, -dur, 0)
    order = np.lexsort((np.arange(start.size), record, length, within, level, begin))
    place = np.empty(start.size, dtype=np.int64)
    place[order] = np.arange(start.size)
    return place
