"""The names of a rank's files, also before its rank is known.

Until somebody tells the rank, a process calls itself 0, or by its pid where another one does so already; when
the rank turns out to be another, its files are renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
from typing import Any

from dftracer import _core
from dftracer.collect import _identity, _manifest
from dftracer.collect._earlier import move_aside, move_ranks_aside

__all__ = ["Names"]

_LABEL = re.compile(r"^(torch_et|kineto_trace)_(p?\d+)(?=[_.])")
_WAIT_S = 10.0


class Names:
    """Where each file of this process goes."""

    def __init__(self, directory: str, compress: bool) -> None:
        self.directory = directory
        self._suffix = ".json.gz" if compress else ".json"
        self._written: list[str] = []
        self.rank, self.world_size, self.source = 0, 1, "nobody"
        self.run = _core.run_id() or _core.identify_run(os.path.join(directory, "trace"))
        rank, world_size, source = _identity.place()
        with _manifest.alone(directory):
            if rank is None:
                self.label = f"p{os.getpid()}" if self._taken(0) else "0"
            else:
                self.label = str(rank)
            move_aside(directory, self.label)
            if self.label == "0":
                move_ranks_aside(directory, world_size or 1, self.run)
            self._claim()
        self.settle(rank, world_size, source)

    def settle(self, rank: int | None, world_size: int | None, source: str) -> bool:
        """Take over what is known of the rank by now; whether names have changed."""
        if rank is not None:
            self.rank, self.source = rank, source
            self.world_size = world_size or max(self.world_size, rank + 1)
        if rank is None or self.label == str(rank):
            return False
        return self._rename(str(rank))

    def settle_finally(self) -> bool:
        """The rank as it is known at the end; waits for another process that still has its names."""
        if self.label == str(self.rank):
            return False
        end = time.monotonic() + _WAIT_S
        while self._taken(self.rank) and time.monotonic() < end:
            time.sleep(0.05)
        return self._rename(str(self.rank), force=True)

    def _claim(self) -> None:
        mine = {"run": self.run, "pid": os.getpid(), "host": socket.gethostname(), "complete": False}
        empty = {"rank": self.rank, "world_size": self.world_size, "windows": [], "warnings": []}
        _manifest.write(self.manifest(), {**mine, **empty})

    def _taken(self, rank: int) -> bool:
        """Whether another process, which still runs, calls itself this rank."""
        try:
            with open(os.path.join(self.directory, f"manifest_{rank}.json"), encoding="utf-8") as file:
                other = json.load(file)
        except (OSError, ValueError):
            return False
        if other.get("complete") or other.get("host") != socket.gethostname():
            return False
        pid = other.get("pid")
        return isinstance(pid, int) and pid != os.getpid() and os.path.exists(f"/proc/{pid}")

    def trace(self, kind: str, window: int) -> str:
        """Where a trace of one window is made; `add` gives it its name of the moment."""
        number = f"_w{window}" if window else ""
        # The label may change while the file is being made, and be another process's by then.
        label = self.label if self.source != "nobody" else f"p{os.getpid()}"
        return os.path.join(self.directory, f"{kind}_{label}{number}{self._suffix}")

    def stem(self, name: str) -> str:
        """The file of a plug-in, without its suffix."""
        return os.path.join(self.directory, f"{name}_{self.label}")

    def manifest(self) -> str:
        """The manifest of this rank."""
        return os.path.join(self.directory, f"manifest_{self.label}.json")

    def add(self, path: str) -> str:
        """A file that is there now; its name under the label of now."""
        target = os.path.join(self.directory, self.renamed(os.path.basename(path)))
        if target != path:
            os.replace(path, target)
        if target not in self._written:
            self._written.append(target)
        return os.path.basename(target)

    def files(self) -> list[dict[str, Any]]:
        """Name and size of each."""
        found = []
        for path in self._written:
            with contextlib.suppress(OSError):
                found.append({"name": os.path.basename(path), "bytes": os.path.getsize(path)})
        return found

    def renamed(self, name: str) -> str:
        """What a trace that was written under an older label is called now."""
        return _LABEL.sub(lambda found: f"{found[1]}_{self.label}", name)

    def _rename(self, label: str, force: bool = False) -> bool:
        with _manifest.alone(self.directory):
            if self._taken(int(label)) and not force:
                return False
            move_aside(self.directory, label)
            old, self.label = self.manifest(), label
            kept = []
            for path in self._written:
                target = os.path.join(self.directory, self.renamed(os.path.basename(path)))
                try:
                    os.replace(path, target)
                    kept.append(target)
                except OSError:
                    kept.append(path)
            self._written = kept
            with contextlib.suppress(OSError):
                os.unlink(old)
            self._claim()
        return True
