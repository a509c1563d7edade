"""The files of a report, those apart that nothing was done to but to look them up."""

from __future__ import annotations

import polars as pl

__all__ = ["told_files"]

_FEW = 2  # so many have a row each


# Shared memory between loader workers, the terminal, traces: nobody asks about them.
_TRIVIAL = (
    r"^/dev/shm/torch_|^/dev/(pts/|tty|null)|^(pipe|socket|anon_inode):"
    r"|\.pfw(\.gz)?(\.|$)|^<?std(in|out|err)>?$"
)


def told_files(table: pl.DataFrame) -> pl.DataFrame:
    """The table with one row for all paths that were neither opened nor read nor written.

    Importing packages looks up thousands of them (`stat`, `lstat`), and no other file would be seen. What is
    not the program's data is left out.
    """
    table = table.filter(~pl.col("path").str.contains(_TRIVIAL))
    used = (pl.col("opens") > 0) | (pl.col("reads") > 0) | (pl.col("writes") > 0)
    rest = table.filter(~used)
    if rest.height <= _FEW:
        return table
    sums = {c: pl.col(c).sum() for c, kind in table.schema.items() if kind.is_numeric()}
    sums |= {c: pl.col(c).max() for c in ("processes", "ranks")}
    sums |= {c: pl.lit(None, table.schema[c]) for c in ("read_mb_s", "write_mb_s")}
    sums["path"] = pl.lit(f"({rest.height} paths only looked up)")
    one = rest.select(**sums).select(table.columns)
    told: pl.DataFrame = pl.concat([table.filter(used), one]).sort("time_s", "path", descending=[True, False])
    return told
