"""Whether a trace file is still being written."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from dftracer.load.process import ProcessInfo

__all__ = ["is_finished", "is_live"]

_CLOCKS_AGREE_S = 5.0


def is_finished(process: ProcessInfo) -> bool:
    """Whether the process said that this file is complete."""
    return process.end is not None


def is_live(process: ProcessInfo) -> bool:
    """Whether the file is known to be in use: its lock is held, or its process runs on this host."""
    if is_finished(process):
        return False
    return _locked(process.file) or (process.host == socket.gethostname() and _runs(process))


def _locked(file: Path) -> bool:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks says nothing
        return False
    finally:
        os.close(handle)
    return False


def _runs(process: ProcessInfo) -> bool:
    """Whether the process of the trace is running, and not a later one with the same pid."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        born = time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False
    return process.start_us is None or born <= process.start_us / 1e6 + _CLOCKS_AGREE_S
