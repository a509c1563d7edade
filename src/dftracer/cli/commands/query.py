"""`dftracer query`."""

from __future__ import annotations

import argparse
import sys

from dftracer._terminal import in_stream_encoding
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import appearing
from dftracer.cli.showing import print_json
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    open_trace,
    output_path,
    refuse_empty_selection,
    take_newest,
)

HELP = "Run SQL over the events (tables: events, processes)."
EXAMPLE = """\
dftracer query "select name, count(*) n, sum(dur)/1e6 s from events group by all" traces/
dftracer query "select path, sum(size) from events group by 1 order by 2 desc" traces/ -o files.csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sql", metavar="SQL", help="a DuckDB query")
    add_paths(parser, newest=True)
    parser.add_argument("--no-cache", action="store_true", help="write no columnar sidecar next to the trace")
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    from dftracer._packages import need

    duckdb = need("duckdb")
    trace = open_trace(args, cache=not args.no_cache)
    if not trace.filter.empty and not any(chunk.rows for _, _, chunk in trace.chunks()):
        refuse_empty_selection(args, trace)
    try:
        frame = trace.sql(args.sql)
    except duckdb.Error as e:
        raise CommandError(f"{e}") from None
    if args.output:
        path = output_path(args, "")
        writers = {".csv": frame.write_csv, ".parquet": frame.write_parquet, ".json": frame.write_json}
        if path.suffix not in writers:
            raise CommandError(f"{path}: the name must end in .csv, .parquet or .json")
        with appearing(path) as place:
            writers[path.suffix](place)
    elif args.json:
        print_json(frame.to_dicts())
    elif not sys.stdout.isatty():
        sys.stdout.write(in_stream_encoding(frame.write_csv(), sys.stdout))
    else:
        import polars as pl

        with pl.Config(
            tbl_rows=100,
            tbl_cols=-1,
            fmt_str_lengths=80,
            tbl_hide_dataframe_shape=True,
            tbl_hide_column_data_types=True,
        ):
            print(frame)
    return EXIT_OK
