"""What the numbers were measured on, and which core does what."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

__all__ = ["circumstances", "facts", "measuring_core", "pin_measuring_thread", "pin_writer_core"]


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _niceness() -> str:
    """A busy machine can be told to prefer the bench; the page then says so."""
    try:
        group = Path("/proc/self/autogroup").read_text().split()[-1]
    except OSError:
        group = "none"
    return f"{os.getpriority(os.PRIO_PROCESS, 0)}, {group}"


def circumstances() -> dict[str, str]:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return {
        "load average before": load,
        "niceness of process and scheduling group": _niceness(),
    }


def facts() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def measuring_core() -> int | None:
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) > 1 else None


def pin_writer_core() -> None:
    """Threads started from here on inherit every core but the measuring one."""
    core = measuring_core()
    if core is not None:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {core})


def pin_measuring_thread(core: int | None) -> None:
    if core is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {core})
