"""Nsight Systems: its command line, and the range of a window inside a process that runs under it.

nsys wraps a process from outside, and excludes Kineto (one CUPTI client a process). So the command starts it,
and the window says when to record, by cudaProfilerStart and cudaProfilerStop.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from dftracer.collect._collection import Health


def find() -> str | None:
    """The nsys of this machine."""
    return shutil.which("nsys")


def command(nsys: str, directory: str, rank: str, program: Sequence[str], windows: int = 1) -> list[str]:
    """The program under nsys, recording its windows only."""
    end = "stop" if windows == 1 else "repeat" + (f":{windows}" if windows else "")
    return [
        nsys,
        "profile",
        "--output",
        os.path.join(directory, f"nsys_{rank}"),
        "--force-overwrite",
        "true",
        "--trace",
        "cuda,nvtx,osrt",
        "--sample",
        "none",
        "--capture-range",
        "cudaProfilerApi",
        "--capture-range-end",
        end,
        "--",
        *program,
    ]


def _under_nsys() -> bool:
    return any(name.startswith(("NSYS_", "QUADD_")) for name in os.environ)


class Range:
    """Tells nsys, if it is there, when a window begins and ends; says once what to do if it is not."""

    def __init__(self, torch: Any, health: Health) -> None:
        self._torch = torch
        self._health = health
        self._nvtx: Any = None
        if not _under_nsys():
            words = command("nsys", "OUT", "%q{RANK}", [sys.executable, *sys.argv])
            absent = "" if find() else "nsys is not on the PATH; "
            health.warn(
                f"no nsys trace: {absent}start each rank as: {shlex.join(words)}  (or: dftracer collect "
                "--traces pfw,nsys ...)"
            )

    def start(self) -> None:
        """Record from here on, operators as NVTX ranges."""
        if _under_nsys() and self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            with self._health.guard("nsys"):
                self._torch.cuda.synchronize()
                self._torch.cuda.profiler.start()
                self._nvtx = self._torch.autograd.profiler.emit_nvtx(record_shapes=True)
                self._nvtx.__enter__()

    def stop(self) -> None:
        """The window is over."""
        nvtx, self._nvtx = self._nvtx, None
        if nvtx is not None:
            with self._health.guard("nsys"):
                nvtx.__exit__(None, None, None)
                self._torch.cuda.synchronize()
                self._torch.cuda.profiler.stop()
