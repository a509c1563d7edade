"""Reads traces of every dialect into one form, skips what cannot be read, and reports what it skipped.

A record is a dict with the keys of `records.FIELDS`: `ph` is "X", "M", "C" or "A", numbers are numbers,
hashes are strings of hex digits, `args` is always present; `id` is None if the dialect has none (2.x,
metadata). Keys that are not in the schema are kept.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from dftracer._text import plural
from dftracer.format import members
from dftracer.format import records as fmt
from dftracer.format.records import as_hash
from dftracer.format.trace_names import find_traces

# --- Lines from the text of a trace, and the record in a line


# No recorder writes a longer line; without a limit, 3 MB of gzip could require 3 GB of memory.
LINE_LIMIT = 16 << 20


def split_lines(text: Iterable[bytes], too_long: Callable[[], None]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether the text ends or breaks off with it before a newline.

    An empty chunk marks a break in the text: the line before it is not continued. Lines beyond `LINE_LIMIT`
    are skipped; `too_long` is called for each.
    """
    held: list[bytes] = []
    size = 0
    for chunk in text:
        if not chunk:
            yield from _flushed(held, size, too_long)
            size = 0
            continue
        *whole, tail = chunk.split(b"\n")
        for part in whole:
            if size > LINE_LIMIT or size + len(part) > LINE_LIMIT:
                too_long()
            elif held:
                held.append(part)
                yield b"".join(held), False
            else:
                yield part, False
            held.clear()
            size = 0
        size += len(tail)
        if size > LINE_LIMIT:
            held.clear()
        elif tail:
            held.append(tail)
    yield from _flushed(held, size, too_long)


def _flushed(held: list[bytes], size: int, too_long: Callable[[], None]) -> Iterator[tuple[bytes, bool]]:
    if size > LINE_LIMIT:
        too_long()
    elif held:
        yield b"".join(held), True
    held.clear()


def stripped(line: bytes) -> bytes:
    """A line without the brackets and commas of the list around the records; empty if nothing is left."""
    text = line.strip(b" \t\r\n,\0")
    if text.startswith(b"["):
        text = text[1:].lstrip()
    return b"" if text == b"]" else text


def parse_line(text: bytes) -> Any:
    """The value of a stripped line; ValueError if it is not JSON."""
    decoded = text.decode("utf-8", "replace")
    try:
        try:
            return json.loads(decoded)
        except ValueError:
            # The closing bracket of the file may be on the same line as the last record.
            if decoded.endswith("]"):
                return json.loads(decoded[:-1].rstrip(" \t,"))
            raise
    except RecursionError:
        raise ValueError("nested too deeply") from None


# --- Files and directories of traces, as records


Record = dict[str, Any]

_CHUNK = 1 << 18
_REQUIRED = {
    "X": frozenset({"pid", "ts", "dur"}),
    "C": frozenset({"pid", "ts"}),
    "A": frozenset({"pid", "ts"}),
    "M": frozenset({"pid"}),
}
_ALWAYS_INTEGER = ("count", "p_idx", "level")


class Problems:
    """What could not be read, and what the traces say about their own end."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()  # lines, by reason
        self.cut_last_line: list[str] = []  # files
        self.truncated_gzip: list[str] = []
        self.corrupt_gzip: list[str] = []
        self.unreadable: dict[str, str] = {}  # file -> reason
        self.missing_end: list[int] = []  # pids without an `end` record: still running, or killed
        self.recovered: list[int] = []  # pids whose trace was completed by a reader after they had died

    def __bool__(self) -> bool:
        """Is anything lost? A recovered process is not."""
        return bool(
            self.skipped
            or self.cut_last_line
            or self.truncated_gzip
            or self.corrupt_gzip
            or self.unreadable
            or self.missing_end
        )

    def add(self, other: Problems) -> None:
        """Add the problems another reader found."""
        self.skipped += other.skipped
        self.cut_last_line += other.cut_last_line
        self.truncated_gzip += other.truncated_gzip
        self.corrupt_gzip += other.corrupt_gzip
        self.unreadable.update(other.unreadable)
        self.missing_end += other.missing_end
        self.recovered += other.recovered

    def lines(self) -> list[str]:
        """One sentence per kind of problem, for people."""
        sentences = [
            f"{plural(count, 'line')} skipped: {reason}" for reason, count in sorted(self.skipped.items())
        ]
        for what, files in (
            ("the last line is incomplete", self.cut_last_line),
            ("the last gzip member is truncated", self.truncated_gzip),
            ("a gzip member is damaged", self.corrupt_gzip),
        ):
            sentences += [f"{path}: {what}" for path in files]
        sentences += [f"{path}: {reason}" for path, reason in self.unreadable.items()]
        if self.missing_end:
            sentences.append(f"no end record for process {', '.join(map(str, self.missing_end))}")
        if self.recovered:
            sentences.append(f"recovered after the end of process {', '.join(map(str, self.recovered))}")
        return sentences

    def __repr__(self) -> str:
        return f"Problems({'; '.join(self.lines())})"


class TraceText:
    """All records of some files, in the order of the files."""

    def __init__(self, paths: list[str], records: list[Record], problems: Problems) -> None:
        self.paths = paths
        self.records = records
        self.problems = problems
        self._names: dict[str, str] | None = None

    @property
    def events(self) -> list[Record]:
        """The complete events, including the tracer's own (`start`, `end`)."""
        return [record for record in self.records if record["ph"] == "X"]

    @property
    def metadata(self) -> list[Record]:
        return [record for record in self.records if record["ph"] == "M"]

    @property
    def counters(self) -> list[Record]:
        return [record for record in self.records if record["ph"] == "C"]

    def resolve(self, hash_: str) -> str | None:
        """The host name, path or string that a hash stands for, None if no record says."""
        if self._names is None:
            self._names = {
                record["args"]["value"]: str(record["args"].get("name", ""))
                for record in self.records
                if record["ph"] == "M" and record["name"] in fmt.HASH_RECORDS and "value" in record["args"]
            }
        return self._names.get(hash_)


def read_trace(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> TraceText:
    """Read files and directories whole; a file that cannot be opened is a problem, not an exception."""
    problems = Problems()
    records: list[Record] = []
    files = find_traces(paths)
    for path in files:
        try:
            records.extend(read_records(path, problems))
        except OSError as error:
            problems.unreadable[path] = error.strerror or str(error)
    check_ends(records, problems)
    return TraceText(files, records, problems)


def read_records(
    path: str | os.PathLike[str], problems: Problems | None = None, *, skip: int = 0
) -> Iterator[Record]:
    """The records of one file, one after the other, without the first `skip` bytes of (inflated) text.

    Positions in the text stay valid; those in a compressed file do not, because a writer may merge members.
    """
    name = os.fspath(path)
    problems = Problems() if problems is None else problems
    normal = _Normalizer()
    for line, is_last in text_lines(name, problems, skip=skip):
        text = stripped(line)
        if not text:
            continue
        try:
            record = parse_line(text)
        except ValueError:
            if is_last:
                problems.cut_last_line.append(name)
            else:
                problems.skipped["not JSON"] += 1
            continue
        reason = normal(record)
        if reason:
            problems.skipped[reason] += 1
        else:
            yield record


def text_lines(
    path: str | os.PathLike[str], problems: Problems, *, skip: int = 0
) -> Iterator[tuple[bytes, bool]]:
    """The lines of one file as they are, and whether the text breaks off with one."""
    name = os.fspath(path)

    def too_long() -> None:
        problems.skipped[f"longer than {LINE_LIMIT >> 20} MiB"] += 1

    with open(name, "rb") as file:
        yield from split_lines(_text(file, name, problems, skip), too_long)


def text_size(path: str | os.PathLike[str]) -> int:
    """Bytes of (inflated) text in a file; 0 if it does not exist."""
    try:
        with open(path, "rb") as file:
            if not members.is_packed(file, os.fspath(path)):
                return file.seek(0, os.SEEK_END)
            indexed = members.skip_text(file, 1 << 63)
            return indexed + sum(map(len, members.inflate(file, lambda _: None)))
    except OSError:
        return 0


def _text(file: BinaryIO, name: str, problems: Problems, skip: int) -> Iterator[bytes]:
    if not members.is_packed(file, name):
        file.seek(skip)
        while chunk := file.read(_CHUNK):
            yield chunk
        return

    def note(what: str) -> None:
        if what == "truncated":
            problems.truncated_gzip.append(name)
        elif name not in problems.corrupt_gzip:
            problems.corrupt_gzip.append(name)

    file.seek(0)
    if skip:
        skip -= members.skip_text(file, skip)
    for chunk in members.inflate(file, note):
        if skip >= len(chunk) > 0:
            skip -= len(chunk)
        else:
            yield chunk[skip:] if chunk else chunk
            skip = 0 if chunk else skip


class _Normalizer:
    """Converts the records of one file to the common form, in place."""

    def __init__(self) -> None:
        self._time = fmt.TIME_UNITS["US"]

    def __call__(self, record: Any) -> str | None:
        """The reason why this is not a record, None if it is one."""
        if not isinstance(record, dict):
            return "not an object"
        phase = record.get("ph")
        known = fmt.PHASES.get(phase) if isinstance(phase, (str, int)) else None
        if known is None:
            return "unknown phase"
        if not isinstance(record.get("name"), str):
            return "no name"
        record["ph"] = known
        if not isinstance(record.get("cat"), str):
            record["cat"] = ""
        args = record.get("args")
        if not isinstance(args, dict):
            args = record["args"] = {}
        if not self._numbers(record, args, known):
            return "a field is not a number"
        self._hashes(record, args)
        if self._time != (1, 1):
            multiply, divide = self._time
            for field in ("ts", "dur"):
                if field in record:
                    record[field] = record[field] * multiply // divide
        if any(abs(record.get(field) or 0) > fmt.TIME_LIMIT for field in ("ts", "dur")):
            return "an impossible time"
        if known == "M" and record["name"] == "CM" and args.get("name") == "time_metric":
            self._time = fmt.TIME_UNITS.get(str(args.get("value")).upper(), self._time)
        return None

    @staticmethod
    def _numbers(record: Record, args: dict[str, Any], phase: str) -> bool:
        record.setdefault("id", None)
        as_text = False
        for field in fmt.INTEGER_FIELDS:
            value = record.get(field)
            if type(value) is int:
                continue
            if value is None:
                if field in _REQUIRED[phase]:
                    return False
                continue
            number = _as_int(value)
            if number is None:
                return False
            as_text = as_text or isinstance(value, str)
            record[field] = number
        if record.get("tid") is None:
            record["tid"] = record["pid"]
        # A user's own "7" stays a string: only a dialect that writes all numbers as strings is converted.
        for name in fmt.INTEGER_ARGS if as_text else _ALWAYS_INTEGER:
            value = args.get(name)
            if type(value) is str:
                number = _as_int(value)
                args[name] = value if number is None else number
        return True

    @staticmethod
    def _hashes(record: Record, args: dict[str, Any]) -> None:
        for name, value in args.items():
            if name in fmt.HASH_ARGS and (type(value) is not str or len(value) != 16):
                args[name] = as_hash(value)
        if record["ph"] == "M" and record["name"] in fmt.HASH_RECORDS and "value" in args:
            args["value"] = as_hash(args["value"])


def _as_int(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    if isinstance(value, float) and abs(value) < 1 << 63:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def check_ends(records: Iterable[Record], problems: Problems) -> None:
    """Note the processes that never wrote an `end` record, and those for which a reader wrote it."""
    ended: dict[tuple[Any, int], bool] = {}
    for record in records:
        key = (record["args"].get("hhash"), record["pid"])
        if record["ph"] == "X" and record["cat"] == "dftracer" and record["name"] == "end":
            # A part of a rotated trace is closed, too, but its process continued.
            ended[key] = ended.get(key, False) or not record["args"].get("continues")
            if record["args"].get("recovered"):
                problems.recovered.append(record["pid"])
        elif record["ph"] == "X":
            ended.setdefault(key, False)
    problems.missing_end = [pid for (_, pid), has_end in ended.items() if not has_end]
