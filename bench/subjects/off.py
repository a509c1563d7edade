"""Tracing off: a decorated function is the function, `with` costs next to nothing."""

from __future__ import annotations

from bench.results import Goal, Row
from bench.rounds import Bench, compare
from bench.subjects.span import empty_manager
from bench.subjects.span import plain as plain_loop
from bench.worker import Loops

__all__ = ["decorated", "rows", "with_node"]

_EMPTY = "empty Python context manager"


def decorated() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    def function(x: int) -> int:
        return x

    traced = ai.compute.forward(function)

    def plain(n: int) -> None:
        for i in range(n):
            function(i)

    def op(n: int) -> None:
        for i in range(n):
            traced(i)

    return Loops(op, plain, facts={"same object": traced is function})


def with_node() -> Loops:
    from dftracer.python import ai  # noqa: PLC0415

    node = ai.compute.forward

    def op(n: int) -> None:
        for _ in range(n):
            with node:
                pass

    return Loops(op, plain_loop, {_EMPTY: empty_manager})


def rows(bench: Bench) -> list[Row]:
    call = compare(bench, "bench.subjects.off:decorated", traced=False)
    span = compare(bench, "bench.subjects.off:with_node", traced=False)
    same = bool(call.facts["ours"]["same object"])
    call_row = Row.of("tracing off: `@ai.compute.forward` over the plain call", "off", call, None)
    call_row.notes.append("ours is the undecorated function itself" if same else "not the same object")
    call_row.goals.append(Goal("the function itself, undecorated", float(same), 1.0, at_most=False))
    if same:
        # One object: what the clock says of the difference is noise, not a cost.
        call_row.ours, call_row.ratio = 0.0, None
    span_row = Row.of("tracing off: `with ai.compute.forward:`", "off", span, None)
    span_row.baselines[_EMPTY] = span.yardstick(_EMPTY)
    span_row.goals.append(
        Goal("at most half an empty Python context manager", span.over_yardstick(_EMPTY), 0.5)
    )
    return [call_row, span_row]
