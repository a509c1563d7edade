"""Kineto's file event by event, so that a large one is never in memory as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["KinetoText", "as_kineto_writes"]

_EVENT_BEGIN, _EVENT_END = "  {", ("  }", "  },")
_NAME = re.compile(r'^    "name": "(.*)",$')
_BASE = re.compile(r'"baseTimeNanoseconds": (\d+)')


def as_kineto_writes(name: str) -> str:
    """What becomes of a name in Kineto's file: no newlines, no backslashes, nothing but ASCII."""
    flat = name.replace("\n", "").replace("\\", "/")
    return flat if flat.isascii() and flat.isprintable() else "unknown"


class KinetoText:
    """Gives the text before the events, each event as (text, object), and the text after them."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.head = ""
        self.tail = ""
        self.base_ns = 0
        self.repaired = 0
        self.dropped = 0
        self.complete = False

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every event, in the order of the file; one that is not valid JSON is skipped and counted."""
        self._read_head()
        event: list[str] | None = None
        for line in self._lines:
            text = line.rstrip("\n")
            if event is None:
                if text == _EVENT_BEGIN:
                    event = []
                elif text.startswith("  ]"):
                    self.tail = text + "".join(self._lines)
                    self.complete = True
                    return
            elif text in _EVENT_END:
                found = self._event(event)
                event = None
                if found is not None:
                    yield found
            else:
                event.append(text)

    def _event(self, lines: list[str]) -> tuple[str, dict[str, Any]] | None:
        whole = "{" + "\n".join(lines) + "}"
        try:
            return whole, json.loads(whole)
        except ValueError:
            pass
        repaired = [_NAME.sub(lambda m: f'    "name": {json.dumps(m[1])},', line) for line in lines]
        whole = "{" + "\n".join(repaired) + "}"
        try:
            event = json.loads(whole, strict=False)
        except ValueError:
            self.dropped += 1
            return None
        self.repaired += 1
        return json.dumps(event), event

    def _read_head(self) -> None:
        head: list[str] = []
        for line in self._lines:
            head.append(line)
            if line.strip().endswith('"traceEvents": ['):
                break
        self.head = "".join(head)
        found = _BASE.search(self.head)
        self.base_ns = int(found.group(1)) if found else 0
