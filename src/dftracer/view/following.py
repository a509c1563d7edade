"""A run that may still be going on: its files and rings as they are now, read without disturbing it."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from dftracer.live import LiveFile, look, whole_copy
from dftracer.load.files import NoTraces
from dftracer.load.torch_files import find_torch_files
from dftracer.load.trace import Trace
from dftracer.view.source import Source

__all__ = ["FollowedSource"]


class FollowedSource(Source):
    """Reads copies of files that are still being written; finished files are read directly."""

    def __init__(self, paths: list[str], run: str | None = None, *, cache: bool = True) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="dftracer-view-")
        self._made: dict[Path, tuple[Any, ...]] = {}
        self._files: list[LiveFile] = []
        super().__init__(paths, run, cache=cache, wait=all(Path(p).is_dir() for p in paths))

    def _open(self) -> Trace:
        self._files = look(self.paths)
        places = [self._readable(file) for file in self._files]
        if not places:
            raise NoTraces(f"{self.paths[0]} contains no trace yet")
        trace = Trace(places, cache=False)
        trace.torch_files = find_torch_files(self.paths)
        return self._chosen(trace)

    def _readable(self, file: LiveFile) -> Path:
        """The file itself if there is nothing to add to it, otherwise a copy with everything known."""
        if file.final == file.size and not file.text and file.path.exists():
            return file.path
        folder = Path(self._place.name) / hashlib.sha256(str(file.path.parent).encode()).hexdigest()[:12]
        folder.mkdir(exist_ok=True)
        copy = folder / file.path.name
        state = (file.final, file.size, hashlib.sha256(file.text).digest())
        if self._made.get(copy) != state:
            whole_copy(file, copy)
            self._made[copy] = state
        return copy

    def _keeps(self, files: list[Path]) -> bool:
        return super()._keeps(files) and not any(Path(self._place.name) in f.parents for f in files)

    def facts(self) -> dict[str, Any]:
        states = Counter(file.state for file in self._files)
        return {"running": states["running"], "dropped": sum(file.dropped for file in self._files)}

    def close(self) -> None:
        self._place.cleanup()
