"""`dftracer link`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.showing import print_json

HELP = (
    "Join execution traces, profiler traces and our trace of all ranks; write Chakra, Parquet and a timeline."
)
EXAMPLE = "dftracer link out -o linked --min-coverage 0.99"
OUTPUT = "DIR/linked/"
OUTPUT_IS = "DIR"


def _part(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="a collected directory; results go to DIR/linked without -o"
    )
    parser.add_argument(
        "--min-coverage",
        type=_part,
        metavar="PART",
        help="exit with code 1 if a rank joins a smaller share of its nodes, e.g. 0.99 (default: no minimum)",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes to use (default: one per core)")


def run(args: argparse.Namespace) -> int:
    from dftracer.link import LinkError, NothingToLink, link

    if args.output and Path(args.output).is_file():
        raise CommandError(f"{args.output} is a file; give a directory")
    try:
        report = link(args.directory, args.output, workers=args.workers)
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
