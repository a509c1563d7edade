"""Runs one reader in a process of its own and prints the CPU seconds and memory it took."""

from __future__ import annotations

import glob
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

FIELDS = {"id": "BIGINT", "name": "VARCHAR", "cat": "VARCHAR", "pid": "BIGINT", "tid": "BIGINT", "ts":
"BIGINT",
          "dur": "BIGINT", "ph": "VARCHAR", "args": "JSON"}  # fmt: skip


def ours_arrow(path: str) -> Callable[[], int]:
    import pyarrow  # noqa: F401 - imports are not part of the measurement, for anyone

    from dftracer.load import Trace

    return lambda: Trace(path, cache=False).arrow().num_rows


def ours_stream(path: str) -> Callable[[], int]:
    import pyarrow  # noqa: F401

    from dftracer.load import Trace

    return lambda: sum(b.num_rows for b in Trace(path, cache=False).batches())


def ours_sidecar(path: str) -> Callable[[], int]:
    import polars as pl

    from dftracer.load import Trace

    Trace(path).lazy()
    pl.select(1)

    def look() -> int:
        counted = Trace(path).lazy().group_by("cat", "name").agg(pl.len(), pl.col("dur").sum()).collect()
        return int(counted["len"].sum())

    return look


def duckdb_load(path: str) -> Callable[[], int]:
    import duckdb

    columns = "{" + ", ".join(f"{k}: '{v}'" for k, v in FIELDS.items()) + "}"
    source = f"read_json('{path}/*.gz', format='newline_delimited', columns={columns}, ignore_errors=true)"

    def load() -> int:
        con = duckdb.connect()
        con.execute(f"create table t as select * from {source} where ph = 'X'")
        return int(con.execute("select count(*) from t").fetchone()[0])  # type: ignore[index]

    return load


def polars_load(path: str) -> Callable[[], int]:
    import gzip

    import polars as pl

    args = pl.Struct(
        dict.fromkeys(("p_idx", "epoch", "step", "ret", "image_idx", "level"), pl.Int64)
        | {"fhash": pl.String, "hhash": pl.String, "count": pl.String}
    )
    numbers = dict.fromkeys(("id", "pid", "tid", "ts", "dur"), pl.Int64)
    schema = numbers | dict.fromkeys(("name", "cat", "ph"), pl.String)

    def load() -> int:
        n = 0
        for file in sorted(glob.glob(f"{path}/*.gz")):
            text = gzip.decompress(open(file, "rb").read())
            frame = pl.read_ndjson(
                text.removeprefix(b"[\n").removesuffix(b"]\n"),
                schema={**schema, "args": args},
                ignore_errors=True,
            )
            n += frame.filter(pl.col("ph") == "X").height
        return n

    return load


def pyarrow_load(path: str) -> Callable[[], int]:
    import gzip
    import io

    import pyarrow.json

    def load() -> int:
        n = 0
        for file in sorted(glob.glob(f"{path}/*.gz")):
            text = gzip.decompress(open(file, "rb").read()).removeprefix(b"[\n").removesuffix(b"]\n")
            n += pyarrow.json.read_json(
                io.BytesIO(text), read_options=pyarrow.json.ReadOptions(block_size=16 << 20)
            ).num_rows
        return n

    return load


READERS: dict[str, Callable[[str], Callable[[], int]]] = {
    "ours: to Arrow": ours_arrow,
    "ours: streamed": ours_stream,
    "ours: second look": ours_sidecar,
    "DuckDB: to a table": duckdb_load,
    "Polars: to a frame": polars_load,
    "pyarrow.json": pyarrow_load,
}


def main() -> None:
    name, path = sys.argv[1:3]
    look = READERS[name](path)
    time.sleep(0.2)  # threads that libraries start at import spin for a moment
    before: Any = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.perf_counter()
    events = look()
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"events": events, "cpu_s": cpu, "wall_s": wall, "rss_mb": after.ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
