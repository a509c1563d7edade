"""`dftracer report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer.cli.common import add_filters, add_paths, open_trace, output_path, print_json, progress
from dftracer.cli.main import EXIT_OK, CommandError

HELP = "Say where the time went, what is to blame and what would help."
EXAMPLE = "dftracer report traces/ --html report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument("--html", metavar="FILE", help="write one self-contained HTML page")
    parser.add_argument("--md", action="store_true", help="print Markdown, short enough for a chat")
    parser.add_argument("--dask", metavar="ADDRESS", help="analyse on a Dask cluster: tcp://host:port or 'local'")
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    if args.html and Path(args.html).is_dir():
        raise CommandError(f"--html {args.html} is a directory; name a file in it")
    if args.html and Path(args.html).exists() and not args.force and Path(args.html).suffix != ".html":
        raise CommandError(f"{args.html} exists and is no .html file; use -f to overwrite it")
    from dftracer.analyze import analyze

    trace = open_trace(args)
    with progress(args, "reading") as bar:
        analysis = analyze(trace, dask=args.dask, progress=bar)
    text: str | None = None
    if args.json or args.md:
        from dftracer.report import document, markdown

        if args.md:
            text = markdown(analysis)
        elif args.output:
            import json

            text = json.dumps(document(analysis), indent=1, ensure_ascii=False) + "\n"
        else:
            print_json(document(analysis))
    if text is not None:
        if args.output:
            output_path(args, "").write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(text)
    elif not args.json:
        from dftracer.report import print_report

        if args.output:
            from rich.console import Console

            with output_path(args, "").open("w", encoding="utf-8") as out:
                print_report(analysis, Console(file=out, width=120))
        elif not (args.quiet and args.html):
            print_report(analysis)
    if args.html:
        from dftracer.report import html_page

        Path(args.html).write_text(html_page(analysis, f"dftracer: {args.paths[0]}"), encoding="utf-8")
        if not args.quiet:
            print(f"HTML report: {Path(args.html).resolve()}", file=sys.stderr if args.json or args.md else sys.stdout)
    return EXIT_OK
