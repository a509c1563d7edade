"""Events at phase boundaries: device time and lag of each phase, on a stand-in for the device's queue."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.report import document
from support.process import Run

SUPPORT = str(Path(__file__).parents[1])

LOOP = f"""
import sys
sys.path.insert(0, {SUPPORT!r})
from support.stand_in_device import Device, Pool
from dftracer import _core
from dftracer.torch.device import DeviceEvents

MS = 1_000_000
device = Device(_core.time_ns())
pool = Pool(device)
events = DeviceEvents(pool, device.time_ns)
_core.set_boundary_hook(events.boundary)

class Loader:
    def __init__(self, n, wait):
        self.n, self.wait = n, wait
    def __iter__(self):
        for i in range(self.n):
            device.host(self.wait)
            yield i

def train(steps, wait, host, work, after=lambda i: None):
    for i in ai.dataloader.fetch.iter(Loader(steps, wait)):
        for phase, share in ((ai.compute.forward, 1), (ai.compute.backward, 2), (ai.compute.step, 1)):
            with phase:
                device.host(host * share)
                device.launch(work * share)
        after(i)
"""


def phases(run: Run, name: str) -> list[Any]:
    return [e for e in run.trace.events if e.cat == "device_time" and e.name == name]


def test_a_device_that_waits_for_data_has_no_lag_and_its_wait_is_seen(traced: Callable[..., Run]) -> None:
    run = traced(
        LOOP + "train(20, 50 * MS, MS // 10, MS)\ndevice.host(MS * 99)\nevents.drain()\nlog.finalize()\n"
    )
    assert [e.args["lag_us"] for e in phases(run, "forward")] == pytest.approx([5.0] * 20, abs=6)
    fetches = phases(run, "fetch")
    assert len(fetches) == 19
    # 50 ms of waiting, less the work that is still queued when it begins.
    assert [e.dur / 1000 for e in fetches] == pytest.approx([46.4] * 19, abs=0.3)
    assert phases(run, "step")[3].dur == pytest.approx(4000, abs=120)


def test_a_device_that_is_the_bottleneck_lags_more_and_more(traced: Callable[..., Run]) -> None:
    run = traced(
        LOOP
        + "train(20, MS // 10, MS // 10, 3 * MS)\ndevice.host(500 * MS)\nevents.drain()\nlog.finalize()\n"
    )
    lags = [e.args["lag_us"] for e in phases(run, "backward")]
    assert len(lags) == 20
    assert all(b > a for a, b in itertools.pairwise(lags))
    assert [e.dur for e in phases(run, "backward")] == pytest.approx([6000] * 20, abs=30)
    assert sum(e.dur for e in phases(run, "fetch")) < 200


def test_nothing_is_recorded_or_asked_during_a_capture(traced: Callable[..., Run]) -> None:
    run = traced(
        LOOP
        + """
def capture(i):
    Pool.capturing = 4 <= i < 8
train(20, MS, MS, MS, capture)
events.drain()
log.finalize()
"""
    )
    assert run.stderr == ""
    assert 14 <= len(phases(run, "backward")) <= 17


def test_the_clock_stays_right_over_hours(traced: Callable[..., Run]) -> None:
    run = traced(LOOP + "train(60, 120_000 * MS, MS, MS)\nevents.drain()\nlog.finalize()\n")
    last = phases(run, "backward")[-10:]
    assert [e.args["lag_us"] for e in last] == pytest.approx([1000] * 10, abs=120)
    assert [e.dur for e in last] == pytest.approx([3000] * 10, abs=120)
    assert all(e.args["error_us"] < 200_000 for e in last)


def test_events_are_reused(traced: Callable[..., Run]) -> None:
    run = traced(LOOP + "train(300, MS, MS, MS)\nprint(pool.made)\nlog.finalize()\n")
    assert int(run.stdout) < 20


def test_the_device_is_named_and_memory_is_sampled(traced: Callable[..., Run]) -> None:
    run = traced(LOOP + "train(9, MS, MS, MS)\nevents.drain()\nlog.finalize()\n")
    named = [m.args["value"] for m in run.trace.metadata("CM") if m.args.get("name") == "device.0.name"]
    assert named == ["NVIDIA H200"]
    assert any(e.args.get("memory_peak") == 3000 for e in phases(run, "backward"))


def test_a_program_without_a_device_is_asked_once_and_writes_nothing(traced: Callable[..., Run]) -> None:
    run = traced(
        """
        import torch
        from dftracer.torch import device as _device_events
        asked = []
        probe = _device_events._probe
        from dftracer import _core
        _core.set_boundary_hook(lambda code: (asked.append(code), probe(code)))
        for i in ai.dataloader.fetch.iter(range(50)):
            with ai.compute.forward:
                pass
        print(len(asked))
        log.finalize()
        """,
        forked=True,
    )
    assert run.stdout.strip() == "1"
    assert not [e for e in run.trace.events if e.cat == "device_time"]


def test_steps_left_out_are_not_part_of_the_account(traced: Callable[..., Run]) -> None:
    """Recording is limited; what it leaves out must not count as busy."""
    run = traced(
        LOOP
        + """
def too_dear(i):
    events._spent = 10**18 if 9 <= i < 50 else 0
train(90, 50 * MS, MS // 10, MS, too_dear)
device.host(MS * 99)
events.drain()
log.finalize()
"""
    )
    steps = len(phases(run, "step"))
    assert 9 + 20 <= steps <= 9 + 41
    account = document(analyze(run.trace_dir))["device"]["ranks"]["0"]
    # A wait of 50 ms, then 4 ms of work.
    assert account["busy_share"] == pytest.approx(4 / 50.4, abs=0.02)
    assert account["observed_s"] == pytest.approx(steps * 0.0504, abs=0.2)


def test_a_slow_first_event_does_not_cost_later_steps_theirs(traced: Callable[..., Run]) -> None:
    """Steps of 54 ms, 40 us for an event: one in six or so. Creating the first one takes 50 ms once."""
    run = traced(
        LOOP
        + """
record = pool.record
def slow(number):
    device.host(50 * MS if pool.made == 0 else 40_000)
    return record(number)
pool.record = slow
train(108, 50 * MS, MS, MS, lambda i: None)
device.host(MS * 99)
events.drain()
log.finalize()
"""
    )
    assert 15 <= len(phases(run, "step")) <= 40


def test_a_forked_child_destroys_no_event(traced: Callable[..., Run]) -> None:
    """A loader's workers: where CUDA cannot be used, destroying one of its events aborts the process."""
    run = traced(
        LOOP
        + """
import os
from dftracer.torch import device as _device_events
from support import stand_in_device

def destroyed(event):
    print("destroyed in", "parent" if os.getpid() == parent else "child", flush=True)

parent = os.getpid()
stand_in_device.Event.__del__ = destroyed
_core.set_boundary_hook(None)
_device_events.TorchPool = lambda torch: pool
sys.modules["torch"] = sys
_device_events._watching = False
_device_events.watch()
_core.set_boundary_hook(_device_events._begin)
events = None
for i in ai.dataloader.fetch.iter(range(20)):
    for phase in (ai.compute.forward, ai.compute.backward, ai.compute.step):
        with phase:
            device.launch(MS)
            device.host(MS)
pool = None
if os.fork() == 0:
    sys.exit()
print("child", os.wait()[1])
_device_events._recorder = None
_core.set_boundary_hook(None)
log.finalize()
"""
    )
    output = run.stdout.splitlines()
    assert output[0] == "child 0"
    assert "destroyed in parent" in output


def test_the_switch_leaves_the_hook_alone(traced: Callable[..., Run]) -> None:
    source = """
        import sys
        print("dftracer.torch.device" in sys.modules)
        log.finalize()
        """
    assert traced(source, env={"DFTRACER_DEVICE_EVENTS": "0"}).stdout.strip() == "False"


def test_an_error_of_the_pool_switches_off_and_never_reaches_the_program(traced: Callable[..., Run]) -> None:
    run = traced(
        LOOP
        + """
def broken(device):
    raise RuntimeError("no such device")
pool.record = broken
train(3, MS, MS, MS)
print("done")
log.finalize()
""",
        env={"DFTRACER_LOG_LEVEL": "WARN"},
    )
    assert run.stdout.strip() == "done"
    assert run.stderr.count("device events disabled") == 1


def test_automatic_phases_have_boundaries_too(traced: Callable[..., Run]) -> None:
    run = traced(
        f"""
        import sys
        sys.path.insert(0, {SUPPORT!r})
        import torch
        from support.stand_in_device import Device, Pool
        from dftracer import _core
        from dftracer.torch.device import DeviceEvents

        device = Device(_core.time_ns())
        events = DeviceEvents(Pool(device), device.time_ns)
        _core.set_boundary_hook(events.boundary)

        class Model(torch.nn.Linear):
            def forward(self, x):
                device.host(1_000_000)
                device.launch(2_000_000)
                return super().forward(x)

        model = Model(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.utils.data.TensorDataset(torch.ones(20, 4))
        for (x,) in torch.utils.data.DataLoader(data, batch_size=2):
            model(x).sum().backward()
            optimizer.step()
            device.host(3_000_000)
        events.drain()
        log.finalize()
        """,
        env={"DFTRACER_AUTO": "1"},
        forked=True,
    )
    for name in ("forward", "backward", "optimizer"):
        assert len(phases(run, name)) == 10, name
    # 2 ms of work, begun when the host had been at it for 1 ms.
    assert [e.dur for e in phases(run, "forward")] == pytest.approx([3000] * 10, abs=30)
    assert len(phases(run, "step")) == 9


def test_copies_of_a_checkpoint_do_not_break_the_upper_bound(traced: Callable[..., Run]) -> None:
    run = traced(
        LOOP
        + """
def save(i):
    with ai.checkpoint.capture:
        device.launch(40 * MS)
        device.host(100 * MS)
train(20, MS, MS, MS, save)
device.host(MS)
events.drain()
print(device.busy)
log.finalize()
"""
    )
    account = analyze(run.trace_dir).job.ranks[0].main.devices
    assert account is not None
    assert account.events is not None
    # 100 ms each, less 2 ms of the step's work that is still queued when it begins.
    assert account.events.in_checkpoints_s == pytest.approx(20 * 0.098, rel=0.01)
    assert account.events.busy_s >= int(run.stdout) / 1e9


def dear(ns: str) -> str:
    """The program's events, each of which costs the host this much."""
    return f"""
class Dear(Pool):
    def record(self, of):
        device.host({ns})
        return super().record(of)
events = DeviceEvents(Dear(device), device.time_ns)
_core.set_boundary_hook(events.boundary)
"""


def test_where_recording_is_dear_steps_are_left_out(traced: Callable[..., Run]) -> None:
    """An event that costs the host 0.1 ms: 3 % of a step of 10 ms with four events, were all recorded."""
    run = traced(
        LOOP
        + dear("MS // 10")
        + """
began = device.now
train(400, 2 * MS, 2 * MS, MS // 10)
print((device.now - began) / MS)
device.host(99 * MS)
events.drain()
log.finalize()
"""
    )
    plain_ms = 400 * 10
    assert float(run.stdout) < plain_ms * 1.01
    steps = phases(run, "step")
    assert 8 <= len(steps) < 200
    assert steps[-1].ts - steps[0].ts > 0.8 * plain_ms * 1000, "they are taken from the whole run"
    # Nothing spans what was left out.
    for name in ("fetch", "step", "forward", "backward", "optimizer"):
        assert all(e.dur < 11_000 for e in phases(run, name)), name


def test_recorded_steps_are_not_always_those_after_a_long_one(traced: Callable[..., Run]) -> None:
    """Every tenth step saves for half a second, which alone would pay for many recorded steps."""
    run = traced(
        LOOP
        + dear("MS // 20")
        + """
recorded = [0] * 10
def save(i):
    recorded[i % 10] += not events._pausing
    if i % 10 == 9:
        device.host(500 * MS)
train(1000, MS, MS, MS // 10, save)
print(*recorded)
log.finalize()
"""
    )
    recorded = [int(word) for word in run.stdout.split()]
    assert sum(recorded) >= 60
    # Half of them would be two positions, were all alike; what follows at once would be four.
    assert sum(recorded[:4]) < 0.65 * sum(recorded), recorded
    assert sum(count > 0 for count in recorded) >= 8, recorded


def test_pauses_end_where_looking_at_the_device_is_dear(traced: Callable[..., Run]) -> None:
    """Half of what a step of 10 ms may cost, only to see whether it may be recorded."""
    run = traced(
        LOOP
        + """
class DearToAsk(Pool):
    def may_touch(self):
        device.host(8_000)
        return super().may_touch()
events = DeviceEvents(DearToAsk(device), device.time_ns)
_core.set_boundary_hook(events.boundary)
train(2000, 2 * MS, 2 * MS, MS // 10)
print(events._steps)
log.finalize()
"""
    )
    assert 8 + 60 <= int(run.stdout) <= 8 + 400


def test_without_a_loader_steps_are_left_out_too(traced: Callable[..., Run]) -> None:
    """A list of batches: nothing says where a step ends, except its optimizer."""
    run = traced(
        LOOP
        + dear("MS // 20")
        + """
began = device.now
for _ in range(1000):
    for phase in (ai.compute.forward, ai.compute.backward, ai.compute.step):
        with phase:
            device.host(3 * MS)
            device.launch(MS // 10)
print((device.now - began) / MS)
events.drain()
log.finalize()
"""
    )
    assert float(run.stdout) < 9000 * 1.002
    recorded = phases(run, "forward")
    assert 30 <= len(recorded) <= 300
    assert all(e.dur < 4_000 for name in ("forward", "backward", "optimizer") for e in phases(run, name))
