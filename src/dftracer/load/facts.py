"""The state of one trace file: how much is in it, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from dftracer._text import plural
from dftracer.load._scan import Scanner, extent
from dftracer.load.process import ProcessInfo, as_integer

__all__ = ["file_facts"]


def file_facts(process: ProcessInfo) -> dict[str, Any]:
    """Read a whole file and report what was found; of a remote one only its first and last member."""
    copy = _part_of_remote(process)
    first: int | None = None
    last: int | None = None
    dangling = 0
    scanner = Scanner(process.file, 2, 16 << 20)
    for raw in scanner:
        process.take(raw["meta"])
        if raw["rows"] == 0:
            continue
        low, high, backwards = extent(raw["ts"], raw["dur"])
        multiply, divide = process.time_unit
        low, high = low * multiply // divide, high * multiply // divide
        first = low if first is None else min(first, low)
        last = high if last is None else max(last, high)
        dangling += backwards
    process.counts = scanner.counts()
    c = process.counts
    end = process.end
    problems = []
    if c["members_cut"]:
        problems.append(f"{plural(c['members_cut'], 'gzip member')} truncated or damaged")
    if c["cut_lines"]:
        problems.append("the last line is incomplete")
    if c["bad_lines"]:
        problems.append(plural(c["bad_lines"], "line is not a record", "lines are not records"))
    problems += [f"the file it was copied from had {words}" for words in process.copied_with_damage]
    if dangling:
        problems.append(plural(dangling, "event ends before it begins", "events end before they begin"))
    if end is None:
        problems.append("no end record: killed, or still running")
    elif end.get("recovered"):
        problems.append("completed after the process had died")
    dropped = as_integer(end.get("dropped"), 0) or 0 if end else 0
    if dropped:
        problems.append(f"{plural(dropped, 'event')} dropped by the tracer")
    facts = {
        "file": str(process.file),
        "rank": process.rank,
        "pid": process.pid,
        "ppid": process.ppid,
        "host": process.host,
        "command": process.command,
        "events": c["events"],
        "records": c["events"] + c["meta"],
        "bytes": c["file_bytes"],
        "text_bytes": c["text_bytes"],
        "members": c["members"],
        "span_s": None if first is None or last is None else (last - first) / 1e6,
        "closed": c["closed"],
        "dropped": dropped,
        "end": end,
        "problems": problems,
    }
    return facts if copy is None else _told_by_end(facts, copy)


def _part_of_remote(process: ProcessInfo) -> Any:
    """What this file is a copy of, if it is one."""
    if "dftracer-remote" not in process.file.parts:
        return None
    from dftracer.load.remote import origin  # noqa: PLC0415

    return origin(process.file)


def _told_by_end(facts: dict[str, Any], copy: Any) -> dict[str, Any]:
    """The figures of a remote file; those of which only the ends were read are what its `end` record says."""
    facts["file"], facts["bytes"] = copy.url, copy.size
    if not copy.whole:
        end = facts["end"] or {}
        facts["records"] = as_integer(end.get("num_events"), None)
        facts["members"] = as_integer(end.get("members"), None)
        facts["events"] = facts["text_bytes"] = None
    return facts
