"""Which run a file belongs to, by the record near its start that says so."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

__all__ = ["run_of_file"]

_HEAD_LINES = 16  # it is the second record


def run_of_file(path: Path) -> str | None:
    """The run that a trace file names, if it does."""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for _ in range(_HEAD_LINES):
                line = file.readline(1 << 20)
                if b'"name":"run","cat":"dftracer"' in line:
                    return str(json.loads(line)["args"]["value"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError):
        return None
    return None
