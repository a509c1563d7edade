"""The linked tables next to a trace: what `dftracer link` has written for the same run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["TABLES", "linked_files"]

TABLES = ("linked", "edges", "collectives")


def linked_files(files: Iterable[Path]) -> dict[str, list[Path]]:
    """The Parquet files of each table, in the folders of the trace files or in `linked` below them."""
    folders = dict.fromkeys(f.parent for f in files)
    out: dict[str, list[Path]] = {}
    for folder in folders:
        for place in (folder, folder / "linked"):
            for table in TABLES:
                pattern = f"{table}.parquet" if table == "collectives" else f"{table}_*.parquet"
                out.setdefault(table, []).extend(sorted(filter(Path.is_file, place.glob(pattern))))
    return {table: found for table, found in out.items() if found}
