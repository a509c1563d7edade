"""Exceptions, recursion and threads: right parents, right levels, nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from support.process import Run
from support.tree import assert_nested, children, parent, path


@pytest.mark.parametrize(
    "use",
    [
        "with ai.compute.forward: boom()",
        "with ai.compute.forward(args={'k': 1}): boom()",
        "ai.compute.forward(boom)()",
        "ai.compute.forward(args={'k': 1})(boom)()",
        "dft_fn('c', 'forward').log(boom)()",
        "with dft_fn('c', 'forward'): boom()",
    ],
)
def test_exception_in_an_event(use: str, traced: Callable[..., Run]) -> None:
    """The event is there with `error`; the exception is the user's own; no level leaks."""
    run = traced(
        f"""
        def boom():
            raise error
        boom.__qualname__ = "forward"
        error = KeyError("mine")
        try:
            {use}
        except KeyError as caught:
            assert caught is error
            assert caught.__context__ is None and caught.__cause__ is None
            import traceback
            names = [f.name for f in traceback.extract_tb(caught.__traceback__)]
            assert names == ["<module>", "boom"], names
        else:
            raise SystemExit("swallowed")
        with ai.data.item: pass
        """
    )
    trace = run.trace
    assert trace.one("forward").args["error"] == "KeyError"
    assert trace.one("item").level == 1


def test_error_of_a_class_in_a_module(traced: Callable[..., Run]) -> None:
    """`error` is the type's name; SystemExit and KeyboardInterrupt count too."""
    run = traced(
        """
        class Custom(Exception): pass
        for kind in (Custom, SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit):
            try:
                with ai.compute.forward: raise kind()
            except BaseException as e:
                assert type(e) is kind
        """
    )
    errors = [e.args["error"] for e in run.trace.named("forward")]
    assert errors == ["Custom", "SystemExit", "KeyboardInterrupt", "StopIteration", "GeneratorExit"]


def test_handled_exception_leaves_no_error(traced: Callable[..., Run]) -> None:
    """Only what leaves the block is an error of the block."""
    run = traced(
        """
        with ai.compute.forward:
            try:
                with ai.data.item: raise ValueError
            except ValueError: pass
        try:
            raise ValueError
        except ValueError:
            with ai.compute.backward: pass
            @ai.compute.step
            def f(): pass
            f()
        """
    )
    trace = run.trace
    assert trace.one("item").args["error"] == "ValueError"
    for name in ("forward", "backward", "step"):
        assert "error" not in trace.one(name).args


def test_deep_recursion(traced: Callable[..., Run]) -> None:
    """Each call its own event, each one level deeper; RecursionError comes through."""
    run = traced(
        """
        import sys
        @ai.compute.forward
        def down(n): return 0 if n == 0 else 1 + down(n - 1)
        sys.setrecursionlimit(2000)
        assert down(300) == 300
        @ai.compute.backward
        def forever(n): return forever(n + 1)
        sys.setrecursionlimit(500)
        try: forever(0)
        except RecursionError: pass
        else: raise SystemExit("no RecursionError")
        with ai.data.item: pass
        """
    )
    trace = run.trace
    forwards = sorted(trace.named("forward"), key=lambda e: e.level)
    assert [e.level for e in forwards] == list(range(1, 302))
    for above, below in pairwise(forwards):
        assert below.parent_id == above.id
    assert trace.one("item").level == 1
    assert all(e.args["error"] == "RecursionError" for e in trace.named("backward"))


def test_very_deep_nesting(traced: Callable[..., Run]) -> None:
    """There is no depth at which events are lost or levels wrong."""
    run = traced(
        """
        import contextlib
        with contextlib.ExitStack() as stack:
            for _ in range(5000):
                stack.enter_context(ai.compute.forward)
        with ai.data.item: pass
        """
    )
    trace = run.trace
    assert sorted(e.level for e in trace.named("forward")) == list(range(1, 5001))
    assert trace.one("item").level == 1


def test_threads(traced: Callable[..., Run]) -> None:
    """Each thread nests for itself under its own tid."""
    run = traced(
        """
        import threading
        @ai.compute.forward
        def work(k, n):
            with ai.compute.derive(name=f"t{k}"):
                return 0 if n == 0 else work(k, n - 1)
        def body(k):
            for _ in range(50): work(k, 5)
            tids[k] = threading.get_native_id()
        tids = {}
        with ai.pipeline.train:
            threads = [threading.Thread(target=body, args=(k,)) for k in range(8)]
            [t.start() for t in threads]; [t.join() for t in threads]
        log.log_metadata_event("tids", " ".join(str(tids[k]) for k in range(8)))
        """
    )
    trace = run.trace
    tids = next(r.args["value"] for r in trace.metadata("CM") if r.args["name"] == "tids").split()
    for k, tid in enumerate(tids):
        mine = trace.named(f"compute.t{k}")
        assert len(mine) == 300
        assert {e.tid for e in mine} == {int(tid)}
        assert {e.level for e in mine} == {2, 4, 6, 8, 10, 12}
    assert trace.one("train").level == 1
    assert_nested(trace)


def test_generator_handed_to_another_thread(traced: Callable[..., Run]) -> None:
    """A generator resumed by another thread closes its event there, without a level left anywhere."""
    run = traced(
        """
        import threading
        @ai.dataloader.fetch
        def gen():
            for i in range(3):
                with ai.data.item: pass
                yield i
        g = gen()
        next(g)
        rest = []
        def body():
            rest.extend(g)
            with ai.compute.step: pass
        t = threading.Thread(target=body); t.start(); t.join()
        assert rest == [1, 2]
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert len(trace.named("fetch")) == 1
    assert len(trace.named("item")) == 3
    assert trace.one("step").level == 1
    assert trace.one("forward").level == 1


def test_executor_and_copied_context(traced: Callable[..., Run]) -> None:
    """`asyncio.to_thread` copies the context: the event there is at home in its own thread."""
    run = traced(
        """
        import asyncio
        def work():
            with ai.data.item: pass
        async def main():
            with ai.pipeline.train:
                await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
                with ai.compute.step: pass
        asyncio.run(main())
        """
    )
    trace = run.trace
    train = trace.one("train")
    assert len(trace.named("item")) == 4
    assert [e.name for e in children(trace, train) if e.tid == train.tid] == ["step"]


def test_sibling_order_and_ids(traced: Callable[..., Run]) -> None:
    """Ids grow from 1, parents are real ids, siblings are ordered in time."""
    run = traced(
        """
        with ai.pipeline.train:
            for _ in range(3):
                with ai.compute.forward: pass
                with ai.compute.backward: pass
        """
    )
    trace = run.trace
    (file,) = trace.files
    assert sorted(r.id for r in file.records) == list(range(1, len(file.records) + 1))
    assert [e.name for e in children(trace, trace.one("train"))] == ["forward", "backward"] * 3
    assert parent(trace, trace.one("train")) is None
    assert path(trace, trace.named("forward")[0]) == ["train", "forward"]
    assert_nested(trace)
