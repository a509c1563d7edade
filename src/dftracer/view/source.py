"""Where a run comes from: its files, read once, kept, and read again when they change or grow."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import MissingExtra
from dftracer.analyze.analysis import units_of
from dftracer.analyze.device.profiler_rows import read_torch_files
from dftracer.format.trace_names import NoTraces
from dftracer.live import LiveFile, Recent, look, whole_copy
from dftracer.load.find import find_torch_files, recover, user_caches
from dftracer.load.process import ProcessInfo, run_identity
from dftracer.load.trace import Trace
from dftracer.report.snapshot import take_snapshot
from dftracer.view.drawn import DrawnProcess
from dftracer.view.figures import find_steps, live_strip
from dftracer.view.reading import read_files, read_torch
from dftracer.view.run import Run

Progress = Callable[[int, int], None]

LARGE = 32 << 20  # of files: reading them takes more than a second


class Source:
    """One run of the paths the user named."""

    def __init__(
        self,
        paths: list[str],
        run: str | None = None,
        *,
        cache: bool = True,
        wait: bool = False,
        large: int = LARGE,
    ) -> None:
        """What there is of a run is shown while more than `large` bytes are left to read.

        `wait`: files may appear later, so having none at the beginning is not an error.
        """
        self.paths = paths
        self.large = large
        self.title = Path(paths[0]).resolve().name or str(paths[0])
        self.notes: list[str] = []
        self._run = run
        self._cache = cache
        self._held: dict[str, tuple[str, list[DrawnProcess]]] = {}
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
            return stamp_of([*files, *(f for found in self.trace.torch_files for f in found)])
        except (OSError, NoTraces):
            return ""

    def reopen(self) -> None:
        """Look for the files again: a running job adds some."""
        self._opened = self._open()

    def load(self, progress: Progress | None = None, first: Callable[[Run], None] | None = None) -> Run:
        """The run, from the cache if that is up to date.

        `first` gets what was read of a large one when there is something to see.
        """
        units = units_of(self.trace, gaps=True)
        sizes = [sum(p.file.stat().st_size for p in unit) for unit in units]
        parts: list[DrawnProcess] = []
        done, total = 0, sum(sizes)
        for unit, size in zip(units, sizes, strict=True):
            tick = None if progress is None else _from(progress, done, total)
            parts += self._part(unit, tick)
            done += size
            if progress is not None:
                progress(done, total)
            if first is not None and total - done >= self.large and any(len(p) for p in parts):
                first(Run(self.title, [*parts], run_identity(self.trace.processes)))
                first = None
        parts += self._profiler_parts(parts)
        if self._cache:
            make_room()
        if not any(len(p) for p in parts):
            raise NoTraces(
                f"{self.paths[0]} contains no events to draw: nothing was recorded yet, or only sums of calls,"
                " which `dftracer report` shows"
            )
        return Run(self.title, parts, run_identity(self.trace.processes))

    def _part(self, unit: list[ProcessInfo], progress: Callable[[int], None] | None) -> list[DrawnProcess]:
        files = [p.file for p in unit]

        def read() -> list[DrawnProcess]:
            return read_files(unit, self.trace.threads, 2 * self.trace.chunk_text, progress)

        parts = self._kept(files, "part", read)
        for drawn in parts:  # a parent may have been read since, and said its rank
            if drawn.info["rank"] is None:
                drawn.info["rank"] = unit[0].rank
        return parts

    def _kept(
        self, files: list[Path], what: str, make: Callable[[], list[DrawnProcess]]
    ) -> list[DrawnProcess]:
        key, stamp = key_of(files, what), stamp_of(files)
        held = self._held.get(key)
        if held is not None and held[0] == stamp:
            return held[1]
        keeps = self._keeps(files)
        parts = find_kept(key, stamp) if keeps else None
        if parts is None:
            parts = make()
            # If it grew meanwhile, the cache would be stale from the start.
            if keeps and stamp_of(files) == stamp and keep(key, stamp, parts):
                parts = find_kept(key, stamp) or parts
        self._held[key] = (stamp, parts)
        return parts

    def _profiler_parts(self, parts: list[DrawnProcess]) -> list[DrawnProcess]:
        """The profiler's own files, for processes whose trace does not contain the same events."""
        kineto, linked = self.trace.torch_files
        if not kineto and not linked:
            return []
        try:
            found = self._kept(
                [*kineto, *linked],
                "profiler",
                lambda: [drawn for p in read_torch_files(kineto, linked) for drawn in read_torch(p)],
            )
        except MissingExtra as e:
            self.notes.append(f"profiler files are not shown: {e}")
            return []
        with_device = {p.info["pid"] for p in parts if p.info["devices"]}
        trained = {p.info["pid"] for p in parts if p.info["source"] == "ledger"}
        return [
            p
            for p in found
            if p.info["pid"] not in with_device
            and not (p.info["source"] == "ledger" and p.info["pid"] in trained)
        ]

    def _keeps(self, files: list[Path]) -> bool:
        """Whether what is made from some files may be cached."""
        return self._cache and bool(files)

    def facts(self) -> dict[str, Any]:
        """The figures of this moment, of a run that is followed."""
        return {}

    def close(self) -> None:
        """Release resources."""

    def steps(self) -> DrawnProcess:
        """The steps, and the analysis results; this reads the whole trace once more."""
        files = [*self.trace.files, *(f for found in self.trace.torch_files for f in found)]
        return self._kept(files, "steps", lambda: [find_steps(self.trace)])[0]


def _from(progress: Progress, before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


# --- A run that may still be going on: its files and rings as they are now, read without disturbing it


class FollowedSource(Source):
    """Reads copies of files that are still being written; finished files are read directly."""

    def __init__(self, paths: list[str], run: str | None = None, *, cache: bool = True) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="dftracer-view-")
        self._made: dict[Path, tuple[Any, ...]] = {}
        self._recent = Recent(paths)
        super().__init__(paths, run, cache=cache, wait=all(Path(p).is_dir() for p in paths))

    def _open(self) -> Trace:
        files = [self._readable(file) for file in look(self.paths)]
        if not files:
            raise NoTraces(f"{self.paths[0]} contains no trace yet")
        trace = Trace(files, cache=False)
        trace.torch_files = find_torch_files(self.paths)
        return self._chosen(trace)

    def _readable(self, file: LiveFile) -> Path:
        """The file itself if there is nothing to add to it, otherwise a copy with everything known."""
        if file.final == file.size and not file.text and file.path.exists():
            return file.path
        folder = Path(self._directory.name) / hashlib.sha256(str(file.path.parent).encode()).hexdigest()[:12]
        folder.mkdir(exist_ok=True)
        copy = folder / file.path.name
        state = (file.final, file.size, hashlib.sha256(file.text).digest())
        if self._made.get(copy) != state:
            whole_copy(file, copy)
            self._made[copy] = state
        return copy

    def _keeps(self, files: list[Path]) -> bool:
        return super()._keeps(files) and not any(Path(self._directory.name) in f.parents for f in files)

    def facts(self) -> dict[str, Any]:
        try:
            snapshot = take_snapshot(self._recent)
        except NoTraces:
            return {}
        if not self._recent.files:  # only step rows are left of what was looked at
            return {}
        return live_strip(snapshot, max(self._recent.last_us(file) for file in self._recent.files))

    def close(self) -> None:
        self._recent.close()
        self._directory.cleanup()


# --- Parts cached between sessions, in the user's cache directory and never next to the trace
#
# A cached part is used only while the files it was made from have the same size, time and identity.


VERSION = 5
_MAGIC = b"dftracer view 1\n"
_ALIGN = 64
_MAX_BYTES = 16 << 30  # of all cached parts; the least recently used are deleted first
_SUFFIX = ".dfv"


def cache_folder() -> Path:
    """Where parts are kept."""
    base = user_caches()
    return base / "dftracer" / "view"


def stamp_of(files: Iterable[Path]) -> str:
    """Changes whenever one of the files does."""
    facts = []
    for file in files:
        s = file.stat()
        facts.append(f"{s.st_size}:{s.st_mtime_ns}:{s.st_ino}")
    return f"{VERSION};" + ";".join(facts)


def key_of(files: Iterable[Path], what: str = "part") -> str:
    """The name under which something made from files is cached."""
    digest = hashlib.sha256(what.encode())
    for file in files:
        digest.update(b"\0" + os.fsencode(file.resolve()))
    return digest.hexdigest()[:32]


def keep(key: str, stamp: str, parts: list[DrawnProcess]) -> bool:
    """Cache parts; False if nothing can be written."""
    folder = cache_folder()
    head: list[dict[str, Any]] = []
    arrays: list[np.ndarray] = []
    at = 0
    for drawn in parts:
        listed: dict[str, Any] = {}
        for name, column in drawn.columns.items():
            data = np.ascontiguousarray(column)
            listed[name] = [at, data.dtype.str, list(data.shape)]
            arrays.append(data)
            at += -(-data.nbytes // _ALIGN) * _ALIGN
        head.append({"info": drawn.info, "pairs": drawn.pairs, "paths": drawn.paths, "columns": listed})
    text = json.dumps({"stamp": stamp, "parts": head}).encode("utf-8", "replace")
    temporary = folder / f".{key}.{os.urandom(6).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary.open("wb") as out:
            begin = len(_MAGIC) + 16 + len(text)
            begin = -(-begin // _ALIGN) * _ALIGN
            out.write(_MAGIC + len(text).to_bytes(8, "little") + begin.to_bytes(8, "little") + text)
            out.write(bytes(begin - out.tell()))
            for data in arrays:
                out.write(data.reshape(-1).view(np.uint8).data)
                out.write(bytes(-data.nbytes % _ALIGN))
        temporary.replace(folder / (key + _SUFFIX))
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def find_kept(key: str, stamp: str) -> list[DrawnProcess] | None:
    """The parts kept under a name, mapped and not read; None where they are missing or stale."""
    cached = cache_folder() / (key + _SUFFIX)
    try:
        with cached.open("rb") as file:
            start = file.read(len(_MAGIC) + 16)
            if start[: len(_MAGIC)] != _MAGIC:
                return None
            size, begin = (int.from_bytes(start[-16:][i : i + 8], "little") for i in (0, 8))
            head = json.loads(file.read(size))
        if head["stamp"] != stamp:
            return None
        os.utime(cached)
        whole = np.memmap(cached, np.uint8, "r")
        return [_mapped(whole, begin, each) for each in head["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(whole: np.ndarray, begin: int, head: dict[str, Any]) -> DrawnProcess:
    drawn = DrawnProcess(head["info"], [(c, n, k) for c, n, k in head["pairs"]], head["paths"])
    for name, (at, kind, shape) in head["columns"].items():
        dtype = np.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        data = whole[begin + at : begin + at + size]
        if data.size != size:
            raise ValueError("cut short")
        drawn.columns[name] = np.asarray(data).view(dtype).reshape(shape)
    return drawn


def make_room() -> None:
    """Remove what has been unused longest, if all that is kept is too much."""
    folder, kept = cache_folder(), []
    if not folder.is_dir():
        return
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.name.endswith(_SUFFIX):
                kept.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= _MAX_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
