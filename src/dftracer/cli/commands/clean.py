"""`dftracer clean`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer._text import Column, bytes_text
from dftracer.cli.leftovers import Leftover, find_leftovers, find_traces_to_delete, remove, summary
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.showing import print_json
from dftracer.cli.table import print_table

HELP = "Show what dftracer has left (caches, rings of killed processes, temporary files), and delete it."
EXAMPLE = """\
dftracer clean
dftracer clean traces/ --yes
dftracer clean --traces traces/20260101-120000-0a1b2c3d"""
_COLUMNS = (
    Column("kind", whole=True),
    Column("size", right=True),
    Column("path", whole=True, lead=True),
    Column("what", drop=1),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="where to look (default: traces/, otherwise the current directory)",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument(
        "--all", action="store_true", help="also rings of killed processes whose traces are not under PATH"
    )
    parser.add_argument(
        "--traces", action="store_true", help="delete the traces under PATH as well, which must be given"
    )


def run(args: argparse.Namespace) -> int:
    if args.traces and not args.paths:
        raise CommandError("which traces? Name the PATH: dftracer clean --traces traces/RUN")
    paths = args.paths or ["traces" if Path("traces").is_dir() else "."]
    missing = [p for p in paths if not Path(p).exists()]
    if missing:
        raise CommandError(f"{missing[0]} does not exist")
    from dftracer.load.files import recover

    recover(paths)  # what can still be read out of a ring belongs into its trace
    found = find_leftovers(paths, args.all) + (find_traces_to_delete(paths) if args.traces else [])
    if not args.json and not args.quiet:
        _show(found)
    if found and (args.yes or _agreed(args, found)):
        remove(found)
        if not args.json and not args.quiet:
            print(f"deleted: {summary([each for each in found if each.deleted])}")
    if args.json:
        print_json([each.to_json() for each in found])
    kept = [each for each in found if args.yes and not each.deleted]
    for each in kept:
        print(f"dftracer clean: {each.path} could not be deleted", file=sys.stderr)
    return EXIT_PROBLEMS if kept else EXIT_OK


def _show(found: list[Leftover]) -> None:
    if not found:
        print("nothing to delete")
        return
    print_table(_COLUMNS, [[f.kind, bytes_text(f.bytes), f.path, f.why] for f in found])
    print(f"found: {summary(found)}")


def _agreed(args: argparse.Namespace, found: list[Leftover]) -> bool:
    """Ask who sits at the terminal; nobody else agrees to anything."""
    if args.json or args.quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        if not args.quiet:
            print("dftracer clean: nothing was deleted; --yes deletes it", file=sys.stderr)
        return False
    return input(f"Delete {summary(found)}? [y/N] ").strip().lower() in {"y", "yes"}
