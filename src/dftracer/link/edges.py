"""Why a node could not begin earlier: typed edges between nodes, none of them in a cycle."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from dftracer.link._columns import Flags, Ints, distinct
from dftracer.link.activity import OP, RUNTIME, SYNC, ActivityTable
from dftracer.link.data_edges import data_edges
from dftracer.link.execution_trace import ExecutionTrace
from dftracer.link.graph import Graph
from dftracer.link.handovers import handovers, own_times, returned, waiting
from dftracer.link.last_before import last_before

__all__ = ["EDGE_TYPES", "Edges", "begun_inside", "find_edges"]

# New types go at the end: the numbers are stored in files.
EDGE_TYPES = ("call", "order", "launch", "stream", "sync", "forward_backward", "data", "thread", "comm")
_HOST_SYNC = re.compile(r"(cuda|hip|mu|cu)(Ctx|Device|Stream|Event|Context)Synchronize", re.IGNORECASE)
_STREAM_OR_EVENT = re.compile(r"(Stream|Event)Synchronize", re.IGNORECASE)


@dataclass
class Edges:
    """Edges as columns of rows; `against` counts what was left out because the clocks contradict it."""

    source: Ints
    target: Ints
    type: Ints
    against: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """How many there are of each type."""
        n = np.bincount(self.type, minlength=len(EDGE_TYPES)).tolist()
        return {name: n[i] for i, name in enumerate(EDGE_TYPES) if n[i]}


Pairs = tuple[Ints, Ints]


def find_edges(
    graph: Graph, et: ExecutionTrace, activity: ActivityTable, carriers: Ints, issued: Pairs
) -> Edges:
    """All edges; `carriers` are the nodes that moved the data of collectives, `issued` the pairs of calls and
    what carried them out on another thread.

    Time a thread spent waiting for another is subtracted from the graph's exclusive times along the way:
    there are edges for it now.
    """
    host = graph.timed & ~graph.on_device
    chain = _chains(graph, host)
    handed = handovers(graph, host, chain, carriers)
    waited, waits = waiting(graph, handed, issued)
    graph.take_out_waiting(waited)
    graph.own = own_times(graph, host, chain, handed, waits)
    found: dict[str, Pairs] = {
        "call": _call(graph),
        "order": _order(graph, chain),
        "launch": _launch(graph),
        "stream": _stream(graph, activity),
        "sync": _sync(graph, activity, chain),
        "forward_backward": _forward_backward(graph, et, activity),
        "data": data_edges(graph, et),
        "thread": (handed.source, handed.target),
        "comm": _joined(issued, returned(graph, chain, issued)),
    }
    sources, targets, types, against = [], [], [], {}
    for number, name in enumerate(EDGE_TYPES):
        source, target = found[name]
        forward = graph.place[source] < graph.place[target]
        wrong = int((~forward).sum())
        if wrong:
            against[name] = wrong
        source, target = source[forward], target[forward]
        # One edge of a type between two nodes is enough.
        pairs = distinct(source * max(len(graph), 1) + target)
        sources.append(pairs // max(len(graph), 1))
        targets.append(pairs % max(len(graph), 1))
        types.append(np.full(pairs.size, number, dtype=np.int64))
    edges = Edges(np.concatenate(sources), np.concatenate(targets), np.concatenate(types), against)
    _add_pauses(graph, edges)
    return edges


def begun_inside(graph: Graph, edges: Edges) -> Flags:
    """Edges to collectives that another thread began while their call was still running, and ended after it.

    A data dependency means that all of the source's time comes before: that would be too late.
    """
    source, target = edges.source, edges.target
    inside: Flags = (
        (edges.type == EDGE_TYPES.index("comm"))
        & (graph.tid[source] != graph.tid[target])
        & (graph.start[target] < graph.end[source])
        & (graph.end[source] < graph.end[target])
    )
    return inside


def _add_pauses(graph: Graph, edges: Edges) -> None:
    """Such a collective waits for what its call waited for: from there to its beginning is its pause."""
    early = np.flatnonzero(begun_inside(graph, edges))
    if not early.size:
        return
    order = np.argsort(edges.target, kind="stable")
    low, high = (
        np.searchsorted(edges.target[order], edges.source[early], side) for side in ("left", "right")
    )
    for row, first, last in zip(early.tolist(), low.tolist(), high.tolist(), strict=True):
        call, carrier = edges.source[row], edges.target[row]
        begin = graph.start[call]
        done = graph.end[edges.source[order[first:last]]]
        done = done[done <= begin]
        idle = min(graph.own[call] - graph.exclusive[call], begin - done.max()) if done.size else 0
        graph.own[carrier] += max(idle, 0) + graph.start[carrier] - begin


def _joined(first: Pairs, second: Pairs) -> Pairs:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _none() -> Pairs:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _call(graph: Graph) -> Pairs:
    """From the caller to the called; device work is called by the operator that launched it."""
    target = np.flatnonzero(graph.parent >= 0)
    return graph.parent[target], target


def _chains(graph: Graph, host: Flags) -> Ints:
    """The timed nodes of the host, thread after thread, in the order in which they began."""
    rows = np.flatnonzero(host)
    return rows[np.lexsort((graph.place[rows], graph.tid[rows]))]


def _order(graph: Graph, chain: Ints) -> Pairs:
    """From each node to the next on its thread, unless that is its own child: a call edge covers that."""
    source, target = chain[:-1], chain[1:]
    keep = (graph.tid[source] == graph.tid[target]) & (graph.parent[target] != source)
    return source[keep], target[keep]


def _launch(graph: Graph) -> Pairs:
    target = np.flatnonzero(graph.launch >= 0)
    return graph.launch[target], target


def _stream_chain(graph: Graph, activity: ActivityTable) -> tuple[Ints, Ints]:
    """Device work, stream after stream in order, and the number of each one's stream."""
    rows = np.flatnonzero(graph.on_device)
    at = graph.activity[rows]
    lane = (activity.device[at] << 32) + activity.stream[at]
    order = np.lexsort((graph.place[rows], lane))
    return rows[order], lane[order]


def _stream(graph: Graph, activity: ActivityTable) -> Pairs:
    """From each piece of device work to the next on its stream."""
    rows, lane = _stream_chain(graph, activity)
    keep = lane[:-1] == lane[1:]
    return rows[:-1][keep], rows[1:][keep]


def _sync(graph: Graph, activity: ActivityTable, chain: Ints) -> Pairs:
    """Host waits for device: from the last work of each stream waited for to what the thread did after
    the wait. Stream waits for stream: from the last work before the event to the first after the wait.
    """
    rows, lane = _stream_chain(graph, activity)
    if not rows.size:
        return _none()
    facts = {
        int(activity.correlation[r]): activity.details.get(int(r), {})
        for r in np.flatnonzero(activity.kind == SYNC)
    }
    streams = {
        int(activity.correlation[r]): int(activity.stream[r]) for r in np.flatnonzero(activity.kind == SYNC)
    }
    launched = np.where(graph.launch >= 0, graph.start[np.maximum(graph.launch, 0)], graph.start)
    lanes = {k: _Lane(rows[lane == k], launched, graph) for k in distinct(lane).tolist()}
    following = dict(zip(chain[:-1].tolist(), chain[1:].tolist(), strict=True))
    waits = np.array([_HOST_SYNC.fullmatch(n) is not None for n in graph.names], dtype=bool)
    named = np.array(["StreamWaitEvent" in n for n in graph.names], dtype=bool)
    sources: list[int] = []
    targets: list[int] = []
    calls = np.flatnonzero(graph.timed & (graph.kind == RUNTIME))
    for call in calls[(waits | named)[graph.name[calls]]].tolist():
        correlation = int(activity.correlation[graph.activity[call]])
        detail = facts.get(correlation, {})
        begin = int(graph.start[call])
        end = begin + int(graph.dur[call])
        if named[graph.name[call]]:
            for before, after in _between_streams(lanes, streams.get(correlation, -1), detail, begin):
                sources.append(before)
                targets.append(after)
            continue
        target = following.get(call)
        while target is not None and graph.tid[target] == graph.tid[call] and graph.start[target] < end:
            target = following.get(target)
        if target is None or graph.tid[target] != graph.tid[call]:
            continue
        stream = streams.get(correlation, -1)
        last = []
        for key, work in lanes.items():
            if stream >= 0 and key & 0xFFFFFFFF != stream:
                continue
            done = work.last(begin, end)
            if done is not None:
                last.append(done)
        if stream < 0 and _STREAM_OR_EVENT.search(graph.names[graph.name[call]]) and last:
            # The stream is not known: the host continued when the latest work was done.
            last = [max(last, key=lambda r: int(graph.start[r] + graph.dur[r]))]
        sources += last
        targets += [target] * len(last)
    return np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)


class _Lane:
    """The work of a stream in order, searchable by time."""

    def __init__(self, rows: Ints, launched: Ints, graph: Graph) -> None:
        self._rows = rows
        # A stream works in order; running maxima preserve this if the clocks say otherwise.
        self._launched = np.maximum.accumulate(launched[rows])
        self._ends = np.maximum.accumulate(graph.start[rows] + graph.dur[rows])

    def last(self, launched: int, done: int | None = None) -> int | None:
        """The last work launched, and done, not after these moments."""
        n = int(np.searchsorted(self._launched, launched, side="right"))
        if done is not None:
            n = min(n, int(np.searchsorted(self._ends, done, side="right")))
        return int(self._rows[n - 1]) if n else None

    def first(self, launched: int) -> int | None:
        """The first work launched not before a moment."""
        n = int(np.searchsorted(self._launched, launched, side="left"))
        return int(self._rows[n]) if n < self._rows.size else None


def _between_streams(
    lanes: dict[int, _Lane], waiting: int, detail: dict[str, object], begin: int
) -> list[tuple[int, int]]:
    recorded = detail.get("wait_on_stream", -1)
    if waiting < 0 or not isinstance(recorded, int) or recorded < 0 or recorded == waiting:
        return []
    out = []
    for key, work in lanes.items():
        other = lanes.get((key & ~0xFFFFFFFF) + recorded)
        if key & 0xFFFFFFFF != waiting or other is None:
            continue
        before, after = other.last(begin), work.first(begin)
        if before is not None and after is not None:
            out.append((before, after))
    return out


def _forward_backward(graph: Graph, et: ExecutionTrace, activity: ActivityTable) -> Pairs:
    """From the operator that made a gradient's node to the node's run."""
    n = len(graph)
    seq = np.full(n, -1, dtype=np.int64)
    made_on = np.zeros(n, dtype=np.int64)  # thread of the forward operator; 0: this is a forward operator
    thread = np.zeros(n, dtype=np.int64)
    if len(et):
        rows = np.flatnonzero(graph.et >= 0)
        at = graph.et[rows]
        seq[rows], made_on[rows], thread[rows] = et.seq[at], et.fw_tid[at], et.tid[at]
    else:
        rows = np.flatnonzero(graph.timed & (graph.kind == OP))
        at = graph.activity[rows]
        # The profiler counts the forward operator's thread from 1 and does not say its own number.
        seq[rows], made_on[rows] = activity.seq[at], np.minimum(np.maximum(activity.fw_tid[at], 0), 1)
        thread[rows] = 1
    forward = np.flatnonzero((seq >= 0) & (made_on == 0))
    backward = np.flatnonzero((seq >= 0) & (made_on > 0))
    parent = graph.parent[backward]
    inner = (parent >= 0) & (seq[parent] == seq[backward]) & (made_on[parent] > 0)
    backward = backward[~inner]
    key = seq * (int(max(thread.max(initial=0), made_on.max(initial=0))) + 1)
    at = last_before(
        key[forward] + thread[forward],
        graph.place[forward],
        key[backward] + made_on[backward],
        graph.place[backward],
    )
    return forward[at[at >= 0]], backward[at >= 0]
