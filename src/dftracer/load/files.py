"""From what the user names to the trace files meant."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["NoTraces", "find_files", "recover_left_behind"]

_ENDINGS = (".pfw", ".pfw.gz")


class NoTraces(FileNotFoundError):
    """Nothing to read was found under the given paths."""


def find_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], may_be_none: bool = False
) -> list[Path]:
    """All trace files meant by `paths`: files as they are, directories searched to the bottom."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            for root, folders, names in os.walk(path):
                folders[:] = sorted(f for f in folders if not f.startswith("."))
                for name in sorted(names):
                    if name.endswith(_ENDINGS):
                        found[Path(root, name)] = None
        elif path.exists():
            found[path] = None
        else:
            raise NoTraces(f"{path} does not exist")
    if not found and not may_be_none:
        listed = ", ".join(str(p) for p in paths)
        raise NoTraces(
            f"no .pfw or .pfw.gz file under {listed}. Was DFTRACER_ENABLE=1 set when the program ran?"
        )
    return list(found)


def recover_left_behind(files: Iterable[Path]) -> list[str]:
    """Let the recorder complete the traces of killed processes; returns the files it completed.

    Reading never depends on it: without the native recorder, or where the directory cannot be written,
    what the files hold is what is read.
    """
    try:
        from dftracer import _core  # noqa: PLC0415 - the recorder may be absent where only analysis is installed
    except ImportError:
        return []
    done: list[str] = []
    for directory in dict.fromkeys(str(f.parent) for f in files):
        try:
            done += _core.recover(directory)
        except Exception:
            continue
    return done
