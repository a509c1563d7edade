"""The files that the user means: traces, completed where a process was killed, and PyTorch's beside them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dftracer._text import plural
from dftracer.format import trace_names
from dftracer.format.torch_files import EXPORTED, is_set_aside
from dftracer.format.trace_names import SUFFIXES, NoTraces, Paths, find_traces


def user_caches() -> Path:
    """The folder of the user's caches: what can be made again is kept below it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def here(paths: Paths, heads: bool = False) -> Paths:
    """The same paths, with local copies in place of URLs (`dftracer.load.remote`)."""
    if isinstance(paths, (str, os.PathLike)):
        given: list[str | os.PathLike[str]] = [paths]
    else:
        given = paths = list(paths)
    if not any(isinstance(each, str) and "://" in each for each in given):
        return paths
    from dftracer.load import remote  # noqa: PLC0415 - for those who read from elsewhere

    found: Paths = remote.local(paths, heads)
    return found


def find_files(paths: Paths) -> list[Path]:
    """All trace files meant by `paths`; a missing path is an error, and so is one without any trace."""
    paths = here(paths)
    try:
        return trace_names.find_files(paths)
    except NoTraces:
        given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
        waiting = sum(_waiting_below(os.path.realpath(p)) for p in given)
        if not waiting:
            raise
        where = ", ".join(str(p) for p in given)
        raise NoTraces(
            f"no trace in {where}; {plural(waiting, 'event')} of a killed process"
            f" {'is' if waiting == 1 else 'are'} still in its ring, because the trace cannot be created there."
            " `dftracer repair --rings -o DIRECTORY` writes the events to another directory"
        ) from None


def _waiting_below(directory: str) -> int:
    """Events in the rings of dead processes whose traces belong below a directory."""
    try:
        from dftracer import _core  # noqa: PLC0415 - the recorder may be absent where only analysis is installed

        rings = _core.rings([])
    except (ImportError, OSError):
        return 0
    return sum(
        ring["records"]
        for ring in rings
        if ring["state"] == "dead" and Path(directory) in Path(ring["trace"]).parents
    )


def recover(paths: Paths) -> list[str]:
    """Complete the traces of killed processes from the rings they left; returns the completed files.

    Reading never depends on it: without the native recorder, or if the directory cannot be written to,
    the files are read as they are.
    """
    try:
        from dftracer import _core  # noqa: PLC0415 - the recorder may be absent where only analysis is installed
    except ImportError:
        return []
    paths = here(paths)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    # A process that was killed at once has left a ring and no file: it is looked for where its file would be.
    directories = {
        os.path.abspath(p) if _is_folder(p) else os.path.dirname(os.path.abspath(p)): _is_folder(p)
        for p in given
    }
    for file in find_traces(given):
        if os.path.isfile(file):
            directories.setdefault(os.path.dirname(os.path.abspath(file)), False)
    done: list[str] = []
    for directory, below in directories.items():
        try:
            done += _core.recover(directory, below)
        except Exception:
            continue
    return done


def recover_below(directory: str | os.PathLike[str]) -> None:
    """The same for a whole tree at once, except for traces that were moved since."""
    with contextlib.suppress(Exception):
        from dftracer import _core  # noqa: PLC0415 - as above

        _core.recover(os.path.abspath(directory), True)


def _is_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory, or would be one: nothing that is not there has the name of a trace."""
    return os.path.isdir(path) or not (os.path.exists(path) or os.fspath(path).endswith(SUFFIXES))


# --- Files about the same run from elsewhere: PyTorch's Kineto traces, and tables that `link` made of them

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
    import gzip  # noqa: PLC0415 - rarely needed

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
        for directory in (folder, folder / "linked"):
            for table in _TABLES:
                pattern = f"{table}.parquet" if table == "collectives" else f"{table}_*.parquet"
                out.setdefault(table, []).extend(sorted(filter(Path.is_file, directory.glob(pattern))))
    return {table: found for table, found in out.items() if found}
