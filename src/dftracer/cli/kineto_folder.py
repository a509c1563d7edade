"""The Kineto files of a collected directory in a separate folder.

HTA treats every `.gz` and `.json` in a folder as a Kineto file and reads the rank from it; a collected
directory also contains other files, and the file of a single process names no rank.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO, Any

from dftracer._torch_files import COPIES, mark
from dftracer.cli.main import CommandError
from dftracer.cli.outputs import appearing, check_folder, is_torch_name
from dftracer.link.discover import discover

__all__ = ["write_kineto_folder"]

_HEAD = 1 << 16


def write_kineto_folder(directory: Path, folder: Path) -> list[str]:
    """Write each rank's file of its first window; returns their names."""
    found = discover(directory)
    check_folder(folder, [s.path for files in found.ranks.values() for s in (*files.et, *files.activity)])
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / COPIES).exists() and any(is_torch_name(path.name) for path in folder.iterdir()):
        raise CommandError(
            f"{folder} contains traces that were not made by this command; name another folder"
        )
    mark(folder, COPIES)
    written = []
    for rank, files in sorted(found.ranks.items()):
        sources = [s for s in files.activity if s.kind == "kineto"]
        if not sources:
            continue
        first = min(sources, key=lambda s: s.window or 0)
        target = folder / f"kineto_trace_{rank}.json.gz"
        with (
            appearing(target) as place,
            _opened(first.path) as source,
            place.open("wb") as raw,
            gzip.GzipFile("", "wb", 5, raw) as out,
        ):
            _copy(source, out, rank, found.world_size)
        written.append(target.name)
    return written


def _opened(path: Path) -> IO[bytes]:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    file: IO[bytes] = opener(path, "rb")
    return file


def _copy(source: IO[bytes], out: Any, rank: int, world_size: int) -> None:
    head = source.read(_HEAD)
    if b'"distributedInfo"' not in head:
        told = f'{{\n"distributedInfo": {{"rank": {rank}, "world_size": {max(world_size, 1)}}},'
        head = told.encode() + head.lstrip().removeprefix(b"{")
    while head:
        out.write(head)
        head = source.read(1 << 20)
