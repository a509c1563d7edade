"""Runs named on the command line: traces, directories, saved reports."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer.cli.main import CommandError
from dftracer.cli.showing import progress
from dftracer.format.files import NoTraces, find_files

if TYPE_CHECKING:
    from dftracer.compare import Side

__all__ = ["input_files", "open_side"]


def open_side(args: argparse.Namespace, path: str) -> Side:
    """One run; a trace is analysed, a saved report is read."""
    from dftracer.analyze import analyze
    from dftracer.compare import NotComparable, is_report, read_report, side_of
    from dftracer.report.document import comparable

    try:
        if is_report(path):
            return read_report(path)
        with progress(args, f"reading {path}") as bar:
            analysis = analyze(path, progress=bar)
        if analysis.from_rows and not args.quiet:
            print(
                f"dftracer {args.verb}: {path}: the traces are gone; what needs events is missing here",
                file=sys.stderr,
            )
        return side_of(path, comparable(analysis))
    except (NoTraces, NotComparable) as e:
        raise CommandError(str(e)) from None


def input_files(paths: list[str]) -> list[Path]:
    """All files that belong to the inputs, so that none of them is written to."""
    out: list[Path] = []
    for path in paths:
        if Path(path).is_file():
            out.append(Path(path))
            continue
        with contextlib.suppress(NoTraces):  # the reader gives a better message
            out += find_files([path])
    return out
