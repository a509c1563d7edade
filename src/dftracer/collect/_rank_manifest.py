"""The manifest of one rank: what was collected, where, when and at what cost."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

import dftracer
from dftracer.collect._entries import Entries
from dftracer.collect._health import Costs, Health
from dftracer.collect._manifest import VERSION, write
from dftracer.collect._names import Names
from dftracer.collect._options import Options
from dftracer.collect._recording import Recording

# Clocks -------------------------------------------------------------------------------------------
#
# Pairs of the wall clock and the monotonic clock, for laying traces of several processes side by
# side.


_TRIES = 8


def anchor() -> dict[str, Any]:
    """Epoch and CLOCK_MONOTONIC at one moment, and how far apart the two readings can be, in ns."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        epoch = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best is None or after - before < best[0]:
            best = (after - before, epoch, (before + after) // 2)
    assert best is not None
    return {"epoch_us": best[1] / 1000, "epoch_ns": best[1], "monotonic_ns": best[2], "error_ns": best[0]}


# The manifest -------------------------------------------------------------------------------------


@dataclass
class RankManifest:
    """Put together, and written, from what the parts of the collection know."""

    torch: Any
    options: Options
    health: Health
    names: Names
    recording: Recording
    costs: Costs
    entries: Entries
    steps: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        self._pid = os.getpid()
        self._clock = {"start": anchor()}

    def end_clock(self) -> None:
        """The clock once more, at the end."""
        self._clock["end"] = anchor()

    def write(self) -> None:
        """The file, as things stand."""
        with self.health.guard("manifest"), self.recording.hidden():
            write(self.names.manifest(), self.content())

    def content(self) -> dict[str, Any]:
        """All that is known by now."""
        names = self.names
        return {
            "version": VERSION,
            "versions": {
                "torch": str(self.torch.__version__),
                "python": platform.python_version(),
                "pydftracer": dftracer.__version__,
                "cuda": self.torch.version.cuda,
            },
            "run": names.run,
            "directory": names.directory,
            "rank": names.rank,
            "rank_source": names.source,
            "world_size": names.world_size,
            "host": socket.gethostname(),
            "pid": self._pid,
            "command": list(sys.argv),
            "complete": self.complete,
            "steps": self.steps,
            "schedule": self.options.schedule(),
            "traces": list(self.options.traces),
            "windows": self.entries.all,
            "clock": self._clock,
            "files": self._files(),
            "overheads": self.costs.told(),
            "warnings": list(self.health.warnings),
        }

    def _files(self) -> list[dict[str, Any]]:
        files = self.names.files()
        path = self.recording.trace_path
        if path and os.path.exists(path):
            inside = os.path.dirname(os.path.abspath(path)) == self.names.directory
            files.append({"name": os.path.basename(path) if inside else path, "bytes": os.path.getsize(path)})
        return files
