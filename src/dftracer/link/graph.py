"""One table of all nodes of a rank's window: the execution trace's facts with the profiler's times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dftracer.link._columns import Codes, Flags, Interner, Ints
from dftracer.link.activity import ANNOTATION, DEVICE_KINDS, HOST_KINDS, OP, RUNTIME, ActivityTable
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.join import Join
from dftracer.load._scan import nest
from dftracer.load.chunk import int64s

__all__ = ["Graph", "build_graph", "nesting"]

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

    def take_out_waiting(self, waiting: Ints) -> None:
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
