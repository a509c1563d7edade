"""A file as it would be if its process had just ended, for readers of files."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dftracer.format.members import gzip_member
from dftracer.live.look import LiveFile

__all__ = ["rest_member", "whole_copy"]

_TS = re.compile(rb',"ts":(\d+)')


def rest_member(text: bytes) -> bytes:
    """Lines as one member."""
    times = [int(t) for t in _TS.findall(text)]
    return gzip_member(text, text.count(b"\n"), min(times, default=0), max(times, default=0))


def whole_copy(file: LiveFile, to: Path) -> None:
    """Write the settled part and the rest to `to`; the trace itself is only read."""
    with to.open("wb") as out:
        if file.final:
            with file.path.open("rb") as f:
                shutil.copyfileobj(_Upto(f, file.final), out)
        rest = file.rest()
        if rest:
            out.write(rest_member(rest) if file.packed else rest)


class _Upto:
    """The first bytes of a file."""

    def __init__(self, file: object, size: int) -> None:
        self._file, self._left = file, size

    def read(self, n: int = -1) -> bytes:
        got: bytes = self._file.read(min(n, self._left) if n >= 0 else self._left)  # type: ignore[attr-defined]
        self._left -= len(got)
        return got
