"""A trace that is nearly all profiler: operators, launches and kernels, as `trace_handler` writes them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from dftracer.format.records import FIRST_LINE, LAST_LINE, event_line

__all__ = ["profiler_trace"]

_KERNELS = 2000  # a step
_US = 10  # from one launch to the next
_STREAM = 16777223


def _line(number: int, name: str, cat: str, ts: int, dur: int, tid: int = 1, **args: Any) -> str:
    return event_line(number, name, cat, 1, tid, ts, dur, {"hhash": "a", "p_idx": -1, **args})


def profiler_trace(directory: Path, events: int) -> int:
    """Write it; gives how many events it has."""
    directory.mkdir(parents=True, exist_ok=True)
    number = 0
    body = _KERNELS * _US
    with gzip.open(directory / "profiler-0.pfw.gz", "wt", compresslevel=1) as out:
        out.write(FIRST_LINE)
        for step in range(max(events // (3 * _KERNELS), 1)):
            began = 1_700_000_000_000_000 + step * (body + 4000)
            spans = (
                ("fetch.iter", "dataloader", began, 2000, {"step": step, "epoch": 0}),
                ("forward", "compute", began + 2000, body + 1000, {"step": step}),
                ("fetch.block", "dataloader", began + 2000, body + 2000, {"step": step}),
                (f"ProfilerStep#{step}", "PP", began, body + 4000, {"type": "user_annotation"}),
            )
            for name, cat, ts, dur, args in spans:
                out.write(_line(number, name, cat, ts, dur, **args))
                number += 1
            for k in range(_KERNELS):
                at, op = began + 2000 + k * _US, f"aten::op{k % 40}"
                same = {"correlation": step * _KERNELS + k, "op": op}
                out.write(_line(number, op, "PP", at, 8, type="cpu_op", dur_ns=8000))
                call: dict[str, Any] = {"type": "cuda_runtime", "dur_ns": 4000, **same}
                out.write(_line(number + 1, "cudaLaunchKernel", "PP", at + 2, 4, **call))
                work = {"type": "kernel", "dur_ns": 4000, "device_index": 0, "stream": 7, **same}
                out.write(_line(number + 2, f"kernel_{k % 40}", "PP", at + 5, 4, tid=_STREAM, **work))
                number += 3
        out.write(LAST_LINE)
    return number
