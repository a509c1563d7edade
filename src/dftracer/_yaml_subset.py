"""The part of YAML that settings files use, for programs without PyYAML.

Nested mappings, lists, flow collections, quoted and plain scalars, comments. Every scalar is a string, as
with PyYAML's ``BaseLoader``: what a value means is for the table of settings to say. What lies outside of
this part (anchors, tags, block scalars, several documents) is refused with the number of the line.
"""

from __future__ import annotations

__all__ = ["YamlError", "parse"]

_ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    " ": " ",
    '"': '"',
    "/": "/",
    "\\": "\\",
}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_MAX_DEPTH = 50


class YamlError(ValueError):
    """Text outside of the subset, with the line it stands on."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


def parse(text: str) -> object:
    """A dict, list or string; an empty document is an empty string."""
    lines = _significant_lines(text)
    if not lines:
        return ""
    value, after = _block(lines, 0, lines[0].indent, 0)
    if after != len(lines):
        raise YamlError(lines[after].number, "indentation matches no open block")
    return value


class _Line:
    __slots__ = ("indent", "number", "text")

    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number = number
        self.indent = indent
        self.text = text


def _significant_lines(text: str) -> list[_Line]:
    result: list[_Line] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        body = raw.lstrip(" ")
        content = body.rstrip()
        if not content or content.startswith("#"):
            continue
        if content.startswith("\t"):
            raise YamlError(number, "a tab in the indentation")
        if content == "---" and not result:
            continue
        if content in ("---", "...") or content.startswith("%"):
            raise YamlError(number, "directives and further documents are not supported")
        result.append(_Line(number, len(raw) - len(body), content))
    return result


def _block(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[object, int]:
    if depth > _MAX_DEPTH:
        raise YamlError(lines[at].number, "nested too deeply")
    line = lines[at]
    if _is_item(line.text):
        return _sequence(lines, at, indent, depth)
    if _split_key(line) is not None:
        return _mapping(lines, at, indent, depth)
    return _inline(line.text, line.number), at + 1


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _sequence(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[object, int]:
    items: list[object] = []
    while at < len(lines) and lines[at].indent == indent and _is_item(lines[at].text):
        line = lines[at]
        rest = line.text[1:].lstrip(" ")
        if not rest or rest.startswith("#"):
            value, at = _nested(lines, at, indent + 1, depth)
        elif _is_item(rest) or _split_key(_Line(line.number, 0, rest)) is not None:
            # "- key: value" opens a block whose indentation is where the key stands.
            inner = indent + len(line.text) - len(rest)
            lines[at] = _Line(line.number, inner, rest)
            value, at = _block(lines, at, inner, depth + 1)
        else:
            value, at = _inline(rest, line.number), at + 1
        items.append(value)
    _refuse_deeper(lines, at, indent)
    return items, at


def _mapping(lines: list[_Line], at: int, indent: int, depth: int) -> tuple[object, int]:
    result: dict[str, object] = {}
    while at < len(lines) and lines[at].indent == indent:
        line = lines[at]
        split = _split_key(line)
        if split is None:
            raise YamlError(line.number, "expected 'key: value'")
        key, rest = split
        if key in result:
            raise YamlError(line.number, f"{key!r} appears twice")
        if rest:
            result[key], at = _inline(rest, line.number), at + 1
        else:
            # A list may stand at the indentation of its key.
            below = at + 1
            same = below < len(lines) and lines[below].indent == indent and _is_item(lines[below].text)
            result[key], at = _nested(lines, at, indent if same else indent + 1, depth)
    _refuse_deeper(lines, at, indent)
    return result, at


def _nested(lines: list[_Line], at: int, least: int, depth: int) -> tuple[object, int]:
    if at + 1 < len(lines) and lines[at + 1].indent >= least:
        return _block(lines, at + 1, lines[at + 1].indent, depth + 1)
    return "", at + 1


def _refuse_deeper(lines: list[_Line], at: int, indent: int) -> None:
    if at < len(lines) and lines[at].indent > indent:
        raise YamlError(lines[at].number, "unexpected indentation")


def _split_key(line: _Line) -> tuple[str, str] | None:
    """The key and what follows it (comment removed if it is all that follows), None without a key."""
    text = line.text
    if text[0] in "[{":
        return None
    if text[0] in "\"'":
        key, end = _quoted(text, 0, line.number)
        colon = len(text) - len(text[end:].lstrip(" "))
        if colon >= len(text) or text[colon] != ":":
            return None
    else:
        colon = text.find(":")
        while colon != -1 and colon + 1 < len(text) and text[colon + 1] not in " \t":
            colon = text.find(":", colon + 1)
        comment = text.find(" #")
        if colon == -1 or -1 < comment < colon:
            return None
        key = text[:colon].rstrip()
        _refuse_special(key, line.number)
    rest = text[colon + 1 :].strip(" \t")
    return key, "" if rest.startswith("#") else rest


def _inline(text: str, number: int) -> object:
    """The value that begins at the start of `text` and ends with it, but for a comment."""
    if text[0] in "\"'[{":
        value, end = _flow(text, 0, number, 0)
    else:
        comment = text.find(" #")
        end = len(text) if comment == -1 else comment
        value = text[:end].rstrip(" \t")
        _refuse_special(value, number)
        if ": " in value or value.endswith(":"):
            raise YamlError(number, "a ':' inside of a plain value; quote it")
    rest = text[end:]
    if rest.strip(" \t") and not (rest[0] in " \t" and rest.lstrip(" \t").startswith("#")):
        raise YamlError(number, f"unexpected {rest.strip()[:20]!r} after the value")
    return value


def _refuse_special(plain: str, number: int) -> None:
    if not plain:
        raise YamlError(number, "an empty key")
    first, second = plain[0], plain[1:2]
    if first in "&*!|>%@`,]}#" or (first in "?-" and second in ("", " ")):
        raise YamlError(number, f"{plain[:20]!r} is not in the supported part of YAML; quote text")


def _flow(text: str, at: int, number: int, depth: int) -> tuple[object, int]:
    if depth > _MAX_DEPTH:
        raise YamlError(number, "nested too deeply")
    first = text[at]
    if first in "\"'":
        return _quoted(text, at, number)
    if first == "[":
        return _flow_list(text, at, number, depth)
    if first == "{":
        return _flow_mapping(text, at, number, depth)
    return _flow_plain(text, at, number)


def _flow_plain(text: str, at: int, number: int) -> tuple[str, int]:
    end = at
    while end < len(text) and text[end] not in ",[]{}":
        if text[end] == ":" and text[end + 1 : end + 2] in ("", " ", ",", "]", "}"):
            break
        if text[end] == "#" and text[end - 1] in " \t":
            raise YamlError(number, "a comment inside of brackets")
        end += 1
    plain = text[at:end].rstrip(" \t")
    _refuse_special(plain, number)
    return plain, end


def _flow_list(text: str, at: int, number: int, depth: int) -> tuple[list[object], int]:
    items: list[object] = []
    at = _skip_blanks(text, at + 1, number)
    while text[at] != "]":
        item, at = _flow(text, at, number, depth + 1)
        items.append(item)
        at = _skip_separator(text, at, number, "]")
    return items, at + 1


def _flow_mapping(text: str, at: int, number: int, depth: int) -> tuple[dict[str, object], int]:
    result: dict[str, object] = {}
    at = _skip_blanks(text, at + 1, number)
    while text[at] != "}":
        key, at = _quoted(text, at, number) if text[at] in "\"'" else _flow_plain(text, at, number)
        at = _skip_blanks(text, at, number)
        if text[at] != ":":
            raise YamlError(number, f"no value for {key!r}")
        if key in result:
            raise YamlError(number, f"{key!r} appears twice")
        at = _skip_blanks(text, at + 1, number)
        if text[at] in ",}":
            result[key] = ""
        else:
            result[key], at = _flow(text, at, number, depth + 1)
        at = _skip_separator(text, at, number, "}")
    return result, at + 1


def _skip_blanks(text: str, at: int, number: int) -> int:
    while at < len(text) and text[at] in " \t":
        at += 1
    if at >= len(text):
        raise YamlError(number, "a bracket is not closed on its line")
    return at


def _skip_separator(text: str, at: int, number: int, closing: str) -> int:
    at = _skip_blanks(text, at, number)
    if text[at] == ",":
        return _skip_blanks(text, at + 1, number)
    if text[at] != closing:
        raise YamlError(number, f"expected ',' or {closing!r}")
    return at


def _quoted(text: str, at: int, number: int) -> tuple[str, int]:
    quote = text[at]
    parts: list[str] = []
    at += 1
    while at < len(text):
        char = text[at]
        if char == quote == "'" and text[at + 1 : at + 2] == "'":
            parts.append("'")
            at += 2
        elif char == quote:
            return "".join(parts), at + 1
        elif char == "\\" and quote == '"':
            decoded, at = _escape(text, at + 1, number)
            parts.append(decoded)
        else:
            parts.append(char)
            at += 1
    raise YamlError(number, "a quote is not closed on its line")


def _escape(text: str, at: int, number: int) -> tuple[str, int]:
    char = text[at : at + 1]
    if char in _ESCAPES:
        return _ESCAPES[char], at + 1
    digits = _HEX_ESCAPES.get(char, 0)
    code = text[at + 1 : at + 1 + digits]
    try:
        if digits and len(code) == digits:
            return chr(int(code, 16)), at + 1 + digits
    except (ValueError, OverflowError):
        pass
    raise YamlError(number, f"unknown escape \\{char}")
