"""Writes nested mappings, lists and plain values as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["dump"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./+-]*")
# No part of a YAML stream, or a line break in it.
_ODD = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff]")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def dump(value: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """The text; `comments` by dotted path stand behind the key."""
    return "\n".join(_mapping(value, 0, "", comments or {})) + "\n"


def _scalar(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return json.dumps(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return _ODD.sub(lambda m: f"\\u{ord(m[0]):04x}", json.dumps(text, ensure_ascii=False))


def _mapping(value: Mapping[str, Any], depth: int, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    pad = "  " * depth
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        remark = f"  # {comments[where]}" if where in comments else ""
        if isinstance(item, Mapping) and item:
            yield f"{pad}{_scalar(key)}:{remark}"
            yield from _mapping(item, depth + 1, where, comments)
        elif isinstance(item, (list, tuple)) and item:
            yield f"{pad}{_scalar(key)}:{remark}"
            for each in item:
                yield f"{pad}  - {_scalar(each)}"
        elif isinstance(item, (list, tuple, Mapping)):
            yield f"{pad}{_scalar(key)}: {'{}' if isinstance(item, Mapping) else '[]'}{remark}"
        else:
            yield (
                f"{pad}{_scalar(key)}: {_scalar(item)}{remark}".rstrip()
                if not remark
                else (f"{pad}{_scalar(key)}: {_scalar(item)}".rstrip() + remark)
            )
