"""`dftracer view`."""

from __future__ import annotations

import argparse

from dftracer._packages import need
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.trace_arguments import take_newest
from dftracer.load.files import NoTraces

HELP = "Look at every event of a trace in the browser: zoom, search, compare two runs, follow a running job."
EXAMPLE = """\
dftracer view
dftracer view traces/
dftracer view before/ after/
dftracer view traces/ --follow --port 8080 --no-open"""
OUTPUT = "nothing is written"


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give 0 to 65535")
    return port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="DIR",
        help="a trace directory or file, two to compare runs"
        " (default: the newest run under traces/ or in the current directory)",
    )
    parser.add_argument(
        "--port", type=_port, default=0, metavar="N", help="port on 127.0.0.1; 0: any free one (default: 0)"
    )
    parser.add_argument("--no-open", action="store_true", help="print the address without opening a browser")
    parser.add_argument(
        "--run", metavar="ID|all", help="which run to show; `all`: all files as one run (default: newest)"
    )
    parser.add_argument("--follow", action="store_true", help="follow a running job's trace as it grows")
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="write nothing to the cache directory (~/.cache/dftracer/view)",
    )


def run(args: argparse.Namespace) -> int:
    for module in ("starlette", "uvicorn"):
        need(module, "view")
    for module in ("numpy", "polars"):
        need(module)
    if args.output:
        raise CommandError("view writes no file; `dftracer report -o page.html` makes a page to keep")
    take_newest(args)
    if len(args.paths) > 2:
        raise CommandError("give one trace, or two to see them side by side")
    from dftracer.view.server import PortTaken, Session, serve
    from dftracer.view.source import FollowedSource, Source

    try:
        kind = FollowedSource if args.follow else Source
        sources = [kind([p], args.run, cache=not args.no_cache) for p in args.paths]
        serve(Session(sources, follow=args.follow), args.port, not args.no_open, args.quiet)
    except (NoTraces, PortTaken) as e:
        raise CommandError(str(e)) from None
    return EXIT_OK
