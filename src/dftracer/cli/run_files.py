"""Which files a run has written, wherever its programs wanted them."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

from dftracer import _core

__all__ = ["run_of_file", "stems_in", "traces_of_run"]

_SUFFIXES = (".pfw", ".pfw.gz")
_HEAD_LINES = 16  # the run stands in the second record


def stems_in(file: Path) -> list[Path]:
    """The names that programs gave, as they reported them."""
    return [Path(os.fsdecode(line)) for line in dict.fromkeys(file.read_bytes().splitlines())]


def traces_of_run(run: str, directory: Path, stems: list[Path]) -> list[Path]:
    """The files of the run in its directory and beside the names that programs gave."""
    found = {p for p in directory.rglob("*") if p.name.endswith(_SUFFIXES)}
    for folder in {stem.parent for stem in stems} | {directory}:
        if folder.is_dir():
            _core.recover(str(folder))  # what a killed process left to write
    for stem in stems:
        if stem.parent.is_dir():
            found |= {
                p
                for p in stem.parent.iterdir()
                if p.name.startswith(stem.name) and p.name.endswith(_SUFFIXES)
            }
    return sorted(_shown(p) for p in found if run_of_file(p) == run)


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


def _shown(path: Path) -> Path:
    """Relative where that is shorter to read."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
