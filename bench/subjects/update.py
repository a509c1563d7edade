"""`ai.update(epoch=, step=)` on the whole tree."""

from __future__ import annotations

from bench.results import Goal, Row
from bench.rounds import Bench, compare
from bench.worker import Loops

__all__ = ["rows", "update_tree"]

_LIMIT_NS = 1500.0


def update_tree() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    def plain(n: int) -> None:
        for _ in range(n):
            pass

    def op(n: int) -> None:
        update = ai.update
        for i in range(n):
            update(epoch=1, step=i)

    return Loops(op, plain)


def rows(bench: Bench) -> list[Row]:
    comparison = compare(bench, "bench.subjects.update:update_tree")
    row = Row.of("`ai.update(epoch=, step=)` on the whole tree", "update", comparison, None)
    row.goals.append(Goal("at most 1.5 us", row.ours, _LIMIT_NS))
    return [row]
