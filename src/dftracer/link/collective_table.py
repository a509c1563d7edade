"""All ranks' collectives in one table."""

from __future__ import annotations

from pathlib import Path

from dftracer.link.clock import Clock, Member
from dftracer.load._need import need

__all__ = ["write_collectives"]


def write_collectives(path: Path, members: list[Member], clocks: dict[int, Clock]) -> None:
    """One row for each rank's part of each collective, on the common clock."""
    pa, parquet = need("pyarrow"), need("pyarrow.parquet")
    kinds = pa.schema(
        [
            ("key", pa.string()),
            ("type", pa.string()),
            ("group", pa.string()),
            ("rank", pa.int32()),
            ("window", pa.int32()),
            ("number", pa.int64()),
            ("seq", pa.int64()),
            ("bytes", pa.int64()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("ranks_matched", pa.int32()),
            ("arrival_ns", pa.int64()),
            ("skew_ns", pa.int64()),
            ("clock_error_ns", pa.int64()),
        ]
    )
    rows = []
    for m in members:
        clock = clocks.get(m.rank, Clock())
        rows.append(
            {
                "key": m.key,
                "type": m.type,
                "group": m.group,
                "rank": m.rank,
                "window": m.window,
                "number": m.number,
                "seq": m.seq,
                "bytes": m.bytes,
                "start_ns": m.start + clock.offset_ns if m.timed else None,
                "end_ns": m.end + clock.offset_ns if m.timed else None,
                "ranks_matched": m.matched,
                "arrival_ns": m.arrival_ns,
                "skew_ns": m.skew_ns,
                "clock_error_ns": clock.error_ns,
            }
        )
    parquet.write_table(pa.Table.from_pylist(rows, kinds), path)
