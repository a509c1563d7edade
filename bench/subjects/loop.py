"""`ai.dataloader.fetch.iter`: two events an item, cost over the plain loop."""

from __future__ import annotations

from bench.results import Row
from bench.rounds import Bench, compare
from bench.worker import Loops

__all__ = ["fetch_iter", "rows"]


def fetch_iter() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)
    node = ai.dataloader.fetch

    def plain(n: int) -> None:
        for _ in iter(range(n)):
            pass

    def op(n: int) -> None:
        for _ in node.iter(range(n)):
            pass

    return Loops(op, plain)


def rows(bench: Bench) -> list[Row]:
    return [
        Row.of(
            "`ai.dataloader.fetch.iter(...)`, an item (2 events)",
            "loop",
            compare(bench, "bench.subjects.loop:fetch_iter"),
            60,
        ),
    ]
