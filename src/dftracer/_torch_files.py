"""What PyTorch's own trace files have in common, for those who write, read and set them aside."""

from __future__ import annotations

import os
import re

# --- What looks like PyTorch's traces and is no part of the directory it lies in


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


# --- Names in torch's traces: which ones stand for nothing that ran, and when two names are the same


# Nodes of an execution trace that contain others, or facts.
STRUCTURAL = re.compile(r"\[pytorch\|profiler\|execution_trace\|\w+\]|## process_group:init ##")
# What one of torch's writers escapes or cuts and the other does not.
_ODD = re.compile(r"[\"\\\s\x00-\x1f�]+")


def plain_name(name: str) -> str:
    """A name as far as all of torch's writers agree on it."""
    return _ODD.sub("", name)
