"""Flows that take turns on one thread: each `with` closes what it opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run
from support.trace import Trace

# Long enough that the noise of a busy machine cannot be mistaken for another flow's time.
LONG, LONGER = 600_000, 1_200_000


def assert_own_times(trace: Trace, name: str) -> None:
    long, longer = sorted(trace.named(name), key=lambda e: (str(e.args.get("who", "")), e.dur))
    assert LONG <= long.dur < LONGER <= longer.dur, [long.dur, longer.dur]


def test_interleaved_generators_on_one_node(traced: Callable[..., Run]) -> None:
    """Opened first, closed first: not the newest frame of the node, but one's own."""
    run = traced(
        """
        import time
        def flow(node):
            with node:
                yield
        def interleave(first, second):
            next(first)
            time.sleep(0.6)
            next(second)
            list(first)          # 0.6 s old
            time.sleep(1.2)
            list(second)         # 1.2 s old
        interleave(flow(ai.compute.forward), flow(ai.compute.forward))
        use = ai.compute.backward(args={"k": 1})
        interleave(flow(use), flow(use))
        """
    )
    assert_own_times(run.trace, "forward")
    assert_own_times(run.trace, "backward")


def test_interleaved_generators_nest_as_they_did(traced: Callable[..., Run]) -> None:
    """A generator inside another: own times, own error."""
    run = traced(
        """
        import time
        def inner():
            with ai.compute.forward:
                yield 1
                time.sleep(0.6)
                yield 2
        def outer():
            source = inner()
            with ai.compute.forward:
                next(source)
                next(source)
                yield
                source.close()
                time.sleep(0.7)
        list(outer())
        """
    )
    first, second = sorted(run.trace.named("forward"), key=lambda e: e.id)
    assert first.dur >= 1_300_000, "the outer one lasts to the end"
    assert 600_000 <= second.dur < 1_300_000
    assert second.args["error"] == "GeneratorExit"
    assert second.parent_id == first.id


GREENLETS = """
def block(who, seconds):
    with ai.compute.forward(args={"who": who}):
        sleep(seconds)
def node_block(who, seconds):
    with ai.compute.backward: sleep(seconds)
@ai.data.item
def decorated(who, seconds): sleep(seconds)
@ai.comm.send(args={"k": 1})
def decorated_use(who, seconds): sleep(seconds)
"""


def test_gevent(traced: Callable[..., Run]) -> None:
    """Greenlets on one thread: blocks and decorated functions keep their own times."""
    pytest.importorskip("gevent")
    run = traced(
        GREENLETS
        + """
import gevent
from gevent import sleep
for work in (block, node_block, decorated, decorated_use):
    gevent.joinall([gevent.spawn(work, "a", 0.6), gevent.spawn(work, "b", 1.2)], raise_error=True)
"""
    )
    for name in ("forward", "backward", "item", "send"):
        assert_own_times(run.trace, name)


def test_plain_greenlets(traced: Callable[..., Run]) -> None:
    """Without a hub, and without contexts of their own."""
    pytest.importorskip("greenlet")
    run = traced(
        GREENLETS
        + """
import time
from greenlet import getcurrent, greenlet
main = getcurrent()
def sleep(_): main.switch()
for work in (block, node_block, decorated, decorated_use):
    first, second = greenlet(work), greenlet(work)
    first.switch("a", 0)
    time.sleep(0.6)
    second.switch("b", 0)
    first.switch()
    time.sleep(1.2)
    second.switch()
"""
    )
    for name in ("forward", "backward", "item", "send"):
        assert_own_times(run.trace, name)


def test_enter_and_exit_by_hand_in_different_functions(traced: Callable[..., Run]) -> None:
    """Callbacks that open in one function and close in another still pair, ExitStack too."""
    run = traced(
        """
        import contextlib, time
        def begin(): ai.compute.forward.__enter__()
        def end(): ai.compute.forward.__exit__(None, None, None)
        begin()
        time.sleep(0.3)
        with ai.compute.forward: pass
        end()
        def several():
            with contextlib.ExitStack() as stack:
                stack.enter_context(ai.data.item)
                stack.enter_context(ai.data.item(args={"k": 1}))
                time.sleep(0.3)
        several()
        """
    )
    short, long = sorted(run.trace.named("forward"), key=lambda e: e.dur)
    assert long.dur >= 300_000
    assert short.dur < 300_000
    assert short.parent_id == long.id
    assert all(e.dur >= 300_000 for e in run.trace.named("item"))
    assert len(run.trace.named("item")) == 2
