"""Threads that wait for each other: which one continued when another was done, and how long it waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dftracer.link._columns import Flags, Ints, distinct
from dftracer.link.activity import ANNOTATION
from dftracer.link.graph import Graph

__all__ = ["Handovers", "handovers", "own_times", "returned", "waiting"]

Pairs = tuple[Ints, Ints]
Waits = dict[int, list[tuple[int, int]]]  # by thread, from when to when


@dataclass
class Handovers:
    """Edges `source` to `target`, and the pause of the thread that continued around each."""

    source: Ints  # the last node inside of the work that was done
    target: Ints  # what began then
    done: Ints  # the work itself, as a position in `work`
    since: Ints  # when the target's thread had last worked
    previous: Ints  # what it had worked on, -1 if nothing
    work: Ints  # rows that are work, thread after thread, in order
    region: Flags  # rows that are not work: regions around it


def handovers(graph: Graph, host: Flags, chain: Ints, carriers: Ints) -> Handovers:
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
        return Handovers(none, none, none, none, none, rows, open_region)
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
    return Handovers(last[done], target, done, idle_since[ok], previous, rows, open_region)


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


def waiting(graph: Graph, handed: Handovers, issued: Pairs) -> tuple[Ints, Waits]:
    """How much of each node's exclusive time its thread spent waiting for another thread, and when.

    A pause counts as far as the other thread was working in it; the call of a collective, as far as
    another thread carried it out before the call returned.
    """
    out = np.zeros(len(graph), dtype=np.int64)
    waits: Waits = {}
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
    for call, carrier in zip(*(a.tolist() for a in issued), strict=True):
        if _waited_for(graph, call, carrier):
            out[call] += int(min(end[carrier], end[call]) - max(start[carrier], start[call]))
    return np.minimum(out, np.where(graph.timed, graph.exclusive, 0)), waits


def own_times(graph: Graph, host: Flags, chain: Ints, handed: Handovers, waits: Waits) -> Ints:
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
    reached = np.maximum.accumulate(np.append(since, graph.end[order]))
    return int(np.maximum(graph.end[order] - np.maximum(low, reached[:-1]), 0).sum())


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
        and graph.end[carrier] <= graph.end[call]
    )


def returned(graph: Graph, chain: Ints, issued: Pairs) -> Pairs:
    """From the last of what carried out a collective to what the thread that had waited for it did next."""
    position = np.full(len(graph), -1, dtype=np.int64)
    position[chain] = np.arange(chain.size)
    sources, targets = [], []
    for call, carrier in zip(*(a.tolist() for a in issued), strict=True):
        if not _waited_for(graph, call, carrier):
            continue
        at = int(position[call]) + 1
        while at < chain.size and graph.tid[chain[at]] == graph.tid[call]:
            if graph.start[chain[at]] >= graph.end[call]:
                sources.append(_last_of(graph, chain, int(position[carrier])))
                targets.append(int(chain[at]))
                break
            at += 1
    return np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)


def _last_of(graph: Graph, chain: Ints, at: int) -> int:
    """The last node of the chain inside the one at a place, or that one."""
    last, head = at, chain[at]
    while last + 1 < chain.size and graph.tid[chain[last + 1]] == graph.tid[head]:
        if graph.start[chain[last + 1]] >= graph.end[head]:
            break
        last += 1
    return int(chain[last])
