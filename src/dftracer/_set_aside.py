"""What looks like PyTorch's traces and is no part of the directory it lies in."""

from __future__ import annotations

import os

__all__ = ["COPIES", "EARLIER", "EXPORTED", "is_set_aside", "mark"]

COPIES = ".dftracer-copies"  # files made from those of a collection
EARLIER = ".dftracer-earlier"  # files of an earlier collection
EXPORTED = '"made_by":"dftracer export"'  # at the beginning of a file that only has the same format


def mark(folder: str | os.PathLike[str], kind: str) -> None:
    """Readers of the directory above pass over this folder from now on."""
    with open(os.path.join(folder, kind), "a", encoding="utf-8"):
        pass


def is_set_aside(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder was marked."""
    return any(os.path.exists(os.path.join(folder, kind)) for kind in (COPIES, EARLIER))
