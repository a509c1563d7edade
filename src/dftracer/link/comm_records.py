"""Communication records of the collection: they know group and count where torch's own traces do not."""

from __future__ import annotations

import bisect
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dftracer.link.collectives import Collective

__all__ = ["apply_records", "read_records"]

_SAME_NS = 5_000_000  # between a record and the call it describes


def read_records(paths: Sequence[Path], warnings: list[str]) -> list[dict[str, Any]]:
    """All records of the files; a cut end is told."""
    out: list[dict[str, Any]] = []
    for path in paths:
        opener: Any = gzip.open if path.suffix == ".gz" else open
        try:
            with opener(path, "rt", encoding="utf-8", errors="replace") as f:
                for line in f:
                    try:
                        record = json.loads(line)
                    except ValueError:
                        warnings.append(f"{path.name}: a line is no record")
                        continue
                    if isinstance(record, dict) and isinstance(record.get("start_us"), int | float):
                        out.append(record)
        except (OSError, EOFError) as e:
            warnings.append(f"{path.name}: {e}")
    return out


def apply_records(calls: list[Collective], records: list[dict[str, Any]]) -> None:
    """Give each call what the nearest record of its type says; no record is used twice."""
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
        call.ranks = [int(r) for r in ranks]
        call.size = len(call.ranks)
    if isinstance(record.get("seq"), int) and call.seq is None:
        call.seq = record["seq"]
    if call.bytes is None and isinstance(record.get("bytes"), int):
        call.bytes = record["bytes"]
    call.dtype = call.dtype or str(record.get("dtype") or "")
    if isinstance(record.get("async"), bool):
        call.asynchronous = record["async"]
