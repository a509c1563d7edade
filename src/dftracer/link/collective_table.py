"""All ranks' collectives in one table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.link.arrow_columns import numbers, texts
from dftracer.link.clock import Clock, Member

__all__ = ["write_collectives"]


def write_collectives(path: Path, members: list[Member], clocks: dict[int, Clock]) -> None:
    """One row for each rank's part of each collective, on the common clock."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    offsets = [clocks.get(m.rank, Clock()) for m in members]

    def whole(values: Iterable[int | None], kind: type = np.int64) -> Any:
        listed = list(values)
        null = np.array([v is None for v in listed], dtype=bool)
        return numbers(np.array([v or 0 for v in listed], dtype=kind), null)

    table = {
        "key": texts([m.key for m in members]),
        "type": texts([m.type for m in members]),
        "group": texts([m.group for m in members]),
        "rank": whole((m.rank for m in members), np.int32),
        "window": whole((m.window for m in members), np.int32),
        "number": whole(m.number for m in members),
        "seq": whole(m.seq for m in members),
        "bytes": whole(m.bytes for m in members),
        "start_ns": whole(
            m.start + c.offset_ns if m.timed else None for m, c in zip(members, offsets, strict=True)
        ),
        "end_ns": whole(
            m.end + c.offset_ns if m.timed else None for m, c in zip(members, offsets, strict=True)
        ),
        "ranks_matched": whole((m.matched for m in members), np.int32),
        "arrival_ns": whole(m.arrival_ns for m in members),
        "skew_ns": whole(m.skew_ns for m in members),
        "clock_error_ns": whole(c.error_ns for c in offsets),
    }
    parquet.write_table(pa.table(table), path)
