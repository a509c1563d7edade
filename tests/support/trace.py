"""A strict reader of the traces under test, written from the format alone."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

__all__ = ["Record", "Trace", "TraceFile", "read_directory", "read_file"]

BOOKKEEPING = frozenset({"start", "end"})


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"a key twice in one object: {keys}"
    return dict(pairs)


def _parse(line: str) -> dict[str, Any]:
    record = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    assert isinstance(record, dict), line[:200]
    return record


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a trace."""

    raw: dict[str, Any]
    line: str

    @property
    def id(self) -> int:
        """Number of the record in its process."""
        return int(self.raw["id"])

    @property
    def name(self) -> str:
        """Event name, or kind of metadata."""
        return str(self.raw["name"])

    @property
    def cat(self) -> str:
        """Category."""
        return str(self.raw["cat"])

    @property
    def ph(self) -> str:
        """X, M or C."""
        return str(self.raw["ph"])

    @property
    def pid(self) -> int:
        """Process."""
        return int(self.raw["pid"])

    @property
    def tid(self) -> int:
        """Thread."""
        return int(self.raw["tid"])

    @property
    def ts(self) -> int:
        """Start in us since the epoch."""
        return int(self.raw["ts"])

    @property
    def dur(self) -> int:
        """Length in us."""
        return int(self.raw["dur"])

    @property
    def end(self) -> int:
        """First microsecond after the event."""
        return self.ts + self.dur

    @property
    def args(self) -> dict[str, Any]:
        """Everything under `args`."""
        args = self.raw.get("args", {})
        assert isinstance(args, dict)
        return args

    @property
    def user_args(self) -> dict[str, Any]:
        """The args less those every event carries."""
        return {k: v for k, v in self.args.items() if k not in ("hhash", "p_idx", "level")}

    @property
    def parent_id(self) -> int:
        """The id of the enclosing event, -1 without one."""
        return int(self.args["p_idx"])

    @property
    def level(self) -> int:
        """Depth, 1 at the top."""
        return int(self.args["level"])


@dataclass(frozen=True)
class TraceFile:
    """The records of one file and whether it was closed in order."""

    path: Path
    records: list[Record]
    closed: bool
    text: str

    @cached_property
    def events(self) -> list[Record]:
        """The user's events, without `start` and `end`."""
        return [r for r in self.records if r.ph == "X" and not _is_bookkeeping(r)]

    @cached_property
    def by_id(self) -> dict[int, Record]:
        """The user's events by their number."""
        return {e.id: e for e in self.events}

    @cached_property
    def children(self) -> dict[int, list[Record]]:
        """The events directly inside each event, by start."""
        inside: dict[int, list[Record]] = {}
        for event in sorted(self.events, key=lambda e: (e.ts, e.id)):
            inside.setdefault(event.parent_id, []).append(event)
        return inside

    @property
    def end_record(self) -> Record:
        """The record in which the trace vouches for itself."""
        ends = [r for r in self.records if r.ph == "X" and r.cat == "dftracer" and r.name == "end"]
        assert len(ends) == 1, f"{len(ends)} end records in {self.path}"
        return ends[0]

    @property
    def pid(self) -> int:
        """The one process that wrote the file."""
        pids = {r.pid for r in self.records}
        assert len(pids) == 1, f"records of several processes in {self.path}: {pids}"
        return pids.pop()


@dataclass(frozen=True, slots=True)
class Trace:
    """All files of a directory."""

    files: list[TraceFile]

    def __iter__(self) -> Iterator[TraceFile]:
        return iter(self.files)

    @property
    def events(self) -> list[Record]:
        """The user's events of all files."""
        return [e for f in self.files for e in f.events]

    @property
    def records(self) -> list[Record]:
        """Every record of all files."""
        return [r for f in self.files for r in f.records]

    @property
    def names(self) -> list[str]:
        """Names of the user's events, in the order of the files."""
        return [e.name for e in self.events]

    def named(self, name: str) -> list[Record]:
        """The events of this name, by start."""
        return sorted((e for e in self.events if e.name == name), key=lambda e: (e.ts, e.id))

    def one(self, name: str) -> Record:
        """The only event of this name."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} events {name!r} among {sorted(set(self.names))}"
        return found[0]

    def metadata(self, kind: str) -> list[Record]:
        """The metadata records of one kind."""
        return [r for r in self.records if r.ph == "M" and r.name == kind]


def _is_bookkeeping(record: Record) -> bool:
    return record.cat == "dftracer" and record.name in BOOKKEEPING


def _inflate(path: Path) -> str:
    if path.suffix != ".gz":
        return path.read_bytes().decode("utf-8")
    data = gzip.decompress(path.read_bytes())
    zcat = subprocess.run(["zcat", str(path)], capture_output=True, check=False)
    assert zcat.returncode == 0, zcat.stderr.decode()
    assert zcat.stdout == data
    return data.decode("utf-8")


def read_file(path: Path) -> TraceFile:
    """Read one file; a single bad byte, line or key fails."""
    text = _inflate(path)
    assert text.endswith("\n"), f"{path} ends within a line"
    lines = text[:-1].split("\n")
    assert lines[0] == "[", f"{path} opens with {lines[0][:80]!r}"
    closed = lines[-1] == "]"
    body = lines[1:-1] if closed else lines[1:]
    records = [Record(_parse(line), line) for line in body]
    ids = [r.id for r in records]
    assert len(set(ids)) == len(ids), f"{path}: an id twice"
    return TraceFile(path, records, closed, text)


def read_directory(directory: Path) -> Trace:
    """Read every trace below a directory."""
    paths = sorted({*directory.rglob("*.pfw"), *directory.rglob("*.pfw.gz")})
    return Trace([read_file(path) for path in paths])
