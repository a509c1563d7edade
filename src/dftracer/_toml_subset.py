"""The part of TOML that settings files use, for Python 3.10 without tomli.

Tables, dotted keys, whole numbers, floats, booleans; strings, arrays and inline tables on one line. Anything
else (multi-line strings, dates, arrays of tables) is rejected with its line number.
"""

from __future__ import annotations

import json
import re

__all__ = ["TomlError", "loads"]

_KEY = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')[ \t]*""")
_NUMBER = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)(\.[0-9](?:_?[0-9])*)?([eE][+-]?[0-9]+)?(?=[ \t,\]}#]|$)")
_WORD = re.compile(r"(?:true|false)(?=[ \t,\]}#]|$)")
_BASIC_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(U[0-9A-Fa-f]{8}|.)")
_MAX_DEPTH = 50


class TomlError(ValueError):
    """Text outside the subset, with its line."""


def loads(text: str) -> dict[str, object]:
    """The document as nested dicts."""
    root: dict[str, object] = {}
    table = root
    opened: set[tuple[str, ...]] = set()
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.strip(" \t")
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                keys, end = _dotted(line, 1)
                if line[end : end + 1] != "]":
                    raise TomlError("a table header that is not closed")
                _expect_end(line, end + 1)
                if tuple(keys) in opened:
                    raise TomlError(f"table {'.'.join(keys)!r} appears twice")
                opened.add(tuple(keys))
                table = _descend(root, keys)
            else:
                keys, end = _dotted(line, 0)
                if line[end : end + 1] != "=":
                    raise TomlError("expected 'key = value'")
                value, end = _value(line, _blanks(line, end + 1), 0)
                _expect_end(line, end)
                _assign(table, keys, value)
        except TomlError as error:
            raise TomlError(f"line {number}: {error}") from None
    return root


def _dotted(line: str, at: int) -> tuple[list[str], int]:
    keys: list[str] = []
    while True:
        match = _KEY.match(line, at)
        if match is None:
            raise TomlError("expected a key")
        bare, basic, literal = match.groups()
        keys.append(bare if bare is not None else _unescape(basic) if basic is not None else literal)
        at = match.end()
        if line[at : at + 1] != ".":
            return keys, at
        at += 1


def _descend(table: dict[str, object], keys: list[str]) -> dict[str, object]:
    for key in keys:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise TomlError(f"{key!r} is a value and a table")
        table = inner
    return table


def _assign(table: dict[str, object], keys: list[str], value: object) -> None:
    inner = _descend(table, keys[:-1])
    if keys[-1] in inner:
        raise TomlError(f"{keys[-1]!r} appears twice")
    inner[keys[-1]] = value


def _value(line: str, at: int, depth: int) -> tuple[object, int]:
    if depth > _MAX_DEPTH:
        raise TomlError("nested too deeply")
    first = line[at : at + 1]
    if line.startswith(('"""', "'''"), at):
        raise TomlError("strings over several lines are not supported")
    if first == '"':
        match = _BASIC_STRING.match(line, at)
        if match is None:
            raise TomlError("a quote is not closed on its line")
        return _unescape(match.group(1)), match.end()
    if first == "'":
        end = line.find("'", at + 1)
        if end == -1:
            raise TomlError("a quote is not closed on its line")
        return line[at + 1 : end], end + 1
    if first == "[":
        return _array(line, at, depth)
    if first == "{":
        return _inline_table(line, at, depth)
    word = _WORD.match(line, at)
    if word is not None:
        return word.group() == "true", word.end()
    match = _NUMBER.match(line, at)
    if match is None:
        raise TomlError(f"{line[at : at + 20]!r} is not a supported value; text needs quotes")
    digits = match.group().replace("_", "")
    return (float(digits) if match.group(1) or match.group(2) else int(digits)), match.end()


def _array(line: str, at: int, depth: int) -> tuple[list[object], int]:
    items: list[object] = []
    at = _blanks(line, at + 1)
    while line[at : at + 1] != "]":
        item, at = _value(line, at, depth + 1)
        items.append(item)
        at = _separator(line, at, "]")
    return items, at + 1


def _inline_table(line: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    table: dict[str, object] = {}
    at = _blanks(line, at + 1)
    while line[at : at + 1] != "}":
        keys, at = _dotted(line, at)
        if line[at : at + 1] != "=":
            raise TomlError("expected 'key = value'")
        value, at = _value(line, _blanks(line, at + 1), depth + 1)
        _assign(table, keys, value)
        at = _separator(line, at, "}")
    return table, at + 1


def _blanks(line: str, at: int) -> int:
    while line[at : at + 1] in (" ", "\t"):
        at += 1
    return at


def _separator(line: str, at: int, closing: str) -> int:
    at = _blanks(line, at)
    if line[at : at + 1] == ",":
        return _blanks(line, at + 1)
    if line[at : at + 1] != closing:
        raise TomlError(f"expected ',' or {closing!r}")
    return at


def _expect_end(line: str, at: int) -> None:
    rest = line[at:].strip(" \t")
    if rest and not rest.startswith("#"):
        raise TomlError(f"unexpected {rest[:20]!r} after the value")


def _unescape(body: str) -> str:
    """TOML's escapes are JSON's, except for the eight digits of a capital U."""
    if "\\" not in body:
        return body
    try:
        return str(json.loads('"' + _ESCAPE.sub(_as_json, body) + '"', strict=False))
    except (ValueError, OverflowError):
        raise TomlError("an unknown escape in a string") from None


def _as_json(found: re.Match[str]) -> str:
    escape = found.group(1)
    if escape == "/":
        raise ValueError(escape)
    return json.dumps(chr(int(escape[1:], 16)))[1:-1] if escape[0] == "U" else found.group()
