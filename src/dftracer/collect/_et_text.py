"""The execution trace as torch writes it, node by node, with invalid JSON repaired.

torch does not escape names and string values. Its layout is fixed, one field group a line, so that a node is
found by its first and last line and its name by what stands around it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["EtText"]

_NODE_BEGIN, _NODE_END = "      {", ("      }", "      },")
_HEAD = re.compile(r'^\s*"id": (\d+), "name": "(.*)", "ctrl_deps": (\d+),$', re.S)
_FIELD = re.compile(r'^        "(\w+)": (.*?),?$', re.S)
_ARRAY_END = "  ],"
# A quote ends a string where JSON may go on after it, else it belongs to the string.
_STRING = re.compile(r'"((?:[^"\\]|\\.|"(?!\s*(?:[,:\]}]|$)))*)"(?=\s*(?:[,:\]}]|$))', re.S)
_GOOD_ESCAPE = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')


class EtText:
    """Reads lines; gives the header, then each node as (text that is JSON, the node), and counts repairs."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.head: dict[str, Any] = {}
        self.finish_ts: int | None = None
        self.repaired = 0
        self.dropped = 0
        self.complete = False

    def nodes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every node, in the order of the file."""
        self._read_head()
        node: list[str] | None = None
        for line in self._lines:
            text = line.rstrip("\n")
            if node is None:
                if text == _NODE_BEGIN:
                    node = []
                elif text.startswith(_ARRAY_END):
                    self._read_tail()
                    return
            elif text in _NODE_END:
                found = self._node(node)
                node = None
                if found is not None:
                    yield found
            else:
                node.append(text)

    def _read_head(self) -> None:
        head: list[str] = []
        for line in self._lines:
            if line.strip() == '"nodes": [':
                break
            head.append(line)
        try:
            self.head = json.loads("".join(head).rstrip().rstrip(",") + "}")
        except ValueError:
            self.head = {}

    def _read_tail(self) -> None:
        tail = "".join(self._lines)
        found = re.search(r'"finish_ts": (\d+)', tail)
        self.finish_ts = int(found.group(1)) if found else None
        self.complete = found is not None

    def _node(self, lines: list[str]) -> tuple[str, dict[str, Any]] | None:
        text = "{" + "\n".join(lines) + "}"
        try:
            node: dict[str, Any] = json.loads(text)
            return text, node
        except ValueError:
            pass
        repaired = _repaired(lines)
        if repaired is None:
            self.dropped += 1
            return None
        self.repaired += 1
        return json.dumps(repaired), repaired


def _groups(lines: list[str]) -> list[str]:
    """Lines joined to fields: a newline inside a string does not begin a field of the node."""
    starts = ('        "id": ', '        "inputs": ', '        "outputs": ', '        "attrs": ')
    out: list[str] = []
    for line in lines:
        if line.startswith(starts) or not out:
            out.append(line)
        else:
            out[-1] += "\n" + line
    return out


def _repaired(lines: list[str]) -> dict[str, Any] | None:
    node: dict[str, Any] = {}
    for group in _groups(lines):
        head = _HEAD.match(group)
        if head:
            node["id"], node["name"], node["ctrl_deps"] = int(head[1]), head[2], int(head[3])
            continue
        field = _FIELD.match(group)
        if field is None:
            return None
        value = _value(field[2])
        # The place of a value that cannot be read is kept: readers look for the key.
        node[field[1]] = value if value is not None else ([] if field[1] == "attrs" else dict(_NO_VALUES))
    return node if "id" in node else None


_NO_VALUES: dict[str, list[Any]] = {"values": [], "shapes": [], "types": [], "strides": []}


def _value(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        pass
    try:
        return json.loads(_STRING.sub(_escaped, text), strict=False)
    except ValueError:
        return None


def _escaped(match: re.Match[str]) -> str:
    inner = _GOOD_ESCAPE.sub(r"\\\\", match[1])
    return '"' + re.sub(r'(?<!\\)"', r"\"", inner) + '"'
