"""A set of trace files as one table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dftracer._packages import need
from dftracer._text import bytes_text, plural
from dftracer.format.trace_names import NoTraces
from dftracer.load._scan import Scanner
from dftracer.load.arrow import BatchMaker, find_sidecar, schema, write_sidecar
from dftracer.load.chunk import Chunk
from dftracer.load.find import find_files, find_torch_files, here, linked_files
from dftracer.load.process import ProcessInfo, Run, aggregation_interval_us, assign_ranks, find_runs, peek

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Range = tuple[int, int]
_SHOWN = 20  # files in a notebook
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Filter:
    """Which events to read. Ranges include both ends; `time` is an event's start, in us since the epoch."""

    time: Range | None = None
    ranks: tuple[int, ...] | None = None
    pids: tuple[int, ...] | None = None
    cats: tuple[str, ...] | None = None
    names: tuple[str, ...] | None = None
    steps: Range | None = None
    epochs: Range | None = None

    def wants(self, process: ProcessInfo) -> bool:
        """Whether any event of the process's file can pass."""
        # The scanner treats an empty list as no condition.
        if () in (self.ranks, self.pids, self.cats, self.names):
            return False
        return not process.alone or self.takes(process)

    def takes(self, process: ProcessInfo) -> bool:
        """Whether any event of the process itself can pass."""
        if self.ranks is not None and process.rank not in self.ranks:
            return False
        return self.pids is None or process.pid in self.pids

    def narrowed(self, other: Filter) -> Filter:
        """What passes both."""
        both = {f.name: _both(getattr(self, f.name), getattr(other, f.name), f.name) for f in fields(self)}
        return Filter(**both)

    @property
    def empty(self) -> bool:
        return self == Filter()


_RANGES = frozenset(("time", "steps", "epochs"))


def _both(mine: Any, more: Any, field: str) -> Any:
    """What passes both conditions; None lets everything pass."""
    if mine is None or more is None:
        return more if mine is None else mine
    if field in _RANGES:
        return max(mine[0], more[0]), min(mine[1], more[1])
    return tuple(value for value in mine if value in more)


def _in_unit(time: tuple[int, int] | None, unit: tuple[int, int]) -> tuple[int, int] | None:
    """A range of microseconds in the unit that a file is written in."""
    multiply, divide = unit
    return time if time is None else (time[0] * divide // multiply, -(-time[1] * divide // multiply))


def scan_file(
    process: ProcessInfo,
    where: Filter,
    threads: int,
    chunk_text: int,
    span: tuple[int, int] | None = None,
    without: tuple[str, ...] = (),
) -> Iterator[tuple[Scanner, Chunk]]:
    """The chunks of a file, or of some of its members; `process` learns from its metadata along the way.

    `without`: columns that nobody will ask for, by their native names.
    """
    scanner = Scanner(
        process.file,
        threads,
        chunk_text,
        ts=_in_unit(where.time, process.time_unit),
        step=where.steps,
        epoch=where.epochs,
        pids=where.pids,
        names=where.names,
        cats=where.cats,
        span=span,
        without=without,
    )
    for raw in scanner:
        process.take(raw["meta"])
        chunk = Chunk(raw)
        chunk.interval_us = partial(aggregation_interval_us, process)
        if process.time_unit != (1, 1):
            chunk.scale_time(*process.time_unit)
        if where.ranks is not None and not process.alone:
            chunk = _of_ranks(chunk, process, where.ranks)
        yield scanner, chunk
    process.counts = scanner.counts()


def _of_ranks(chunk: Chunk, process: ProcessInfo, ranks: tuple[int, ...]) -> Chunk:
    """The rows of some ranks, in a file with several processes."""
    wanted = [pid for pid, rank in process.ranks().items() if rank in ranks]
    mine = np.isin(chunk.ints("pid"), wanted)
    return chunk if mine.all() else chunk.select(np.flatnonzero(mine))


class Trace:
    """All events of the given files or directories.

    Nothing is read until asked for, and nothing is written: `recover(paths)` first completes the traces of
    killed processes. `batches()` streams under `memory_limit`; `lazy()` and `sql()` go through the columnar
    sidecar, so their memory does not grow with the trace either; `arrow()`, `polars()` and `pandas()` hold
    everything that passes the filter.
    """

    def __init__(
        self,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        time: Range | None = None,
        ranks: Sequence[int] | None = None,
        pids: Sequence[int] | None = None,
        cats: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        steps: Range | None = None,
        epochs: Range | None = None,
        threads: int | None = None,
        memory_limit: int = 1 << 30,
        cache: bool = True,
        progress: Progress | None = None,
        torch: bool = False,
    ) -> None:
        paths = here(paths)
        given = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
        # Kineto files and linked tables, where wanted.
        self.torch_files: tuple[list[Path], list[Path]] = find_torch_files(given) if torch else ([], [])
        named = {f for found in self.torch_files for f in found}
        given = [p for p in given if Path(p) not in named]
        self.files: list[Path] = _files(given, bool(named))
        self.filter = Filter(time, _tuple(ranks), _tuple(pids), _tuple(cats), _tuple(names), steps, epochs)
        self.threads = threads or available_cores()
        self.memory_limit = memory_limit
        self.cache = cache
        self._progress = progress
        self._processes: list[ProcessInfo] | None = None

    def __repr__(self) -> str:
        files = plural(len(self.files), "file")
        where = os.path.commonpath([f.absolute().parent for f in self.files]) if self.files else ""
        size = bytes_text(sum(f.stat().st_size for f in self.files if f.exists()))
        some = "" if self.filter.empty else ", filtered"
        return f"<Trace of {files}, {size}, in {where}{some}>"

    def _repr_html_(self) -> str:
        names = ("rank", "pid", "host", "size", "file")
        lines = []
        for p in self.processes[:_SHOWN]:
            size = bytes_text(p.file.stat().st_size) if p.file.exists() else "gone"
            cells = ("-" if p.rank is None else p.rank, p.pid, p.host, size, p.file)
            lines.append("".join(f"<td>{escape(str(c))}</td>" for c in cells))
        more = len(self.files) - len(lines)
        head = "".join(f"<th>{name}</th>" for name in names)
        rows = "".join(f"<tr>{line}</tr>" for line in (head, *lines))
        left = f"<p>and {plural(more, 'file')} more</p>" if more > 0 else ""
        return f"<p>{escape(repr(self)[1:-1])}</p><table>{rows}</table>{left}"

    @property
    def chunk_text(self) -> int:
        """Bytes of text per chunk: rows are about as large as their text; text, rows and copies coexist."""
        return max(1 << 20, min(8 << 20, self.memory_limit // 8))

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes that wrote the files, from the head of each file."""
        if self._processes is None:
            self._processes = [peek(f) for f in self.files]
            assign_ranks(self._processes)
        return self._processes

    @property
    def runs(self) -> list[Run]:
        """The runs that wrote the files, the newest first."""
        return find_runs(self.processes)

    def of_run(self, run: str) -> Trace:
        """Only the files of one run (or of `all` together), under the same filter."""
        if run == "all":
            return self
        found = [r for r in self.runs if r.id == run]
        if not found:
            known = ", ".join(str(r.id) for r in self.runs if r.id is not None)
            raise NoTraces(f"no run {run} among the files; runs: {known or 'none has an id'}")
        return self._with(found[0])

    def newest_run(self) -> Trace:
        """The files of the run that began last."""
        runs = self.runs
        return self if len(runs) == 1 else self._with(runs[0])

    def _with(self, run: Run) -> Trace:
        if len(run.files) == len(self.files):
            return self
        return self._like(run.files)

    def _like(self, files: list[Path]) -> Trace:
        """Some of the files, read in the same way."""
        other = Trace(files, threads=self.threads, memory_limit=self.memory_limit, cache=self.cache)
        other.filter = self.filter
        other.torch_files = self.torch_files
        return other

    def chunks(self) -> Iterator[tuple[ProcessInfo, Scanner, Chunk]]:
        """All events as NumPy arrays over native memory, file after file."""
        total = sum(f.stat().st_size for f in self.files)
        done = 0
        for process in self.processes:
            if self.filter.wants(process):
                for scanner, chunk in scan_file(process, self.filter, self.threads, self.chunk_text):
                    yield process, scanner, chunk
                    if self._progress is not None:
                        self._progress(done + scanner.position(), total)
            done += process.file.stat().st_size
            if self._progress is not None:
                self._progress(done, total)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All events as Arrow record batches; only one is held at a time."""
        maker: BatchMaker | None = None
        last: Scanner | None = None
        for process, scanner, chunk in self.chunks():
            if maker is None or scanner is not last:
                maker, last = BatchMaker(scanner, process), scanner
            if chunk.rows:
                yield maker.batch(chunk)

    def arrow(self) -> pa.Table:
        """Everything as one Arrow table (scanning the trace is faster than reading a sidecar whole)."""
        table: pa.Table = need("pyarrow").Table.from_batches(self.batches(), schema())
        return table

    def lazy(self) -> pl.LazyFrame:
        """A Polars query over the columnar sidecars, which are made on first use."""
        polars = need("polars")
        ready = self._sidecars(make=self.cache)
        return self.polars().lazy() if ready is None else self._filtered(polars.scan_parquet(ready))

    def polars(self) -> pl.DataFrame:
        """Everything as a Polars frame."""
        frame: pl.DataFrame = need("polars").from_arrow(self.arrow())
        return frame

    def linked(self, table: str = "linked") -> pl.LazyFrame:
        """A table that `dftracer link` made from the same run: `linked`, `edges` or `collectives`."""
        found = linked_files(self.files).get(table)
        if not found:
            raise NoTraces(f"no {table} table beside the trace: run `dftracer link` on its directory first")
        frame: pl.LazyFrame = need("polars").scan_parquet(found)
        return frame

    def pandas(self) -> pd.DataFrame:
        """Everything as a pandas frame."""
        need("pandas")
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection with the view `events` (and `processes`), under the memory limit.

        If the run was linked, also `linked`, `edges` and `collectives`.
        """
        config = {"memory_limit": f"{self.memory_limit >> 20}MiB", "threads": self.threads}
        con: duckdb.DuckDBPyConnection = need("duckdb").connect(config=config)
        ready = self._sidecars(make=self.cache)
        if ready is not None and self.filter.empty:
            listed = ", ".join("'" + str(p).replace("'", "''") + "'" for p in ready)
            con.execute(f"create view events as select * from read_parquet([{listed}])")
        else:
            con.register("events", self.arrow())
        con.register("processes", _process_table(self.processes))
        for table, files in linked_files(self.files).items():
            listed = ", ".join("'" + str(p).replace("'", "''") + "'" for p in files)
            con.execute(f"create view {table} as select * from read_parquet([{listed}])")
        return con

    def sql(self, query: str) -> pl.DataFrame:
        """Run SQL over `events`: `trace.sql("select name, sum(dur) from events group by name")`."""
        need("polars")
        frame: pl.DataFrame = self.connection().sql(query).pl()
        return frame

    def select(
        self,
        *,
        time: Range | None = None,
        ranks: Sequence[int] | None = None,
        pids: Sequence[int] | None = None,
        cats: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        steps: Range | None = None,
        epochs: Range | None = None,
    ) -> Trace:
        """Those of its events that also pass this: `trace.select(ranks=[0], steps=(10, 20))`.

        A selection only narrows: `trace.select(ranks=[0]).select(ranks=[1])` is empty.
        """
        other = self._like(self.files)
        more = Filter(time, _tuple(ranks), _tuple(pids), _tuple(cats), _tuple(names), steps, epochs)
        other.filter = self.filter.narrowed(more)
        other._processes = self._processes
        return other

    def _sidecars(self, make: bool) -> list[Path] | None:
        """The sidecars of all files; None if one is missing and may not or could not be made."""
        found = {file: find_sidecar(file) for file in self.files}
        if make and None in found.values():
            for process in self.processes:
                if found[process.file] is None:
                    found[process.file] = write_sidecar(process.file, self._whole(process), process)
        ready = [sidecar for sidecar in found.values() if sidecar is not None]
        return ready if len(ready) == len(found) else None

    def _whole(self, process: ProcessInfo) -> Iterator[pa.RecordBatch]:
        maker: BatchMaker | None = None
        for scanner, chunk in scan_file(process, Filter(), self.threads, self.chunk_text):
            maker = maker or BatchMaker(scanner, process)
            if chunk.rows:
                yield maker.batch(chunk)

    def _filtered(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        polars = need("polars")
        f = self.filter
        for column, span in (("ts", f.time), ("step", f.steps), ("epoch", f.epochs)):
            if span is not None:
                frame = frame.filter(polars.col(column).is_between(*span))
        for column, values in (("rank", f.ranks), ("pid", f.pids)):
            if values is not None:
                frame = frame.filter(polars.col(column).is_in(list(values)))
        for column, texts in (("cat", f.cats), ("name", f.names)):
            if texts is not None:
                frame = frame.filter(polars.col(column).cast(polars.String).is_in(list(texts)))
        return frame


def _files(paths: list[str | os.PathLike[str]], others: bool) -> list[Path]:
    """The trace files; none is needed if files of another kind were found."""
    if others and all(Path(p).is_dir() for p in paths):
        try:
            return find_files(paths)
        except NoTraces:
            return []
    return find_files(paths)


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def available_cores() -> int:
    """How many processes may work at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _process_table(processes: list[ProcessInfo]) -> Any:
    pa = need("pyarrow")
    rows = [
        {
            "pid": p.pid,
            "ppid": p.ppid,
            "rank": p.rank,
            "host": p.host,
            "file": os.fsencode(p.file).decode("utf-8", "backslashreplace"),
            "start_us": p.start_us,
            "end_us": p.end_us,
            "command": p.command,
        }
        for p in processes
    ]
    kinds = pa.schema(
        [
            ("pid", pa.int64()),
            ("ppid", pa.int64()),
            ("rank", pa.int32()),
            ("host", pa.string()),
            ("file", pa.string()),
            ("start_us", pa.int64()),
            ("end_us", pa.int64()),
            ("command", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, kinds)
