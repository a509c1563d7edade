"""`@node` on a function, and `@dft_fn.log` on one whose arguments are recorded: cost over the plain call."""

from __future__ import annotations

from bench.results import Row
from bench.rounds import Bench, compare
from bench.worker import Loops

__all__ = ["logged_with_arguments", "node_decorator", "rows"]


def node_decorator() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    ai.update(epoch=1, step=100)

    def function(x: int) -> int:
        return x

    traced = ai.compute.forward(function)

    def plain(n: int) -> None:
        for i in range(n):
            function(i)

    def op(n: int) -> None:
        for i in range(n):
            traced(i)

    return Loops(op, plain)


def logged_with_arguments() -> Loops:
    from dftracer.python import dft_fn  # noqa: PLC0415

    def function(x: int, step: int = 0) -> int:
        return x

    traced = dft_fn("reader").log(function)

    def plain(n: int) -> None:
        for i in range(n):
            function(i, step=i)

    def op(n: int) -> None:
        for i in range(n):
            traced(i, step=i)

    return Loops(op, plain)


def rows(bench: Bench) -> list[Row]:
    return [
        Row.of(
            "`@ai.compute.forward` over the plain call",
            "decorator",
            compare(bench, "bench.subjects.decorator:node_decorator"),
            80,
        ),
        Row.of(
            "`@dft_fn.log` on `f(x, step=0)`, called with `step=i`",
            "decorator",
            compare(bench, "bench.subjects.decorator:logged_with_arguments"),
            40,
        ),
    ]
