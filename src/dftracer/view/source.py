"""Where a run comes from: its files, read once, kept, and read again when they change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dftracer.analyze.analysis import units_of
from dftracer.analyze.torch_files import read_torch_files
from dftracer.load._need import MissingExtra
from dftracer.load.files import NoTraces, recover
from dftracer.load.process import ProcessInfo
from dftracer.load.runs import run_identity
from dftracer.load.trace import Trace
from dftracer.view import store
from dftracer.view.part import Part
from dftracer.view.reading import read_files, read_torch
from dftracer.view.run import Run
from dftracer.view.steps import find_steps

__all__ = ["Source"]

Progress = Callable[[int, int], None]


class Source:
    """One run of the paths the user named."""

    def __init__(
        self, paths: list[str], run: str | None = None, *, cache: bool = True, wait: bool = False
    ) -> None:
        """`wait`: files may appear later, so having none at the beginning is not an error."""
        self.paths = paths
        self.title = Path(paths[0]).resolve().name or str(paths[0])
        self.notes: list[str] = []
        self._run = run
        self._cache = cache
        self._held: dict[str, tuple[str, list[Part]]] = {}
        self._opened: Trace | None = None
        try:
            self.reopen()
        except NoTraces:
            if not wait:
                raise

    @property
    def trace(self) -> Trace:
        if self._opened is None:
            raise NoTraces(f"{self.paths[0]} contains no trace yet")
        return self._opened

    def _open(self) -> Trace:
        recover(self.paths)
        return self._chosen(Trace(self.paths, torch=True))

    def _chosen(self, trace: Trace) -> Trace:
        if self._run is not None:
            return trace.of_run(self._run)
        return trace.newest_run() if len(trace.runs) > 1 else trace

    def stamp(self) -> str:
        """Changes whenever a file of the run changes, appears or disappears."""
        try:
            files = self.trace.files
            return store.stamp_of([*files, *(f for found in self.trace.torch_files for f in found)])
        except (OSError, NoTraces):
            return ""

    def reopen(self) -> None:
        """Look for the files again: a running job adds some."""
        self._opened = self._open()

    def load(self, progress: Progress | None = None) -> Run:
        """The run, from the cache if that is up to date."""
        units = units_of(self.trace, gaps=True)
        sizes = [sum(p.file.stat().st_size for p in unit) for unit in units]
        parts: list[Part] = []
        done, total = 0, sum(sizes)
        for unit, size in zip(units, sizes, strict=True):
            tick = None if progress is None else _from(progress, done, total)
            parts += self._part(unit, tick)
            done += size
            if progress is not None:
                progress(done, total)
        parts += self._profiler_parts(parts)
        if self._cache:
            store.make_room()
        if not any(len(p) for p in parts):
            raise NoTraces(f"{self.paths[0]} contains no events yet: nothing was recorded")
        return Run(self.title, parts, run_identity(self.trace.processes))

    def _part(self, unit: list[ProcessInfo], progress: Callable[[int], None] | None) -> list[Part]:
        files = [p.file for p in unit]

        def read() -> list[Part]:
            return read_files(unit, self.trace.threads, 2 * self.trace.chunk_text, progress)

        parts = self._kept(files, "part", read)
        for part in parts:  # a parent may have been read since, and said its rank
            if part.info["rank"] is None:
                part.info["rank"] = unit[0].rank
        return parts

    def _kept(self, files: list[Path], what: str, make: Callable[[], list[Part]]) -> list[Part]:
        key, stamp = store.key_of(files, what), store.stamp_of(files)
        held = self._held.get(key)
        if held is not None and held[0] == stamp:
            return held[1]
        keeps = self._keeps(files)
        parts = store.find(key, stamp) if keeps else None
        if parts is None:
            parts = make()
            # If it grew meanwhile, the cache would be stale from the start.
            if keeps and store.stamp_of(files) == stamp and store.keep(key, stamp, parts):
                parts = store.find(key, stamp) or parts
        self._held[key] = (stamp, parts)
        return parts

    def _profiler_parts(self, parts: list[Part]) -> list[Part]:
        """The profiler's own files, for processes whose trace does not contain the same events."""
        kineto, linked = self.trace.torch_files
        if not kineto and not linked:
            return []
        try:
            found = self._kept(
                [*kineto, *linked],
                "profiler",
                lambda: [part for p in read_torch_files(kineto, linked) for part in read_torch(p)],
            )
        except MissingExtra as e:
            self.notes.append(f"profiler files are not shown: {e}")
            return []
        told = {p.info["pid"] for p in parts if p.info["devices"]}
        trained = {p.info["pid"] for p in parts if p.info["source"] == "ledger"}
        return [
            p
            for p in found
            if p.info["pid"] not in told and not (p.info["source"] == "ledger" and p.info["pid"] in trained)
        ]

    def _keeps(self, files: list[Path]) -> bool:
        """Whether what is made from some files may be cached."""
        return self._cache and bool(files)

    def facts(self) -> dict[str, Any]:
        """What is known about the processes besides their events."""
        return {}

    def close(self) -> None:
        """Release resources."""

    def steps(self) -> Part:
        """The steps, and the analysis results; this reads the whole trace once more."""
        files = [*self.trace.files, *(f for found in self.trace.torch_files for f in found)]
        return self._kept(files, "steps", lambda: [find_steps(self.trace)])[0]


def _from(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)
