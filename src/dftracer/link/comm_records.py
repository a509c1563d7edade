"""Communication records from `collect`: they have group and count where torch's own traces do not."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dftracer.format.reader import parse_line, split_lines
from dftracer.link._columns import integer
from dftracer.link._json_stream import Repairs, read_blocks
from dftracer.link.collectives import RECV, SEND, Collective

__all__ = ["apply_records", "read_records"]

_LATEST_US = 1 << 53
_SAME_NS = 5_000_000  # between a record and the call it describes


def read_records(paths: Sequence[Path], warnings: list[str]) -> list[dict[str, Any]]:
    """All records of the files; a truncated end is reported."""
    out: list[dict[str, Any]] = []
    for path in paths:
        repairs = Repairs()
        bad = 0

        def too_long() -> None:
            nonlocal bad
            bad += 1

        try:
            for line, _ in split_lines(read_blocks(path, repairs), too_long):
                if not line.strip():
                    continue
                try:
                    record = parse_line(line.strip())
                except ValueError:
                    bad += 1
                    continue
                if isinstance(record, dict) and _is_time(record.get("start_us")):
                    out.append(record)
        except OSError as e:
            warnings.append(f"{path.name}: {e.strerror or e}")
        if bad:
            warnings.append(f"{path.name}: {bad} {'line is' if bad == 1 else 'lines are'} not a record")
        warnings += [f"{path.name}: {text}" for text in repairs.sentences()]
    return out


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < _LATEST_US


def apply_records(calls: list[Collective], records: list[dict[str, Any]]) -> None:
    """Give each call the facts from the nearest record of its type; no record is used twice."""
    by_type: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records, key=lambda r: float(r["start_us"])):
        by_type.setdefault(str(record.get("type")), []).append(record)
    starts = {k: [int(float(r["start_us"]) * 1000) for r in v] for k, v in by_type.items()}
    used: set[int] = set()
    for call in calls:
        times = starts.get(call.type)
        if not times or not call.timed:
            continue
        at = bisect.bisect(times, call.start)
        near = [i for i in (at - 2, at - 1, at, at + 1) if 0 <= i < len(times)]
        near = [
            i for i in near if id(by_type[call.type][i]) not in used and abs(times[i] - call.start) < _SAME_NS
        ]
        if not near:
            continue
        record = by_type[call.type][min(near, key=lambda i: abs(times[i] - call.start))]
        used.add(id(record))
        _apply(call, record)


def _apply(call: Collective, record: dict[str, Any]) -> None:
    call.group = str(record.get("group") or call.group)
    ranks = record.get("ranks")
    if isinstance(ranks, list) and ranks:
        call.ranks = [integer(r) for r in ranks]
        call.size = len(call.ranks)
    if call.seq is None:
        call.seq = _whole(record.get("seq"))
    if call.bytes is None:
        call.bytes = _whole(record.get("bytes"))
    call.dtype = call.dtype or str(record.get("dtype") or "")
    peer = record.get("dst" if call.type == SEND else "src")
    if call.type in (SEND, RECV) and isinstance(peer, int):
        call.peer = peer
        call.tag = record["tag"] if isinstance(record.get("tag"), int) else 0
    if isinstance(record.get("async"), bool):
        call.asynchronous = record["async"]


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None
