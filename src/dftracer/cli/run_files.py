"""Which files a run has written, wherever its programs put them."""

from __future__ import annotations

import os
from pathlib import Path

from dftracer import _core
from dftracer.format.files import run_of_file

__all__ = ["stems_in", "traces_of_run"]

_SUFFIXES = (".pfw", ".pfw.gz")


def stems_in(file: Path) -> list[Path]:
    """The names that programs gave, as they reported them."""
    return [Path(os.fsdecode(line)) for line in dict.fromkeys(file.read_bytes().splitlines())]


def traces_of_run(run: str, directory: Path, stems: list[Path]) -> list[Path]:
    """The files of the run, in its directory and next to the names that programs gave."""
    found = {p for p in directory.rglob("*") if p.name.endswith(_SUFFIXES)}
    for folder in {stem.parent for stem in stems} | {directory}:
        if folder.is_dir():
            _core.recover(str(folder))  # what a killed process could not write
    for stem in stems:
        if stem.parent.is_dir():
            found |= {
                p
                for p in stem.parent.iterdir()
                if p.name.startswith(stem.name) and p.name.endswith(_SUFFIXES)
            }
    return sorted(_shown(p) for p in found if run_of_file(p) == run)


def _shown(path: Path) -> Path:
    """Relative if that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path
