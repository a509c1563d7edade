"""What `dftracer run` says when the program has ended: how it ended, verdict, why, what to try next."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

__all__ = ["three_lines"]


def three_lines(files: Iterable[Path]) -> list[str]:
    """The first lines of the report on these files; if they cannot be analysed, a line says so."""
    from dftracer.analyze import analyze
    from dftracer.load.files import NoTraces

    try:
        analysis = analyze([str(f) for f in files])
    except NoTraces as problem:
        return [str(problem)]
    from dftracer.report.contents import ended_words, head

    return [line for line in (ended_words(analysis), *head(analysis)) if line]
