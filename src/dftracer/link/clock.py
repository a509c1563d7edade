"""One clock for all ranks.

Every rank uses its host's clock. Ranks on one host agree. Between hosts, collectives help: no rank
leaves one before the last rank has reached it. Each matched collective therefore bounds the difference
between two clocks from both sides, and the ends of all of them, which are in reality close together, say
where between the bounds it lies.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from dftracer._text import plural

# In these no rank can leave before all have arrived.
_SYNCHRONISING = {
    "all_reduce",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter_block",
    "barrier",
}


@dataclass
class Member:
    """One rank's part of a collective, small enough to be passed around."""

    rank: int
    window: int
    index: int  # among the rank's collectives of the window
    type: str
    group: str  # name and ranks
    number: int  # its position among the group's collectives in the window
    seq: int | None  # the group's own count
    start: int
    end: int
    timed: bool
    bytes: int | None
    key: str = ""  # the same for all ranks' parts of one collective
    matched: int = 1  # ranks whose part is known
    arrival_ns: int | None = None  # after the first rank
    skew_ns: int | None = None  # last rank after the first
    meeting: int = -1  # a number for the parts of one collective
    turn: int | None = None  # its position among them, by time of arrival
    turns: int = 0


@dataclass
class Clock:
    """What to add to a rank's times, how it was found, and how wrong it can be at most (None: not known)."""

    offset_ns: int = 0
    error_ns: int | None = None
    method: str = "own clock"
    collectives: int = 0


@dataclass
class _Bounds:
    low: int | None = None
    high: int | None = None
    ends: list[int] = field(default_factory=list)

    def take(self, reference: Member, other: Member) -> None:
        """Learn about (reference's clock - other's clock) from one collective both took part in."""
        low, high = reference.start - other.end, reference.end - other.start
        self.low = low if self.low is None else max(self.low, low)
        self.high = high if self.high is None else min(self.high, high)
        self.ends.append(reference.end - other.end)


def match(members: list[Member], warnings: list[str]) -> dict[str, list[Member]]:
    """The parts of each collective: by the group's own count if all ranks know it, otherwise the n-th of
    the group.

    Types that differ between ranks are reported and not matched.
    """
    groups: dict[tuple[str, int], list[Member]] = defaultdict(list)
    for member in members:
        groups[member.group, member.window].append(member)
    together: dict[str, list[Member]] = defaultdict(list)
    for (group, window), every in groups.items():
        for p in every:
            if p.type in ("send", "recv"):
                p.key = f"{p.type} {p.rank}.{window}.{p.index}"
        parts = [p for p in every if not p.key]
        counted = all(p.seq is not None for p in parts)
        for p in parts:
            p.key = f"{group} #{p.seq}" if counted else f"{group} w{window} {p.number}"
            together[p.key].append(p)
        if not counted:
            _check_counts(group, parts, warnings)
    out = {}
    wrong = 0
    for key, parts in together.items():
        if len({p.rank for p in parts}) < 2:
            continue
        if len({p.type for p in parts}) > 1:
            wrong += 1
            continue
        out[key] = parts
        for p in parts:
            p.matched = len(parts)
    if wrong:
        these = plural(wrong, "collective has", "collectives have")
        warnings.append(
            f"{these} different types on different ranks, not matched:"
            " the ranks' windows do not cover the same steps"
        )
    return out


def _check_counts(group: str, parts: list[Member], warnings: list[str]) -> None:
    counts: dict[int, int] = defaultdict(int)
    for p in parts:
        counts[p.rank] += 1
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"rank {r}: {n}" for r, n in sorted(counts.items())[:8])
        warnings.append(
            f"group {group or '(unnamed)'}: the ranks have different numbers of collectives ({listed});"
            " they are matched by position from the start of the window"
        )


def arrivals(matched: dict[str, list[Member]], clocks: dict[int, Clock]) -> None:
    """How much later than the first each rank reached each collective."""
    for number, parts in enumerate(matched.values()):
        timed = [p for p in parts if p.timed]
        if len(timed) < 2:
            continue
        timed.sort(key=lambda p: (p.start + clocks[p.rank].offset_ns, p.rank))
        for turn, p in enumerate(timed):
            p.meeting, p.turn, p.turns = number, turn, len(timed)
        came = [p.start + clocks[p.rank].offset_ns for p in timed]
        first, last = min(came), max(came)
        for p, at in zip(timed, came, strict=True):
            p.arrival_ns, p.skew_ns = at - first, last - first


def align(
    ranks: list[dict[str, Any]], matched: dict[str, list[Member]], warnings: list[str]
) -> dict[int, Clock]:
    """A clock for each rank; `ranks` have `rank`, `host` and `error_ns` of their own anchors."""
    clocks = {int(r["rank"]): Clock(0, r.get("error_ns")) for r in ranks}
    if not ranks:
        return clocks
    hosts = {int(r["rank"]): str(r.get("host") or "") for r in ranks}
    reference = min(hosts)
    for rank in sorted(hosts):
        if rank == reference:
            clocks[rank] = Clock(0, 0, "reference")
            continue
        bounds = _Bounds()
        for parts in matched.values():
            by_rank = {p.rank: p for p in parts if p.timed and p.type in _SYNCHRONISING}
            if rank in by_rank and reference in by_rank:
                bounds.take(by_rank[reference], by_rank[rank])
        same = hosts[rank] != "" and hosts[rank] == hosts[reference]
        clocks[rank] = _decide(rank, bounds, same, clocks[rank], warnings)
    return clocks


def _decide(rank: int, bounds: _Bounds, same_host: bool, own: Clock, warnings: list[str]) -> Clock:
    n = len(bounds.ends)
    if bounds.low is None or bounds.high is None:
        return Clock(0, 0 if same_host else own.error_ns, "same host" if same_host else "anchors", 0)
    if bounds.low > bounds.high:
        warnings.append(
            f"rank {rank}: its collectives contradict each other by"
            f" {(bounds.low - bounds.high) / 1e3:.0f} us; the clocks drifted apart,"
            " or the windows do not belong together"
        )
        return Clock(0, None, "contradiction", n)
    if same_host and bounds.low <= 0 <= bounds.high:
        # One clock, and the collectives confirm it.
        return Clock(0, 0, "same host", n)
    middle = sorted(bounds.ends)[n // 2]
    offset = min(max(middle, bounds.low), bounds.high)
    return Clock(offset, max(bounds.high - offset, offset - bounds.low), "collectives", n)
