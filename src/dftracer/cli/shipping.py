"""Sending traces to a store while they are written, so that each byte arrives once, whichever process dies.

A file is sent in parts, each an object named after the file and the offset of the part in it; a manifest says
which parts make up which file, and readers rely on nothing else. What the store has confirmed is noted beside
the traces. A sender that dies before it writes the note sends the same part again, under the same name:
nothing is lost, and nothing counts twice. The store is never asked for a listing.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dftracer._text import bytes_text, plural
from dftracer.format.members import member_index, row_blocks
from dftracer.format.redaction import redact, redact_lines, redact_members, redact_rows
from dftracer.format.trace_names import ROWS_SUFFIX, SUFFIXES, rows_of
from dftracer.live import LiveFile, look
from dftracer.load.find import recover
from dftracer.load.process import processes_of
from dftracer.load.remote import backing_off, store_of

NOTE = ".dftracer-shipped.json"
_PART = 16 << 20  # local bytes in an object
_WORTH_SENDING = 4 << 20  # of a file that still grows
_ROWS_WORTH_SENDING = 64 << 10
_PATIENCE_S = 60.0  # until less is sent, too
_LONGEST_MANIFEST = 1 << 28
_LOOK_S = 2.0
_LONGEST_PAUSE_S = 60.0
_LAST_TRIES_S = 30.0  # how long the end of a run keeps asking a store that does not answer


class Shipper:
    """One directory of traces and its location in a store."""

    def __init__(self, directory: Path, url: str, name: str | None = None) -> None:
        self.directory = directory
        self.url = url.rstrip("/")
        self.failures = 0  # requests that failed so far
        self.sent_bytes = 0
        self._store: Any = None
        self._root = ""
        self._sent_at: dict[str, float] = {}
        self._recognised: dict[str, int] = {}  # the inodes of files whose note is known to be theirs
        self._note = self._noted(name)

    # What is where ---------------------------------------------------------------------------------

    def _noted(self, name: str | None) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, KeyError):  # no note, or a damaged one
            note = json.loads((self.directory / NOTE).read_text(encoding="utf-8"))
            if note["url"] == self.url:
                return dict(note)
        host = "".join(c if c.isalnum() or c in ".-" else "-" for c in socket.gethostname())
        ours = name or hashlib.sha256(os.fsencode(self.directory.resolve())).hexdigest()[:12]
        return {
            "url": self.url,
            "manifest": f"dftracer-manifest-{host}-{ours}.json",
            "known": False,  # whether an earlier sender's manifest has been asked for
            "changed": False,  # whether the store's manifest is older than this
            "files": {},
        }

    def _write_note(self) -> None:
        beside = self.directory / f"{NOTE}.{os.getpid()}"
        beside.write_text(json.dumps(self._note), encoding="utf-8")
        beside.replace(self.directory / NOTE)

    @property
    def left(self) -> list[Path]:
        """The files that are not completely in the store."""
        return [p for p in self._files() if not self._complete(p)]

    @property
    def sent(self) -> int:
        """How many files are completely in the store."""
        return sum(bool(each["complete"]) for each in self._note["files"].values())

    def _files(self) -> list[Path]:
        return sorted(p for p in self.directory.rglob("*") if self._should_ship(p))

    def _should_ship(self, path: Path) -> bool:
        hidden = any(part.startswith(".") for part in path.relative_to(self.directory).parts)
        return not hidden and path.name.endswith((*SUFFIXES, ROWS_SUFFIX, ".json")) and path.is_file()

    def _name(self, path: Path) -> str:
        return path.relative_to(self.directory).as_posix()

    def _complete(self, path: Path) -> bool:
        kept = self._note["files"].get(self._name(path))
        return (
            kept is not None
            and bool(kept["complete"])
            and kept["local"] == _identity(path)
            and not self._note["changed"]
        )

    def open(self) -> None:
        """Raises if the URL is not a store or its package is missing. Sends no request yet."""
        if self._store is None:
            self._store, self._root = store_of(self.url)

    # Sending ---------------------------------------------------------------------------------------

    def sweep(self, ended: bool) -> bool:
        """Send what can be sent; `ended`: no process writes any more. Raises if the store does not answer."""
        self.open()
        self._fetch_manifest()
        seen = {os.path.realpath(f.path): f for f in look([self.directory])}
        for path, file in list(seen.items()):
            rows = rows_of(path)  # of all parts of a trace
            if rows not in seen or not _is_over(file):
                seen[rows] = file
        files = self._files()
        self._recognise([path for path in files if path.name.endswith((*SUFFIXES, ROWS_SUFFIX))])
        for each in files:
            self._send_file(each, seen.get(os.path.realpath(each)), ended)
        if self._note["changed"]:
            self._put(self._note["manifest"], self._manifest())
            self._note["changed"] = False
            self._write_note()
        return not self.left

    def _fetch_manifest(self) -> None:
        """If the note is lost, ask the store what an earlier sender stored."""
        if self._note["known"]:
            return
        with contextlib.suppress(FileNotFoundError, ValueError):
            path = f"{self._root}/{self._note['manifest']}"
            # As a range: without one, s3fs lists the prefix of an object that does not exist.
            text = self._retried(lambda: self._store.cat_file(path, start=0, end=_LONGEST_MANIFEST))
            for each in json.loads(text)["files"]:
                kept = {"parts": each["parts"], "complete": each["complete"], "local": each.get("local")}
                self._note["files"].setdefault(each["name"], kept)
        self._note["known"] = True
        self._write_note()

    def _recognise(self, files: list[Path]) -> None:
        """Find the note of each file under its present name.

        A trace that was renamed (because a new one needed its name) is not sent again; parts of an earlier
        file of this name, which is gone, stay in the store under a name of their own.
        """
        noted = self._note["files"]
        by_number = {kept["local"][0]: name for name, kept in noted.items() if kept["local"] is not None}
        for path in files:
            name, number = self._name(path), _identity(path)[0]
            mine = noted.get(name)
            if mine is not None and (self._recognised.get(name) == number or _belongs_to(path, mine)):
                self._recognised[name] = number
                continue
            before = by_number.get(number)
            if before == name or before not in noted or not _belongs_to(path, noted[before]):
                before = None
            if mine is None and before is None:
                continue
            if mine is not None:
                noted[self._free_name(name)] = noted.pop(name)
            if before is not None:
                noted[name] = noted.pop(before)
                self._recognised[name] = number
            self._note["changed"] = True
            self._write_note()

    def _free_name(self, name: str) -> str:
        """A name that no file has."""
        suffix = next(each for each in (*SUFFIXES, ROWS_SUFFIX) if name.endswith(each))
        stem = name.removesuffix(suffix)
        names = (f"{stem}-{n}{suffix}" for n in itertools.count(1))
        return next(
            each for each in names if each not in self._note["files"] and not (self.directory / each).exists()
        )

    def _object(self, name: str, wanted: str) -> str:
        """The name in the store for a part of a file: as wanted, unless it is a part of another file."""
        taken = {
            part["object"]
            for other, kept in self._note["files"].items()
            if other != name
            for part in kept["parts"]
        }
        names = itertools.chain([wanted], (f"{wanted}-{n}" for n in itertools.count(1)))
        return next(each for each in names if each not in taken)

    def _send_file(self, path: Path, live: LiveFile | None, ended: bool) -> None:
        name = self._name(path)
        now = _identity(path)
        kept = self._note["files"].get(name)
        if kept is not None and kept["complete"] and kept["local"] == now:
            return
        if kept is None:
            kept = {"parts": [], "complete": False, "local": None}
        rows = path.name.endswith(ROWS_SUFFIX)
        if not rows and not path.name.endswith(SUFFIXES):
            self._send_whole(path, name, now)
            return
        start = kept["parts"][-1]["end"] if kept["parts"] else 0
        done = ended or (not rows if live is None else _is_over(live))
        end = now[1] if done else _end_of_rows(path, start) if rows else live.final if live is not None else 0
        if start > end:  # it was truncated: what was sent is not what is here
            kept, start = {"parts": [], "complete": False, "local": None}, 0
        waited = time.monotonic() - self._sent_at.setdefault(name, time.monotonic())
        # Rows are few: without a limit, a long run would consist of one small object a minute.
        little = end - start < (min(_ROWS_WORTH_SENDING, start // 16) if rows else 0)
        if not done and (end <= start or little or (end - start < _WORTH_SENDING and waited < _PATIENCE_S)):
            return
        self._note["files"][name] = kept
        with path.open("rb") as file:
            for at, to in _parts(file, path.name, start, end):
                whole = at == 0 and to == end and done
                file.seek(at)
                data = file.read(to - at)
                self._send_part(
                    kept, self._object(name, name if whole else f"{name}.{at:012d}"), at, _clean(path, data)
                )
                kept["parts"][-1] |= {"end": to, "local_crc32": zlib.crc32(data)}
                self._recognised[name] = now[0]
                self._sent_at[name] = time.monotonic()
                kept["local"] = now
                self._write_note()
        if done:
            kept["complete"], kept["local"] = True, now
            self._note["changed"] = True
            self._write_note()

    def _send_whole(self, path: Path, name: str, now: list[int]) -> None:
        """A small file that is replaced as a whole."""
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        data = redact(text).encode("utf-8", "surrogateescape")
        kept: dict[str, Any] = {"parts": [], "complete": False, "local": now}
        self._send_part(kept, name, 0, data)
        kept["parts"][-1]["end"] = now[1]
        kept["complete"] = True
        self._note["files"][name] = kept
        self._write_note()

    def _send_part(self, kept: dict[str, Any], name: str, start: int, data: bytes) -> None:
        self._put(name, data)
        part = {"object": name, "start": start, "size": len(data), "crc32": zlib.crc32(data)}
        kept["parts"].append(part)
        self._note["changed"] = True

    def _manifest(self) -> bytes:
        files = [
            {"name": name, "complete": kept["complete"], "local": kept["local"], "parts": kept["parts"]}
            for name, kept in sorted(self._note["files"].items())
            if kept["parts"]
        ]
        return json.dumps({"version": 1, "host": socket.gethostname(), "files": files}, indent=1).encode()

    def _put(self, name: str, data: bytes) -> None:
        """Store an object; returns only if the store confirms its size."""
        path = f"{self._root}/{name}"

        def put() -> None:
            self._store.pipe_file(path, data)
            self._store.invalidate_cache()
            there = self._store.info(path)["size"]
            if there != len(data):
                raise OSError(f"{path}: {there} of {len(data)} bytes were stored")

        self._retried(put)
        self.sent_bytes += len(data)

    def _retried(self, request: Callable[[], Any]) -> Any:
        def ask() -> Any:
            try:
                return request()
            except FileNotFoundError:
                raise
            except Exception:
                self.failures += 1
                raise

        return backing_off(ask, tries=3)

    # The end ---------------------------------------------------------------------------------------

    def finish(self, keep: bool, patience_s: float = _LAST_TRIES_S) -> Exception | None:
        """Send what is left and no process still writes; delete here what the store has.

        Returns the error of the store if it did not accept everything in time.
        """
        recover(self.directory)
        until = time.monotonic() + patience_s
        while True:
            before = self.sent_bytes
            try:
                self.sweep(ended=not _still_written(self.directory))
                break
            except ImportError:
                raise
            except Exception as error:  # each store has errors of its own
                if self.sent_bytes > before:  # it answers now and then
                    until = time.monotonic() + patience_s
                if time.monotonic() > until:
                    return error
                time.sleep(random.uniform(0.2, 1.0))
        if not keep:
            self._delete()
        return None

    def summary(self, problem: Exception | None) -> str:
        """What is in the store now, and what is not."""
        left = self.left
        text = f"{plural(self.sent, 'file')} in {self.url}, {bytes_text(self.sent_bytes)} sent"
        if self.failures:
            text += f", {plural(self.failures, 'request')} failed"
        if problem is not None:
            text += f"; the store does not answer ({type(problem).__name__}: {problem})"
        if left:
            stay = "stays" if len(left) == 1 else "stay"
            text += (
                f"; {plural(len(left), 'file')} {stay} here: dftracer ship {self.directory} {self.url}"
                if problem is not None
                else f"; {plural(len(left), 'file')} {stay} here, because a process may be writing"
            )
        return text

    def _delete(self) -> None:
        for path in self._files():
            if self._complete(path):
                path.unlink()
        with contextlib.suppress(OSError):  # not empty
            for folder in sorted((p for p in self.directory.rglob("*") if p.is_dir()), reverse=True):
                folder.rmdir()


def _identity(path: Path) -> list[int]:
    s = path.stat()
    return [s.st_ino, s.st_size, s.st_mtime_ns]


def _belongs_to(path: Path, kept: dict[str, Any]) -> bool:
    """Whether a note is about this file: inode numbers are reused, so what was sent is compared."""
    number, size, changed = _identity(path)
    if kept["local"] == [number, size, changed]:
        return True
    if kept["local"] is not None and kept["local"][0] != number:
        return False
    parts = [part for part in kept["parts"] if part["end"] <= size]
    if not parts:  # nothing of it was sent, or it is shorter than the first part
        return not kept["parts"]
    with path.open("rb") as file:
        for part in (parts[0], parts[-1]):
            file.seek(part["start"])
            data = file.read(part["end"] - part["start"])
            if part.get("local_crc32", zlib.crc32(data)) != zlib.crc32(data):
                return False
    return True


def _is_over(file: LiveFile) -> bool:
    """Whether its process has written everything."""
    return file.state in ("finished", "killed") and file.pid is None


def _end_of_rows(path: Path, start: int) -> int:
    """Where the last complete block of a growing file of step rows ends; `start` is the start of a block."""
    with path.open("rb") as file:
        file.seek(start)
        return start + max(row_blocks(file.read()), default=0)


def _clean(path: Path, data: bytes) -> bytes:
    if path.name.endswith(ROWS_SUFFIX):
        return redact_rows(data)
    return redact_members(data) if path.name.endswith(".gz") else redact_lines(data)


def _parts(file: Any, name: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """From `start` to `end` in pieces of whole members or lines; step rows always fit in one."""
    if name.endswith(ROWS_SUFFIX):
        if start < end:
            yield start, end
        return
    at = start
    while at < end:
        to = at
        while to < end and to - at < _PART:
            file.seek(to)
            if name.endswith(".gz"):
                index = member_index(file.read(64))
                size = end - to if index is None else index.member_size
            else:
                size = len(file.readline())
                file.seek(to + max(0, min(_PART, end - to) - 1))
                size = max(size, min(_PART, end - to) - 1 + len(file.readline()))
            to = min(end, to + max(1, size))
        yield at, to
        at = to


def _still_written(directory: Path) -> bool:
    """Whether a process on this host, or on one that we cannot check, may be writing here."""
    host = socket.gethostname()
    with contextlib.suppress(FileNotFoundError):
        hosts = {p.file.name: p.host for p in processes_of([str(directory)])}
        for each in look([directory]):
            if each.state == "running" or (each.state == "cut" and hosts.get(each.path.name) != host):
                return True
    return False


class BackgroundShipper:
    """Ships a directory in the background, from `start`; `stop` leaves the rest to `Shipper.finish`."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ship", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_LAST_TRIES_S)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # not every system allows it
            os.nice(10)
        pause = _LOOK_S
        while not self._stopping.wait(pause):
            try:
                self._shipper.sweep(ended=False)
                pause = _LOOK_S
            except Exception:  # it is tried again, and `finish` reports the error
                pause = min(_LONGEST_PAUSE_S, pause * 2)
