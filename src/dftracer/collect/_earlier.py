"""Files of an earlier collection in the same directory: moved to a folder of their own, never replaced."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import time
from typing import Any

from dftracer._set_aside import EARLIER, mark

__all__ = ["move_aside", "move_ranks_aside"]

_OF_RANK = re.compile(r"[A-Za-z][\w-]*?_(p?\d+)(_w\d+)?\.(json|jsonl|nsys-rep|sqlite)(\.gz)?")
_OF_ALL = ("manifest.json", "workload_card.yaml", "linked")  # of all ranks together


def move_aside(directory: str, label: str) -> None:
    """What another process has left under this label, into a folder named after its run."""
    names = [name for name in sorted(os.listdir(directory)) if _label_of(name) == label]
    if not names:
        return
    if label == "0":
        names += [name for name in _OF_ALL if os.path.exists(os.path.join(directory, name))]
    run = _run_of(os.path.join(directory, names[0]), _manifest(directory, label))
    folder = _folder_for(directory, names, run)
    for name in names:
        with contextlib.suppress(OSError):
            os.rename(os.path.join(directory, name), os.path.join(folder, name))


def move_ranks_aside(directory: str, world_size: int, run: str) -> None:
    """The ranks of a larger job that was collected here before."""
    labels = {_label_of(name) for name in os.listdir(directory)}
    for label in sorted(each for each in labels if each is not None and each.isdecimal()):
        if int(label) >= world_size and _manifest(directory, label).get("run") != run:
            move_aside(directory, label)


def _label_of(name: str) -> str | None:
    found = _OF_RANK.fullmatch(name)
    return found[1] if found else None


def _manifest(directory: str, label: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, f"manifest_{label}.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _run_of(file: str, manifest: dict[str, Any]) -> str:
    run = manifest.get("run")
    if isinstance(run, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", run):
        return run
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(os.path.getmtime(file)))


def _folder_for(directory: str, names: list[str], run: str) -> str:
    for number in itertools.count(1):
        folder = os.path.join(directory, f"earlier-{run}" + (f"-{number}" if number > 1 else ""))
        os.makedirs(folder, exist_ok=True)
        mark(folder, EARLIER)
        if not any(os.path.lexists(os.path.join(folder, name)) for name in names):
            return folder
    raise AssertionError("unreachable")
