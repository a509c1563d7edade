"""How a verb shows its results and its progress."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dftracer._terminal import has_unicode, safe_console

__all__ = ["console", "counting", "print_json", "progress"]


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=1, ensure_ascii=not has_unicode(sys.stdout), default=str)
    sys.stdout.write("\n")


def console() -> Any:
    """The terminal; a pipe has no width, so tables keep their own."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return safe_console(width=wide)


@contextlib.contextmanager
def progress(args: argparse.Namespace, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, if it is a terminal."""
    if args.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=safe_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def counting(args: argparse.Namespace, what: str) -> Iterator[Callable[[int, int], None] | None]:
    """The same for things that are counted."""
    if args.quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=safe_console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
