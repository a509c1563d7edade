"""The names of a rank's files, also before its rank is known."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from dftracer.collect import _identity

__all__ = ["Names"]


class Names:
    """Where each file of this process goes; renames them when the rank turns out to be another one."""

    def __init__(self, directory: str, compress: bool) -> None:
        self.directory = directory
        self._suffix = ".json.gz" if compress else ".json"
        self._written: list[str] = []
        self.rank, self.world_size, self.source = 0, 1, "nobody"
        self._settled = False
        rank, world_size, source = _identity.place()
        self.label = str(rank) if rank is not None else f"p{os.getpid()}"
        self.settle(rank, world_size, source)

    def settle(self, rank: int | None, world_size: int | None, source: str) -> bool:
        """Take over what is known of the rank by now; whether it has changed."""
        if rank is None:
            if not self._settled:
                self.rank = self._free_rank()
            return False
        changed = rank != self.rank or self.source == "nobody"
        before, self.rank = self.rank, rank
        self.world_size = world_size or max(self.world_size, rank + 1)
        self.source, self._settled = source, True
        if before != rank:
            self._rename(before)
        return changed

    def _free_rank(self) -> int:
        """0, unless another process that is alive calls itself that in this directory."""
        candidate = 0
        while True:
            try:
                path = os.path.join(self.directory, f"manifest_{candidate}.json")
                with open(path, encoding="utf-8") as file:
                    other = json.load(file)
            except (OSError, ValueError):
                return candidate
            pid = other.get("pid")
            alive = (
                isinstance(pid, int)
                and pid != os.getpid()
                and not other.get("complete")
                and os.path.exists(f"/proc/{pid}")
            )
            if not alive:
                return candidate
            candidate += 1

    def trace(self, kind: str, window: int) -> str:
        """The file of one kind of trace and one window."""
        number = f"_w{window}" if window else ""
        return os.path.join(self.directory, f"{kind}_{self.rank}{number}{self._suffix}")

    def stem(self, name: str) -> str:
        """The file of a plug-in, without its suffix."""
        return os.path.join(self.directory, f"{name}_{self.rank}")

    def manifest(self) -> str:
        """The manifest of this rank."""
        return os.path.join(self.directory, f"manifest_{self.rank}.json")

    def add(self, path: str) -> None:
        """A file that is there now."""
        if path not in self._written:
            self._written.append(path)

    def files(self) -> list[dict[str, Any]]:
        """Name and size of each."""
        found = []
        for path in self._written:
            with contextlib.suppress(OSError):
                found.append({"name": os.path.basename(path), "bytes": os.path.getsize(path)})
        return found

    def renamed(self, name: str) -> str:
        """What a file of an older rank is called now."""
        stem, _, rest = name.partition(".")
        parts = stem.split("_")
        at = 2
        if len(parts) > at and parts[at].isdigit():
            parts[at] = str(self.rank)
        return "_".join(parts) + "." + rest

    def _rename(self, before: int) -> None:
        kept = []
        for path in self._written:
            directory, name = os.path.split(path)
            target = os.path.join(directory, self.renamed(name))
            try:
                os.replace(path, target)
                kept.append(target)
            except OSError:
                kept.append(path)
        self._written = kept
        old = os.path.join(self.directory, f"manifest_{before}.json")
        with contextlib.suppress(OSError, ValueError):
            with open(old, encoding="utf-8") as file:
                mine = json.load(file).get("pid") == os.getpid()
            if mine:
                os.unlink(old)
