"""What PyTorch's own trace files have in common, for those who write, read and set them aside."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Any

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


# --- Items that are not valid JSON: the nodes of an execution trace, the events of a profiler's trace
#
# torch does not escape names, nor the strings among a node's values.

_FIELDS = re.compile(r'\n(?=        "(?:inputs|outputs|attrs)": )')  # torch begins a line with each
_HEAD = re.compile(r'\s*"id": (\d+), "name": "(.*)", "ctrl_deps": (\d+),', re.DOTALL)
_FIELD = re.compile(r'        "(\w+)": (.*?),?', re.DOTALL)
_NO_VALUES: dict[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}
# A quote ends a string where JSON may go on after it, else it belongs to the string.
_STRING = re.compile(r'"((?:[^"\\]|\\.|"(?!\s*(?:[,:\]}]|$)))*)"(?=\s*(?:[,:\]}]|$))', re.DOTALL)
_BAD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


def name_pattern(keys: Iterable[str]) -> re.Pattern[str]:
    """Where an item's name stands that is not escaped: it ends where one of these keys follows it."""
    following = "|".join(map(re.escape, keys))
    return re.compile(rf'("name"\s*:\s*")(.*?)("\s*,\s*"(?:{following})"\s*:|"\s*\}}\s*$)', re.DOTALL)


NODE_NAME = name_pattern(("ctrl_deps", "parent", "id"))
EVENT_NAME = name_pattern(("pid", "ts", "cat", "ph", "tid", "s", "id", "dur", "args", "bp"))


def repaired_item(text: str, name: re.Pattern[str], *, as_observed: bool = False) -> Any:
    """The item that an invalid JSON text stands for; None if that cannot be told.

    With `as_observed` it is a node that torch's observer has just written: its name stands there as it is,
    and if some of its fields cannot be read, it is still a node, in which those are empty. A file from
    elsewhere may have been escaped, or damaged in any way: there, a node is not made up.
    """
    candidates = [text, name.sub(_escaped_name, text, count=1)]
    for candidate in reversed(candidates) if as_observed else candidates:
        try:
            return json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    return _by_fields(text) if as_observed else None


def _escaped_name(found: re.Match[str]) -> str:
    return found[1] + json.dumps(found[2])[1:-1] + found[3]


def _by_fields(text: str) -> dict[str, Any] | None:
    """A node, each of its fields by itself."""
    node: dict[str, Any] = {}
    for part in _FIELDS.split(text.removeprefix("{").removesuffix("}")):
        head = _HEAD.fullmatch(part)
        if head:
            node["id"], node["name"], node["ctrl_deps"] = int(head[1]), head[2], int(head[3])
            continue
        field = _FIELD.fullmatch(part)
        if field is None:
            return None
        # The place of a value that cannot be read is kept: readers look for the key.
        value = _value(field[2])
        node[field[1]] = value if value is not None else [] if field[1] == "attrs" else dict(_NO_VALUES)
    return node if "id" in node else None


def _value(text: str) -> Any:
    for candidate in (text, _STRING.sub(_escaped_string, text)):
        try:
            return json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    return None


def _escaped_string(found: re.Match[str]) -> str:
    inside = _BAD_ESCAPE.sub(r"\\\\", found[1])
    return '"' + re.sub(r'(?<!\\)"', r"\"", inside) + '"'
