"""Counters next to the events: memory, CPU and bytes of this process, sampled at an interval."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from dftracer import _core

__all__ = ["sample", "start", "stop"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_IO_FIELDS = ("rchar", "wchar", "read_bytes", "write_bytes")

_stopping = threading.Event()
_interval_s = 0.0


def _memory() -> dict[str, float]:
    with open("/proc/self/statm", "rb", buffering=0) as file:
        fields = file.read(128).split()
    return {"rss": int(fields[1]) * _PAGE, "shared": int(fields[2]) * _PAGE}


def _cpu() -> dict[str, float]:
    times = os.times()
    return {"user_us": int(times.user * 1e6), "system_us": int(times.system * 1e6)}


def _io() -> dict[str, float]:
    with open("/proc/self/io", "rb", buffering=0) as file:
        pairs = dict(line.split(b": ") for line in file.read(1024).splitlines())
    return {name: int(pairs[name.encode()]) for name in _IO_FIELDS}


def _gpu() -> dict[str, float]:
    # Only what is already loaded and running: we must not import torch or wake a GPU.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    values: dict[str, float] = {}
    for device in range(torch.cuda.device_count()):
        values[f"allocated_{device}"] = torch.cuda.memory_allocated(device)
        values[f"reserved_{device}"] = torch.cuda.memory_reserved(device)
    return values


_SOURCES: dict[str, Callable[[], dict[str, float]]] = {"memory": _memory, "cpu": _cpu, "io": _io, "gpu": _gpu}


def sample() -> None:
    """Write one `C` record per source; a source that cannot be read is left out."""
    for name, source in _SOURCES.items():
        try:
            values = source()
        except Exception:
            continue
        if values:
            _core.log_counter(name, "counter", values)


def _run(stopping: threading.Event, interval_s: float) -> None:
    while True:
        sample()
        if stopping.wait(interval_s):
            return


def start(interval_ms: int) -> None:
    """Sample every `interval_ms` until `stop`; 0 does nothing."""
    global _stopping, _interval_s  # noqa: PLW0603 - one sampler per process
    if interval_ms <= 0 or _interval_s > 0:
        return
    _interval_s = interval_ms / 1000
    _stopping = threading.Event()
    threading.Thread(
        target=_run, args=(_stopping, _interval_s), name="dftracer-counters", daemon=True
    ).start()


def stop() -> None:
    """End the sampling."""
    global _interval_s  # noqa: PLW0603
    if _interval_s > 0:
        _stopping.set()
        _interval_s = 0.0


def _in_child() -> None:
    global _interval_s
    interval_ms, _interval_s = round(_interval_s * 1000), 0.0
    start(interval_ms)  # threads do not survive a fork


os.register_at_fork(after_in_child=_in_child)
