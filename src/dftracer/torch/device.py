"""Device time of each training phase: how long the device took, and how far it lags behind the host.

At each phase boundary of some steps a pooled event goes into the current stream. Where a step ends, they
are queried for whether the device has passed them, without waiting. Nothing is recorded or queried while any
thread captures a graph: in CUDA's global mode, querying an event in another thread breaks the capture.
"""

from __future__ import annotations

import _thread
import os
import sys

from dftracer import _core
from dftracer._session import before_finalize
from dftracer.torch.patches import Patches

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable
    from typing import Any

CATEGORY = "device_time"
# In the order of native/module/boundary.hpp; a boundary's code is twice this, plus one at the end of a phase.
PHASES = ("", "fetch", "step", "transfer", "forward", "backward", "optimizer", "checkpoint")
_FETCH, _STEP = 1, 2
_STEP_ENDS = 2 * _STEP + 1
_OPTIMIZER_ENDS = 2 * 6 + 1
_WITHOUT_STEPS = 16  # optimizer steps in a row without the end of a step: then each of them counts as one
_PAUSE = -1  # instead of a code: drop what is open
# Share of the run's time that recording may take; after a recorded step, steps are skipped until it is back
# within that.
TIME_BUDGET = 0.001
_FIRST_STEPS = 8  # always recorded
_MAX_SKIPPED = 16  # steps skipped at random, to follow those that the budget demands
_CHECK_EVERY = 4  # skipped steps
_SHARED_NS = 20_000  # boundaries closer than this count as one: at most a few launches lie between them
_MAX_WAITING = 4096
_MAX_AT_ONCE = 64
_READ_EVERY = 32  # events, if no step ends
_ALL_BOUNDARIES = 0xFFFFFFFF
_MAX_STREAMS = 256
_GIVE_UP = 8  # failed attempts to find torch, each after twice as many boundaries as the one before
_active, _log_event, _this_thread = _core.active, _core.log_event, _thread.get_ident


# --- Device time on the trace's clock, without ever waiting for the device
#
# CUDA only reports how far apart two events are. The position of the first one on the host's clock follows
# from what is known about every later one: the device cannot pass an event before the host records it, and
# has passed it by the time the host learns so. The two bounds narrow down the moment; the gap between them is
# the error.

# `elapsed_time` is a 32-bit float of ms: 0.12 us fine up to here, 0.25 ms coarse after an hour.
_REANCHOR_NS = 2_000_000_000
_DRIFT = 20e-6  # how far two clocks may drift apart, allowed for each time the anchor moves


class DeviceClock:
    """The clock of one device. Times are ns of the trace's clock."""

    __slots__ = ("high", "likely", "low", "reference")

    def __init__(self, reference: Any, recorded_ns: int, seen_ns: int) -> None:
        self.reference = reference
        self.low = self.likely = recorded_ns
        self.high = seen_ns

    @property
    def error_ns(self) -> int:
        """The distance between the bounds: the true time is no further than this from what `passed` says."""
        return self.high - self.low

    def passed(self, event: Any, recorded_ns: int, seen_ns: int) -> tuple[int, Any]:
        """When the device passed `event`, and a reference that is no longer needed (or None).

        `recorded_ns` is before the host recorded the event, `seen_ns` after it learned that it is done.
        """
        away = int(self.reference.elapsed_time(event) * 1e6)
        earliest, latest = recorded_ns - away, seen_ns - away
        if earliest > self.high or latest < self.low:  # the clocks have drifted apart: the newest is right
            self.low, self.high = earliest, latest
        else:
            self.low, self.high = max(self.low, earliest), min(self.high, latest)
        self.likely = min(max(self.likely, self.low), self.high)
        when = self.likely + away
        if away < _REANCHOR_NS:
            return when, None
        slack = int(away * _DRIFT) + 1000
        self.low, self.likely, self.high = self.low + away - slack, when, self.high + away + slack
        old, self.reference = self.reference, event
        return when, old


# --- Recording and querying events at phase boundaries


class TorchPool:
    """Events of torch.cuda (CUDA and ROCm alike)."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        # What torch.cuda calls itself: the layers above cost more than the calls.
        native = torch._C
        self._new_event = native._CudaEventBase
        self._current_stream = native._cuda_getCurrentStream
        self._is_capturing = native._cuda_isCurrentStreamCapturing
        self.device: Callable[[], int] = native._cuda_getDevice
        self._streams: dict[tuple[int, int, int], Any] = {}
        self._free: dict[int, list[Any]] = {}
        self.captures = 0
        self.lock = _thread.allocate_lock()
        self.patches = Patches()  # for as long as the process lives
        self._guard_captures()

    def may_touch(self) -> bool:
        """Whether the device may be queried now."""
        return not self.captures and not self._is_capturing()

    def record(self, device: int) -> Any:
        """An event in the current stream."""
        free = self._free.get(device)
        event = free.pop() if free else self._new_event(enable_timing=True)
        key = self._current_stream(device)
        event.record(self._streams.get(key) or self._stream(key))
        return event

    def _stream(self, key: tuple[int, int, int]) -> Any:
        """The stream as an object, kept for the next time."""
        if len(self._streams) >= _MAX_STREAMS:
            self._streams.clear()
        stream = self._cuda.Stream(stream_id=key[0], device_index=key[1], device_type=key[2])
        self._streams[key] = stream
        return stream

    def synchronize(self, device: int) -> None:
        """Wait for the device."""
        self._cuda.synchronize(device)

    def give_back(self, device: int, event: Any) -> None:
        self._free.setdefault(device, []).append(event)

    def memory(self, device: int) -> tuple[int, int]:
        """Bytes allocated now, and the maximum so far."""
        stats = self._cuda.memory.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]
        return int(stats["current"]), int(stats["peak"])

    def facts(self, device: int) -> dict[str, str]:
        return {"name": str(self._cuda.get_device_name(device))}

    def _guard_captures(self) -> None:
        """Let a capture wait for a query in progress, and make no other until the capture ends."""

        def around_begin(original: Callable[..., Any]) -> Callable[..., Any]:
            def capture_begin(*args: Any, **kwargs: Any) -> Any:
                with self.lock:
                    self.captures += 1
                try:
                    return original(*args, **kwargs)
                except BaseException:
                    self.captures -= 1
                    raise

            return capture_begin

        def around_end(original: Callable[..., Any]) -> Callable[..., Any]:
            def capture_end(*args: Any, **kwargs: Any) -> Any:
                try:
                    return original(*args, **kwargs)
                finally:
                    self.captures = max(self.captures - 1, 0)

            return capture_end

        graph = self._cuda.graphs.CUDAGraph
        self.patches.around(graph, "capture_begin", around_begin)
        self.patches.around(graph, "capture_end", around_end)


class DeviceEvents:
    """Records events at boundaries and writes the results. Used by the training thread."""

    def __init__(self, pool: Any, now: Callable[[], int] = _core.time_ns) -> None:
        from collections import deque  # noqa: PLC0415 - only where torch is in use

        self._pool = pool
        self._now = now
        self._thread = _this_thread()
        self._clocks: dict[int, DeviceClock] = {}
        self._lanes: dict[int, int] = {}
        # event (None: the one before it also counts for this), its code, host time, device
        self._waiting: deque[tuple[Any, int, int, int]] = deque()
        self._begun: dict[int, tuple[int, int, int]] = {}  # phase -> device, host time, device time
        self._last: tuple[int, int, int] | None = None
        self._last_host = 0
        self._steps = 0
        self._optimized = 0  # optimizers since a step ended
        self._failed = False
        # Since the latest pause: ns, and how many of them in here. The first steps have set up the device's
        # side once, and do not count.
        self._since: int | None = None
        self._spent = 0
        self._pausing = False
        self._skipped = 0  # steps since the pause began
        self._next_check = 0  # the number of skipped steps at which to check the clock, or to end the pause
        self._within_budget = False  # in a pause: from here on, steps are skipped at random
        self._random = 1

    def boundary(self, code: int) -> None:
        """A phase begins or ends here."""
        if code == _STEP_ENDS:
            self._optimized = 0
        elif code == _OPTIMIZER_ENDS:
            self._optimized += 1
        ends = code == (_OPTIMIZER_ENDS if self._optimized > _WITHOUT_STEPS else _STEP_ENDS)
        if self._pausing:
            # Reading the clock at every step would cost as much as the pause saves.
            self._skipped += ends
            if not ends or self._skipped < self._next_check:
                return
        if self._failed or _this_thread() != self._thread or not _active():
            return
        pool = self._pool
        if not pool.lock.acquire(False):  # a capture is beginning
            return
        begin = self._now()
        try:
            if not pool.may_touch():
                return
            if self._pausing and not self._resumes(begin):
                self._read(min(len(self._waiting) - 1, _MAX_AT_ONCE))
                return
            self._record(code, pool, ends)
            if ends and self._over_budget(begin):
                self._pausing, self._within_budget = True, False
                self._skipped, self._next_check = 0, 1
                _core.set_hook_mask(1 << _STEP_ENDS | 1 << _OPTIMIZER_ENDS)
                self._waiting.append((None, _PAUSE, begin, pool.device()))
        except Exception as error:
            self._give_up(error)
        finally:
            pool.lock.release()
            self._spent += self._now() - begin

    def _over_budget(self, now: int) -> bool:
        """At the end of a step: whether recording has taken more than its share of the time."""
        if max(self._steps, self._optimized) < _FIRST_STEPS:
            return False
        if self._since is None:
            self._since, self._spent = now, 0
        return self._spent > (now - self._since) * TIME_BUDGET

    def _resumes(self, now: int) -> bool:
        """Whether the next step is recorded.

        Once within the budget, a random number of further steps is skipped, at most as many as before: a long
        step (a checkpoint) makes room for many, and otherwise the same steps would always be recorded after
        it. For the same reason, unused budget is not carried over.
        """
        if not self._within_budget:
            self._next_check = self._skipped + _CHECK_EVERY
            if self._over_budget(now):
                return False
            self._within_budget = True
            self._random = (self._random * 1103515245 + 12345) & 0x7FFFFFFF
            more = (self._random >> 8) % (min(self._skipped, _MAX_SKIPPED) + 1)
            self._next_check = self._skipped + more
            if more:
                return False
        self._pausing = False
        self._since, self._spent = now, 0
        _core.set_hook_mask(_ALL_BOUNDARIES)
        return True

    def _record(self, code: int, pool: Any, ends: bool) -> None:
        waiting = self._waiting
        now = self._now()
        device = pool.device()
        if not code & 1 and now - self._last_host < _SHARED_NS and waiting and waiting[-1][3] == device:
            waiting.append((None, code, waiting[-1][2], device))
            return
        if len(waiting) < _MAX_WAITING:
            waiting.append((pool.record(device), code, now, device))
            self._last_host = self._now()
        # Reading many at once takes a third of the time of reading one at every boundary with cold caches.
        # Not the newest: the device needs some us to pass it, and the next beginning may share it.
        if ends or len(waiting) % _READ_EVERY == 0:
            self._read(min(len(waiting) - 1, _MAX_AT_ONCE))

    def drain(self) -> None:
        """Write what the device has passed by now; the rest is not written."""
        if self._failed or not self._pool.lock.acquire(blocking=False):
            return
        try:
            if self._pool.may_touch():
                self._read(len(self._waiting))
        except Exception as error:
            self._give_up(error)
        finally:
            self._pool.lock.release()

    def _read(self, most: int) -> None:
        waiting = self._waiting
        for _ in range(most):
            event, code, host, device = waiting[0]
            if event is None:
                waiting.popleft()
                if self._last is not None:
                    self._write_phase(code, self._last)
                continue
            if not event.query():
                return
            seen = self._now()
            waiting.popleft()
            clock = self._clocks.get(device)
            if clock is None:
                clock = self._clocks[device] = DeviceClock(event, host, seen)
                when = host
                self._name_lane(device)
            else:
                when, unused = clock.passed(event, host, seen)
                if unused is not None:
                    self._pool.give_back(device, unused)
                if clock.reference is not event:
                    self._pool.give_back(device, event)
            self._last = (device, host, when)
            self._write_phase(code, self._last)

    def _write_phase(self, code: int, point: tuple[int, int, int]) -> None:
        if code == _PAUSE:
            self._begun.clear()
            return
        phase = code >> 1
        if not code & 1:
            self._begun[phase] = point
            return
        begun = self._begun.pop(phase, None)
        if phase == _FETCH:  # the step begins when its batch is ready
            self._begun[_STEP] = point
        elif phase == _STEP:  # and the wait for the next batch begins when it ends
            self._begun[_FETCH] = point
            self._steps += 1
        if begun is None or begun[0] != point[0]:
            return
        device, host, start = begun
        _, end_host, end = point
        # Whole us, of times cut to us as the trace cuts them, so that both sides of a boundary agree;
        # and writing one float costs more than all the rest.
        args = {
            "lag_us": start // 1000 - host // 1000,
            "end_lag_us": end // 1000 - end_host // 1000,
            "error_us": self._clocks[device].error_ns // 1000,
        }
        if self._steps & (self._steps - 1) == 0 or self._steps % 64 == 0:
            args["memory"], args["memory_peak"] = self._pool.memory(device)
        _log_event(PHASES[phase], CATEGORY, start, max(end - start, 0), args, self._lanes[device])

    def _name_lane(self, device: int) -> None:
        from dftracer.format.records import phases_lane  # noqa: PLC0415 - only where a device is in use

        lane = self._lanes[device] = phases_lane(device)
        _core.log_metadata("thread_name", f"device {device} phases", str(lane), lane)
        for key, value in self._pool.facts(device).items():
            _core.log_metadata("CM", f"device.{device}.{key}", value)

    def _give_up(self, error: Exception) -> None:
        from dftracer import _messages  # noqa: PLC0415 - only when something is wrong

        self._failed = True
        _core.set_boundary_hook(None)
        _messages.warn(f"device events disabled: {type(error).__name__}: {error}")


_recorder: DeviceEvents | None = None
_watching = False
_without_torch = 0


def watch() -> None:
    """Begin as soon as torch uses a device; a program without one is checked once."""
    global _watching  # noqa: PLW0603 - one recorder per process
    if _watching:
        return
    _watching = True
    _core.set_boundary_hook(_probe)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def name_devices() -> None:
    """If events are off, the trace still says which device was used."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            device = int(torch.cuda.current_device())
            _core.log_metadata("CM", f"device.{device}.name", str(torch.cuda.get_device_name(device)))
    except Exception:  # the trace must be closed, whatever state torch is in
        return


def _forget() -> None:
    """A forked child must not touch the device of its parent: even destroying an event there aborts it."""
    global _recorder  # noqa: PLW0603
    if _recorder is not None:
        _core.keep_forever(_recorder)
        _recorder = None
        _core.set_boundary_hook(None)


def _probe(code: int) -> None:
    global _without_torch  # noqa: PLW0603
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if torch is None or cuda is None or not hasattr(cuda, "is_initialized"):
        _without_torch += 1
        if _without_torch >= _GIVE_UP:
            _core.set_boundary_hook(None)
        else:
            _core.set_boundary_hook(_probe, 512 << _without_torch)
        return
    version = getattr(torch, "version", None)
    if not (getattr(version, "cuda", None) or getattr(version, "hip", None)):
        _core.set_boundary_hook(None)
    elif cuda.is_initialized():
        _begin(code)
    elif hasattr(cuda, "_lazy_call"):
        _core.set_boundary_hook(None)
        cuda._lazy_call(_device_in_use)


def _device_in_use() -> None:
    _core.set_boundary_hook(_begin)


def _begin(code: int) -> None:
    global _recorder  # noqa: PLW0603
    _core.set_boundary_hook(None)
    try:
        recorder = DeviceEvents(TorchPool(sys.modules["torch"]))
    except Exception as error:  # an unknown version of torch
        from dftracer import _messages  # noqa: PLC0415

        _messages.warn(f"no device events: {type(error).__name__}: {error}")
        return
    if _recorder is None:
        before_finalize(lambda: _recorder.drain() if _recorder is not None else None)
    _recorder = recorder
    _core.set_boundary_hook(recorder.boundary)
    recorder.boundary(code)
