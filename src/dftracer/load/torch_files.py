"""Files about the same run from elsewhere: PyTorch's Kineto traces, and tables that `link` made of them."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dftracer._torch_files import EXPORTED, is_set_aside

_KINETO = re.compile(r"kineto_trace_\d+(_w\d+)?\.json(\.gz)?$|.*\.pt\.trace\.json(\.gz)?$")
_LINKED = re.compile(r"linked_\d+\.parquet$")
_HEAD = 1 << 16
_TABLES = ("linked", "edges", "collectives")


def is_kineto(path: Path) -> bool:
    """Whether a file is a profiler trace, judging by its head."""
    if not path.name.endswith((".json", ".json.gz")):
        return False
    if _KINETO.match(path.name):
        return True
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, EOFError):
        return False
    if EXPORTED.encode() in head:
        return False
    return b'"traceEvents"' in head and (b'"baseTimeNanoseconds"' in head or b'"cpu_op"' in head)


def find_torch_files(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Path], list[Path]]:
    """Kineto files and linked tables: those given, and those in the given directories."""
    kineto: dict[Path, None] = {}
    linked: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            for root, folders, names in os.walk(path):
                folders[:] = sorted(
                    f for f in folders if not f.startswith(".") and not is_set_aside(Path(root, f))
                )
                for found in (Path(root, name) for name in sorted(names)):
                    if _KINETO.match(found.name) and found.is_file():
                        kineto[found] = None
                    elif _LINKED.match(found.name) and found.is_file():
                        linked[found] = None
        elif path.is_file() and is_kineto(path):
            kineto[path] = None
        elif _LINKED.match(path.name) and path.is_file():
            linked[path] = None
    return [*kineto], [*linked]


def linked_files(files: Iterable[Path]) -> dict[str, list[Path]]:
    """The Parquet files of each linked table, in the folders of the trace files or in `linked` below them."""
    folders = dict.fromkeys(f.parent for f in files)
    out: dict[str, list[Path]] = {}
    for folder in folders:
        for place in (folder, folder / "linked"):
            for table in _TABLES:
                pattern = f"{table}.parquet" if table == "collectives" else f"{table}_*.parquet"
                out.setdefault(table, []).extend(sorted(filter(Path.is_file, place.glob(pattern))))
    return {table: found for table, found in out.items() if found}
