"""Why a node could not begin earlier: typed edges between nodes, none of them in a cycle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dftracer.link.columns import (
    ANNOTATION,
    OP,
    RUNTIME,
    SYNC,
    ActivityTable,
    Flags,
    Ints,
    contains,
    distinct,
    last_before,
)
from dftracer.link.execution_trace import ExecutionTrace, Tensors
from dftracer.link.graph import Graph

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
    threads = _Threads(graph, host)
    chain = threads.chain
    handed = _handovers(graph, host, chain, carriers)
    returns = _returns(graph, threads, issued)
    waited, waits = _waiting(graph, handed, issued, threads)
    graph.subtract_waiting(waited)
    graph.own = _own_times(graph, host, chain, handed, waits)
    found: dict[str, Pairs] = {
        "call": _call(graph),
        "order": _order(graph, chain),
        "launch": _launch(graph),
        "stream": _stream(graph, activity),
        "sync": _sync(graph, activity, chain),
        "forward_backward": _forward_backward(graph, et, activity),
        "data": _data(graph, et),
        "thread": (handed.source, handed.target),
        "comm": _joined(issued, _requests(graph, threads, issued), _returned(threads, returns)),
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
    _give_on(graph, threads, handed.region, issued, edges)
    return edges


def _pairs(pairs: Pairs) -> Iterator[tuple[int, int]]:
    return zip(*(a.tolist() for a in pairs), strict=True)


def _joined(*parts: Pairs) -> Pairs:
    sources, targets = zip(*parts, strict=True)
    return np.concatenate(sources), np.concatenate(targets)


def _none() -> Pairs:
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _call(graph: Graph) -> Pairs:
    """From the caller to the called; device work is called by the operator that launched it."""
    target = np.flatnonzero(graph.parent >= 0)
    return graph.parent[target], target


class _Threads:
    """The timed nodes of the host, thread after thread, in the order in which they began."""

    def __init__(self, graph: Graph, host: Flags) -> None:
        rows = np.flatnonzero(host)
        self._graph, self._end = graph, graph.end
        self.chain: Ints = rows[np.lexsort((graph.place[rows], graph.tid[rows]))]
        self.at = np.full(len(graph), -1, dtype=np.int64)  # places in the chain
        self.at[self.chain] = np.arange(rows.size)
        inside = rows[graph.parent[rows] >= 0]
        self._inside = inside[np.argsort(graph.parent[inside], kind="stable")]
        self._parents = graph.parent[self._inside]

    def last_inside(self, node: int) -> int:
        """The last node inside of one, or that one."""
        at, chain = int(self.at[node]), self.chain
        while at + 1 < chain.size and self._graph.tid[chain[at + 1]] == self._graph.tid[node]:
            if self._graph.start[chain[at + 1]] >= self._end[node]:
                break
            at += 1
        return int(chain[at])

    def following(self, node: int) -> int | None:
        """What the thread of a node did next after it."""
        at = int(self.at[self.last_inside(node)]) + 1
        if at == self.chain.size or self._graph.tid[self.chain[at]] != self._graph.tid[node]:
            return None
        return int(self.chain[at])

    def children(self, node: int) -> Ints:
        """The nodes directly inside of one."""
        low, high = np.searchsorted(self._parents, [node, node + 1])
        return self._inside[low:high]

    def left(self, node: int, moment: int) -> int:
        """How much of a node's time after a moment is its own, not that of its children."""
        span = int(self._end[node]) - moment
        return max(span - _union(self._graph, self.children(node), moment), 0) if span > 0 else 0


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


# --- Data: from the node that made a tensor to the nodes that read it
#
# Torch reuses the ids of tensors and storages, so a tensor is identified by its ids, its length and its item
# size together, and lives from the last node that returned it. If nested nodes return the same tensor, the
# innermost one made it. In-place changes through a view are found through the storage.


def _identities(*tables: Tensors) -> list[Ints]:
    """One number for each distinct tensor, over all tables."""
    joined = [
        np.concatenate(c)
        for c in zip(*((t.tensor, t.storage, t.elements, t.item) for t in tables), strict=True)
    ]
    total = joined[0].size
    order = np.lexsort(joined)
    fresh = np.zeros(total, dtype=bool)
    for column in joined:
        sorted_column = column[order]
        fresh[1:] |= sorted_column[1:] != sorted_column[:-1]
    number = np.empty(total, dtype=np.int64)
    number[order] = np.cumsum(fresh)
    ends = np.cumsum([t.node.size for t in tables])
    return np.split(number, ends[:-1])


def _ends(graph: Graph, et: ExecutionTrace) -> Ints:
    """When nodes ended; without a clock, after the last node below them began."""
    end = graph.end[: len(et)].copy()
    if not graph.timed.any() and len(et):
        last = np.arange(len(et), dtype=np.int64)
        for row in range(len(et) - 1, -1, -1):
            up = int(graph.parent[row])
            if up >= 0 and last[up] < last[row]:
                last[up] = last[row]
        end = 2 * last + 1
    return end


def _data(graph: Graph, et: ExecutionTrace) -> tuple[Ints, Ints]:
    """Pairs of rows, maker and reader."""
    none = np.zeros(0, dtype=np.int64)
    if not et.outputs.node.size or not et.inputs.node.size:
        return none, none
    read, given = _identities(et.inputs, et.outputs)
    start, end, place = graph.start, _ends(graph, et), graph.place
    read_node, read_key, read_storage = _once(et.inputs.node, read, et.inputs.storage)
    node, key, storage = _once(et.outputs.node, given, et.outputs.storage)
    # Innermost: the next node that returns the same tensor is not inside it.
    order = np.lexsort((place[node], key))
    node, key, storage = node[order], key[order], storage[order]
    inside = (
        (key[1:] == key[:-1]) & (start[node[1:]] < end[node[:-1]]) & (et.tid[node[1:]] == et.tid[node[:-1]])
    )
    makes = np.append(~inside, True)
    node, key, storage = node[makes], key[makes], storage[makes]
    at = last_before(key, end[node], read_key, start[read_node], place[node], place[read_node])
    source = [node[at[at >= 0]]]
    target = [read_node[at >= 0]]
    # In place: a node that returns its input has changed the storage, for all views of it.
    width = int(max(read_key.max(), key.max())) + 1
    changes = contains(read_node * width + read_key, node * width + key)
    changer, changed = node[changes], storage[changes]
    via = last_before(changed, end[changer], read_storage, start[read_node], place[changer], place[read_node])
    made = np.where(at >= 0, place[node[np.maximum(at, 0)]], -1)
    later = (via >= 0) & (place[changer[np.maximum(via, 0)]] > made) if changer.size else via >= 0
    source.append(changer[via[later]] if changer.size else none)
    target.append(read_node[later] if changer.size else none)
    a, b = np.concatenate(source), np.concatenate(target)
    return a[a != b], b[a != b]


def _once(node: Ints, key: Ints, storage: Ints) -> tuple[Ints, Ints, Ints]:
    """Each tensor of a node once."""
    order = np.lexsort((key, node))
    node, key, storage = node[order], key[order], storage[order]
    first = np.append(True, (node[1:] != node[:-1]) | (key[1:] != key[:-1]))
    return node[first], key[first], storage[first]


# --- Handovers: threads that wait for each other, which one continued when another was done, and how long it
# waited

_Waits = dict[int, list[tuple[int, int]]]  # by thread, from when to when


@dataclass
class _Handovers:
    """Edges `source` to `target`, and the pause of the thread that continued around each."""

    source: Ints  # the last node inside of the work that was done
    target: Ints  # what began then
    done: Ints  # the work itself, as a position in `work`
    since: Ints  # when the target's thread had last worked
    previous: Ints  # what it had worked on, -1 if nothing
    work: Ints  # rows that are work, thread after thread, in order
    region: Flags  # rows that are not work: regions around it


def _handovers(graph: Graph, host: Flags, chain: Ints, carriers: Ints) -> _Handovers:
    """Handover between threads: one had stopped when the other, idle until then, began.

    A region around other nodes is not work: a thread inside one may be waiting. What moved the data of a
    collective is work, even if it is a region around its copies.
    """
    children = np.zeros(len(graph), dtype=bool)
    inside = graph.parent[host & (graph.parent >= 0)]
    children[inside] = True
    region = host & (graph.kind == ANNOTATION) & children
    region[carriers] = False
    top = graph.parent < 0
    held = np.maximum(graph.parent, 0)
    top |= graph.structural[held]
    open_region = region & top
    while True:
        more = region & ~open_region & open_region[held] & ~top
        if not more.any():
            break
        open_region |= more
    work = host & ~region & (top | open_region[held])
    rows = chain[work[chain]]
    if rows.size < 2:
        none = np.zeros(0, dtype=np.int64)
        return _Handovers(none, none, none, none, none, rows, open_region)
    last = _last_inside(chain, work | open_region, rows)
    # A thread's work in sequence: when it was last busy, and when it will be busy again.
    same = graph.tid[rows[1:]] == graph.tid[rows[:-1]]
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    idle_since = np.concatenate([[low], np.where(same, graph.end[rows[:-1]], low)])
    busy_again = np.concatenate([np.where(same, graph.start[rows[1:]], high), [high]])
    by_end = np.argsort(graph.end[rows], kind="stable")
    at = np.searchsorted(graph.end[rows][by_end], graph.start[rows], side="right") - 1
    before = by_end[np.maximum(at, 0)]
    ok = (
        (at >= 0)
        & (graph.tid[rows[before]] != graph.tid[rows])
        & (graph.end[rows[before]] > idle_since)
        & (busy_again[before] > graph.start[rows])
    )
    at = np.flatnonzero(ok)
    previous = np.where(at > 0, rows[at - 1], -1)
    previous = np.where((previous >= 0) & (graph.tid[previous] == graph.tid[rows[at]]), previous, -1)
    done = before[ok]
    target = _entered(graph, rows[ok], graph.end[rows[done]])
    return _Handovers(last[done], target, done, idle_since[ok], previous, rows, open_region)


def _entered(graph: Graph, rows: Ints, since: Ints) -> Ints:
    """The outermost region around each node that was entered not before a moment; else the node itself."""
    out = rows.copy()
    while True:
        up = graph.parent[out]
        held = np.maximum(up, 0)
        outer = (up >= 0) & graph.timed[held] & (graph.tid[held] == graph.tid[out])
        outer &= graph.start[held] >= since
        if not outer.any():
            return out
        out = np.where(outer, up, out)


def _last_inside(chain: Ints, border: Flags, rows: Ints) -> Ints:
    """For nodes of the chain the last node below them: the one before the next border."""
    at = np.flatnonzero(border[chain])
    position = np.empty(int(chain.max()) + 1, dtype=np.int64)
    position[chain] = np.arange(chain.size)
    following = np.searchsorted(at, position[rows], side="right")
    until = np.append(at, chain.size)[following]
    last: Ints = chain[until - 1]
    return last


def _waiting(graph: Graph, handed: _Handovers, issued: Pairs, threads: _Threads) -> tuple[Ints, _Waits]:
    """How much of each node's exclusive time its thread spent waiting for another thread, and when.

    A pause counts as far as the other thread was working in it; the call of a collective, as far as
    another thread carried it out before the call returned, and from then on until it did return.
    """
    out = np.zeros(len(graph), dtype=np.int64)
    waits: _Waits = {}
    start, end = graph.start, graph.end
    for i, target in enumerate(handed.target.tolist()):
        since = int(handed.since[i])
        owners = [*_owners(graph, int(handed.previous[i]), target)]
        at = int(handed.done[i])
        thread = graph.tid[handed.work[at]]
        while at >= 0 and graph.tid[handed.work[at]] == thread and end[handed.work[at]] > since:
            low, high = max(int(start[handed.work[at]]), since), int(end[handed.work[at]])
            waits.setdefault(int(graph.tid[target]), []).append((low, high))
            for node, begin, until in owners:
                out[node] += max(0, min(high, until) - max(low, begin))
            at -= 1
    carriers: dict[int, list[int]] = {}
    for call, carrier in _pairs(issued):
        carriers.setdefault(call, []).append(carrier)
    for call, rows in carriers.items():
        done = [row for row in rows if _waited_for(graph, call, row)]
        out[call] += _union(graph, np.array(done, dtype=np.int64), int(start[call]))
        if done:
            out[call] += threads.left(call, int(end[rows].max()))
    return np.minimum(out, np.where(graph.timed, graph.exclusive, 0)), waits


def _own_times(graph: Graph, host: Flags, chain: Ints, handed: _Handovers, waits: _Waits) -> Ints:
    """For each node the time before the end of its own part: how long it takes in a replay.

    Regions around work take no time of their own. Their time is between the nodes inside them, and belongs
    to the node that follows: the thread reached it that much later. Whatever waits for a node then waits
    neither for what its thread did afterwards, nor twice for what another thread did meanwhile.
    """
    own = np.where(handed.region, 0, graph.exclusive)
    top = host & ((graph.parent < 0) | ~graph.timed[np.maximum(graph.parent, 0)])
    for thread in distinct(graph.tid[chain]).tolist():
        rows = chain[graph.tid[chain] == thread]
        base = int(graph.start[rows[0]])
        begins = graph.start[rows] - base
        outer, inner = rows[top[rows]], handed.work[graph.tid[handed.work] == thread]
        there = _covered(graph.start[outer] - base, graph.end[outer] - base)
        busy = _covered(graph.start[inner] - base, graph.end[inner] - base)
        paused = np.array(sorted(waits.get(thread, [])), dtype=np.int64).reshape(-1, 2) - base
        waited = _covered(paused[:, 0], paused[:, 1])
        # Until a node begins, and at the end of the thread.
        moments = np.append(begins, graph.end[rows].max() - base)
        passed = np.diff(there(moments) - busy(moments) - waited(moments), prepend=0)
        own[rows] += np.maximum(passed[:-1], 0)
        others = handed.work[graph.tid[handed.work] != thread]
        own[rows[-1]] += max(int(passed[-1]) - _union(graph, others, base + begins[-1]), 0)
    return own


def _union(graph: Graph, rows: Ints, since: int) -> int:
    """How long any of these was working after a moment."""
    order = rows[np.argsort(graph.start[rows], kind="stable")]
    low = np.maximum(graph.start[order], since)
    end = graph.start[order] + graph.dur[order]
    reached = np.maximum.accumulate(np.append(since, end))
    return int(np.maximum(end - np.maximum(low, reached[:-1]), 0).sum())


def _covered(starts: Ints, ends: Ints) -> Callable[[Ints], Ints]:
    """How much time up to a moment lies in these spans, which do not overlap."""
    if not starts.size:
        return lambda moments: np.zeros(moments.size, dtype=np.int64)
    at = np.stack([starts, ends], axis=1).reshape(-1)
    sums = np.cumsum(np.diff(at, prepend=at[0]) * (np.arange(at.size) % 2))
    return lambda moments: np.interp(moments, at, sums).astype(np.int64)


def _owners(graph: Graph, previous: int, target: int) -> Iterator[tuple[int, int, int]]:
    """Whose exclusive time a pause is: the regions left in it, the one around it, those entered in it."""
    begin, until = int(graph.end[previous]) if previous >= 0 else 0, int(graph.start[target])
    around = []
    node = int(graph.parent[target])
    while node >= 0 and graph.activity[node] >= 0 and graph.tid[node] == graph.tid[target]:
        around.append(node)
        node = int(graph.parent[node])
    left = int(graph.parent[previous]) if previous >= 0 else -1
    while left >= 0 and left not in around and graph.activity[left] >= 0:
        yield left, begin, int(graph.end[left])
        begin = int(graph.end[left])
        left = int(graph.parent[left])
    for inner in around:
        entered = int(graph.start[inner])
        yield inner, max(begin, entered), until
        until = min(until, entered)
        if until <= begin:
            return


def _waited_for(graph: Graph, call: int, carrier: int) -> bool:
    """Whether a call returned only when another thread had done its work."""
    return bool(
        graph.activity[call] >= 0
        and graph.activity[carrier] >= 0
        and graph.tid[call] != graph.tid[carrier]
        and graph.start[carrier] >= graph.start[call]
        and graph.start[carrier] + graph.dur[carrier] <= graph.start[call] + graph.dur[call]
    )


def _returns(graph: Graph, threads: _Threads, issued: Pairs) -> list[tuple[int, int]]:
    """For calls that waited until another thread had carried them out: what did so, what their thread did next."""
    waited = [(call, carrier) for call, carrier in _pairs(issued) if _waited_for(graph, call, carrier)]
    found = [(carrier, threads.following(call)) for call, carrier in waited]
    return [(carrier, following) for carrier, following in found if following is not None]


def _give_on(graph: Graph, threads: _Threads, region: Flags, issued: Pairs, edges: Edges) -> None:
    """What a call, or a node around it, took after another thread had begun what it requested becomes a pause
    before what its own thread did next; how long the other thread took to begin the rest, a pause before that.

    In a replay all of a node's own time is before what depends on it.
    """
    begun: dict[int, int] = {}
    ended: dict[int, int] = {}
    issued = _elsewhere(graph, issued)
    ends = graph.end
    for call, carrier in _pairs(issued):
        moment, node = int(graph.start[carrier]), call
        while node >= 0 and graph.activity[node] >= 0 and not region[node]:
            if moment < ends[node]:
                begun[node] = min(begun.get(node, moment), moment)
                ended[node] = max(ended.get(node, moment), int(ends[carrier]))
            node = int(graph.parent[node])
    if not begun:
        return
    done = ends.copy()
    done[[*begun]] = [*begun.values()]
    known = _Dependencies(graph, edges, threads.at, region, done)
    for node, moment in begun.items():
        following, since = threads.following(node), ended[node]
        if following is None:
            following = node
        else:
            # Where it had to wait for another thread, only what came after that is a pause.
            since = max(moment, known.last(int(threads.at[node]) + 1, int(threads.at[following]), True))
        graph.own[node] -= max(threads.left(node, moment) - int(graph.waiting[node]), 0)
        graph.own[following] += threads.left(node, since)
    for call, carrier in _pairs(issued):
        at = int(threads.at[carrier])
        end = int(ends[call])
        since = max(known.last(at, at, False), begun.get(call, end))
        pause = min(int(graph.start[carrier]), end) - since
        graph.own[carrier] = max(int(graph.own[carrier]), int(graph.exclusive[carrier]) + pause)


class _Dependencies:
    """When what a node depends on was done: the last of it before the node began."""

    def __init__(self, graph: Graph, edges: Edges, at: Ints, region: Flags, done: Ints) -> None:
        source, target = edges.source, edges.target
        moment = np.where(done[source] <= graph.start[target], done[source], 0)
        up = source
        # The own time of what is around the source is on the same path.
        while True:
            held = np.maximum(graph.parent[up], 0)
            outer = (graph.parent[up] >= 0) & graph.timed[held] & ~region[held]
            outer &= graph.end[held] <= graph.start[target]
            if not outer.any():
                break
            moment = np.where(outer, np.maximum(moment, done[held]), moment)
            up = np.where(outer, held, up)
        order = np.argsort(at[target], kind="stable")
        self._place, self._moment = at[target][order], moment[order]
        self._other = (graph.tid[source] != graph.tid[target])[order]

    def last(self, first: int, last: int, other: bool) -> int:
        """For the nodes at these places of the chain; `other` leaves out what their own thread did."""
        low, high = np.searchsorted(self._place, [first, last + 1])
        moments = self._moment[low:high]
        return int((moments[self._other[low:high]] if other else moments).max(initial=0))


def _elsewhere(graph: Graph, issued: Pairs) -> Pairs:
    """Calls and what another thread began for them, not before they began."""
    call, carrier = issued
    keep = (
        (graph.activity[call] >= 0) & (graph.activity[carrier] >= 0) & (graph.tid[call] != graph.tid[carrier])
    )
    keep &= graph.start[carrier] >= graph.start[call]
    return call[keep], carrier[keep]


def _requests(graph: Graph, threads: _Threads, issued: Pairs) -> Pairs:
    """From the last node inside a call that was done when another thread began what it requested."""
    sources, targets, ends = [], [], graph.end
    for call, carrier in _pairs(_elsewhere(graph, issued)):
        inside = threads.children(call)
        inside = inside[ends[inside] <= graph.start[carrier]]
        if inside.size:
            sources.append(threads.last_inside(int(inside[np.argmax(ends[inside])])))
            targets.append(carrier)
    return np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)


def _returned(threads: _Threads, returns: list[tuple[int, int]]) -> Pairs:
    """From the last of what carried out a collective to what the thread that had waited for it did next."""
    sources = [threads.last_inside(carrier) for carrier, _ in returns]
    targets = [following for _, following in returns]
    return np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
