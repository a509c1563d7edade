"""The times of compiled graphs on a device: exact, and never at the program's cost. The device is a stand-in."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from dftracer.testing import capture
from support.stand_in_device import Device, Pool

torch = pytest.importorskip("torch")

from dftracer import _core  # noqa: E402
from dftracer.python.dynamo._graphs import GraphClock  # noqa: E402

MS = 1_000_000


@pytest.fixture
def device() -> Iterator[Device]:
    yield Device(_core.time_ns())
    Pool.capturing = False


@pytest.fixture
def clock(device: Device) -> GraphClock:
    return GraphClock(Pool(device), device.time_ns, lambda seconds: device.host(round(seconds * 1e9)))


def run(clock: GraphClock, device: Device, work: int) -> None:
    span = clock.start()
    assert span is not None
    device.launch(work)
    device.host(MS)
    span.stop("graph.forward.device", "dynamo", {"device": 1})


def test_each_graph_is_where_the_device_ran_it(clock: GraphClock, device: Device) -> None:
    with capture() as events:
        start = clock.start()
        assert start is not None
        first = device.now + device.latency
        for _ in range(5):
            run(clock, device, 2 * MS)
        clock.drain()
    assert [e.args["dur_ns"] for e in events] == [2 * MS] * 5
    places = [first + n * 2 * MS for n in range(5)]
    assert [e.ts * 1000 for e in events] == pytest.approx(places, abs=device.latency + 1000)


def test_nothing_is_asked_while_a_graph_is_captured(clock: GraphClock, device: Device) -> None:
    with capture() as events:
        run(clock, device, MS)
        began_before = clock.start()
        assert began_before is not None
        Pool.capturing = True
        assert clock.start() is None
        began_before.stop("graph.forward.device", "dynamo", {})
        Pool.capturing = False
        run(clock, device, 3 * MS)
        clock.drain()
    assert [e.args["dur_ns"] for e in events] == [MS, 3 * MS]


def test_a_device_that_hangs_does_not_hang_the_end(clock: GraphClock, device: Device) -> None:
    with capture() as events:
        run(clock, device, MS)
        run(clock, device, 3_600_000 * MS)
        before = device.now
        clock.drain()
    assert [e.args["dur_ns"] for e in events] == [MS]
    assert device.now - before < 6_000 * MS


def test_an_error_of_the_device_is_not_the_programs(clock: GraphClock, device: Device) -> None:
    def fails(device: int) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    span = clock.start()
    assert span is not None
    clock._pool.record = fails
    span.stop("graph.forward.device", "dynamo", {})
    assert clock.start() is None
    clock.drain()


def test_a_forked_child_leaves_the_device_alone(clock: GraphClock, device: Device) -> None:
    run(clock, device, 3_600_000 * MS)
    event = weakref.ref(clock._waiting[0][0])
    pid = os.fork()
    if pid == 0:
        os._exit(0 if clock.start() is None and not clock._waiting and event() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert clock.start() is not None
