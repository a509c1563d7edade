"""The contents of trace files: `dftracer info`, `validate`, `query` and `link`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dftracer._console import in_stream_encoding
from dftracer._text import Column, bytes_text, count_text, plural, seconds_text
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError, Verb
from dftracer.cli.outputs import appearing, check_suffix, print_json, print_lines, print_wrapped
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    open_processes,
    open_trace,
    output_path,
    refuse_empty_selection,
    take_newest,
)

if TYPE_CHECKING:
    from dftracer.link.checks import Checked


_COLUMNS = (
    Column("rank", right=True),
    Column("pid", right=True),
    Column("parent", right=True, drop=1),
    Column("host", drop=2),
    Column("events", right=True),
    Column("size", right=True),
    Column("time", right=True),
    Column("state"),
    Column("file", lead=True, whole=True),
)


class Info(Verb):
    help = "List the files of a trace: who wrote them, how much is in them, how they ended."
    example = """\
dftracer info traces/
dftracer info traces/ --json"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)

    def run(self, args: argparse.Namespace) -> int:
        take_newest(args)
        from dftracer.load.process import file_facts

        rows = [file_facts(p) for p in open_processes(args)]
        if args.json:
            print_json({"files": rows})
            return EXIT_OK
        print_lines(_COLUMNS, [_texts(r) for r in rows])
        if args.verbose:
            for r in rows:
                print(f"{r['file']}: {r['command'] or 'command unknown'}; end: {r['end']}")
        return EXIT_OK


def _texts(r: dict[str, Any]) -> list[str]:
    return [
        "-" if r["rank"] is None else str(r["rank"]),
        str(r["pid"]),
        "-" if r["ppid"] is None else str(r["ppid"]),
        r["host"],
        _count(r),
        bytes_text(r["bytes"]),
        "-" if r["span_s"] is None else seconds_text(r["span_s"]),
        "; ".join(r["problems"]) or "complete",
        str(r["file"]),
    ]


def _count(r: dict[str, Any]) -> str:
    """Of a remote file only the number of all records is known, from its end."""
    found = r["records"] if r["events"] is None else r["events"]
    return "-" if found is None else count_text(found)


class Validate(Verb):
    help = "Check every record of a trace and every file of a collected directory; exit code 1 for problems."
    example = """\
dftracer validate traces/ && echo complete
dftracer validate collected/ --json"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)

    def run(self, args: argparse.Namespace) -> int:
        take_newest(args)
        collected = _collected(args.paths)
        rows, missing = _our_traces(args, bool(collected))
        for checked in collected:
            missing = sorted({*missing, *checked.missing_ranks})
        bad = [r for r in rows if r["problems"]]
        ok = not bad and not missing and all(c.ok for c in collected)
        if args.json:
            answer: dict[str, Any] = {"ok": ok, "missing_ranks": missing, "files": rows}
            if collected:
                answer["ranks"] = [r for c in collected for r in c.ranks]
                answer["problems"] = [p for c in collected for p in c.problems]
            print_json(answer)
            return EXIT_OK if ok else EXIT_PROBLEMS
        for r in bad:
            print_wrapped(f"{r['file']}: {'; '.join(r['problems'])}", 2)
        for checked in collected:
            _print_collected(checked, args.quiet)
        if missing:
            print_wrapped(
                f"{'rank' if len(missing) == 1 else 'ranks'} without a trace: {', '.join(map(str, missing))}",
                2,
            )
        if not args.quiet and (rows or not collected):
            records = sum(r["records"] for r in rows)
            files, faulty = plural(len(rows), "file"), plural(len(bad), "file")
            print_wrapped(f"{files}, {plural(records, 'record')}, {faulty} with problems")
            if bad:
                print_wrapped(
                    "`dftracer repair` makes clean copies; events that were never written cannot be"
                    " recovered."
                )
        return EXIT_OK if ok else EXIT_PROBLEMS


def _our_traces(args: argparse.Namespace, others: bool) -> tuple[list[dict[str, Any]], list[int]]:
    """Facts about our own trace files, and the ranks without one; other traces do not need ours."""
    from dftracer.load.process import file_facts

    try:
        processes = open_processes(args)
    except CommandError:
        if others:
            return [], []
        raise
    rows = [file_facts(p) for p in processes]
    seen = {p.rank for p in processes if p.rank is not None}
    world = max((p.world_size or 0 for p in processes), default=0)
    return rows, sorted(set(range(world)) - seen) if seen else []


def _collected(paths: list[str]) -> list[Checked]:
    """PyTorch's own traces in the directories."""
    from dftracer.link.discover import NothingToLink, holds_torch_traces

    folders = [Path(p) for p in paths if holds_torch_traces(Path(p))]
    if not folders:
        return []
    from dftracer.link.checks import check_directory

    out = []
    for folder in folders:
        try:
            out.append(check_directory(folder))
        except NothingToLink:
            continue
    return out


def _print_collected(checked: Checked, quiet: bool) -> None:
    for problem in checked.problems:
        print_wrapped(problem, 2)
    for r in checked.ranks:
        for problem in r["problems"]:
            print_wrapped(f"rank {r['rank']}: {problem}", 2)
        if not quiet and r["coverage"] is not None:
            nodes = plural(r["et_nodes"], "node")
            print(f"rank {r['rank']}: {r['joined']} of {nodes} joined ({r['coverage']:.2%})")


class Query(Verb):
    help = "Run SQL over the events (tables: events, processes)."
    example = """\
dftracer query "select name, count(*) n, sum(dur)/1e6 s from events group by all" traces/
dftracer query "select path, sum(size) from events group by 1 order by 2 desc" traces/ -o files.csv"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("sql", metavar="SQL", help="a DuckDB query")
        add_paths(parser, newest=True)
        parser.add_argument(
            "--no-cache", action="store_true", help="write no columnar sidecar next to the trace"
        )
        add_filters(parser)

    def run(self, args: argparse.Namespace) -> int:
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
            suffix = check_suffix(path, tuple(writers))
            with appearing(path) as temporary:
                writers[suffix](temporary)
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


class Link(Verb):
    help = (
        "Join execution traces, profiler traces and our trace of all ranks; write Chakra, Parquet and a"
        " timeline."
    )
    example = "dftracer link out -o linked --min-coverage 0.99"
    output = "DIR/linked/"
    output_is = "DIR"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            nargs="?",
            metavar="DIR",
            help="a collected directory; results go to DIR/linked without -o (default: collected/, otherwise"
            " the newest run under traces/ or in the current directory)",
        )
        parser.add_argument(
            "--min-coverage",
            type=_share,
            metavar="PART",
            help="exit with code 1 if a rank joins a smaller share of its nodes, e.g. 0.99"
            " (default: no minimum)",
        )
        parser.add_argument(
            "--workers", type=int, metavar="N", help="processes to use (default: one per core)"
        )

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.link import LinkError, NothingToLink, link

        if args.output and Path(args.output).is_file():
            raise CommandError(f"{args.output} is a file; give a directory")
        args.paths = [args.directory] if args.directory else [*filter(os.path.isdir, ["collected"])]
        take_newest(args)
        try:
            report = link(args.paths[0], args.output, workers=args.workers)
        except (NothingToLink, LinkError) as e:
            raise CommandError(str(e)) from None
        if args.json:
            print_json(report.as_json())
        else:
            for r in report.ranks:
                covered = "no execution trace"
                if r["coverage"] is not None:
                    covered = f"{r['joined']} of {plural(r['et_nodes'], 'node')} joined ({r['coverage']:.2%})"
                edges = sum(r["edges"].values())
                more = f"{plural(edges, 'edge')}, {plural(r['collectives'], 'collective')}"
                print(f"rank {r['rank']}: {covered}, {more}")
                for reason, n in report.reasons.get(r["rank"], {}).items():
                    print(f"  {n} not joined: {reason}")
                clock = report.clocks.get(r["rank"])
                if args.verbose and clock is not None:
                    error = "unknown" if clock.error_ns is None else f"{clock.error_ns / 1e3:.1f} us"
                    print(f"  clock: {clock.offset_ns / 1e3:+.1f} us, error at most {error} ({clock.method})")
            for warning in report.warnings:
                print(f"warning: {warning}")
            if not args.quiet:
                print(f"written to {report.output}")
        if args.min_coverage is not None and not report.covers(args.min_coverage):
            return EXIT_PROBLEMS
        return EXIT_OK


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value
