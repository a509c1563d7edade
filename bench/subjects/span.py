"""`with node:` against an empty Python context manager, and with arguments made per use."""

from __future__ import annotations

from bench.results import Goal, Row
from bench.rounds import Bench, compare
from bench.worker import Loops

__all__ = ["rows", "with_arguments", "with_node"]


class EmptyManager:
    """The least a context manager written in Python can do."""

    def __enter__(self) -> EmptyManager:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def plain(n: int) -> None:
    for _ in range(n):
        pass


def empty_manager(n: int) -> None:
    manager = EmptyManager()
    for _ in range(n):
        with manager:
            pass


def with_node() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)
    node = ai.compute.forward

    def op(n: int) -> None:
        for _ in range(n):
            with node:
                pass

    return Loops(op, plain, {"empty Python context manager": empty_manager})


def with_arguments() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)
    node = ai.compute.forward

    def op(n: int) -> None:
        for i in range(n):
            with node(args={"k": i}):
                pass

    return Loops(op, plain, {"empty Python context manager": empty_manager})


def rows(bench: Bench) -> list[Row]:
    bare = compare(bench, "bench.subjects.span:with_node")
    args = compare(bench, "bench.subjects.span:with_arguments")
    yardstick = "empty Python context manager"
    result = []
    for what, comparison, fraction in (
        ("`with ai.compute.forward:`, epoch and step set", bare, 60),
        ('`with ai.compute.forward(args={"k": i}):`', args, 25),
    ):
        row = Row.of(what, "span", comparison, fraction)
        row.baselines[yardstick] = comparison.yardstick(yardstick)
        result.append(row)
    for row, comparison, most, text in (
        (result[0], bare, 0.5, "at most half an empty Python context manager"),
        (result[1], args, 1.3, "at most 1.3 times an empty Python context manager"),
    ):
        row.goals.append(Goal(text, comparison.over_yardstick(yardstick), most))
    return result
