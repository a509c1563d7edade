"""The protocol of plug-ins: anything that adds a metric file of its own to a collection."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Context", "Plugin", "write_output"]


@dataclass
class Context:
    """What a plug-in may know of the collection it belongs to."""

    directory: str
    torch: Any
    time_ns: Callable[[], int]
    warn: Callable[[str], None]
    compress: bool


class Plugin:
    """Override what you need. A method that raises switches this plug-in off; training goes on.

    `finish` gives what is written: a mapping or list becomes `<name>_<rank>.json[.gz]`, any other iterable
    `<name>_<rank>.jsonl[.gz]` with one record a line, None writes nothing.
    """

    name = "plugin"

    def start(self, context: Context) -> None:
        """The collection begins."""

    def window_start(self, index: int, step: int) -> None:
        """A window begins with this step."""

    def window_end(self, index: int, step: int) -> None:
        """A window has ended with this step."""

    def step(self, step: int) -> None:
        """A step has ended."""

    def finish(self) -> Mapping[str, Any] | list[Any] | Iterable[Any] | None:
        """The collection ends: what to write."""
        return None


def write_output(stem: str, content: Any, compress: bool) -> str:
    """Write what `finish` gave; the path of the file."""
    whole = isinstance(content, (Mapping, list, tuple, str, int, float))
    path = stem + (".json" if whole else ".jsonl") + (".gz" if compress else "")
    part = path + ".part"
    with open(part, "wb") as raw:
        packed = gzip.GzipFile("", "wb", 5, raw) if compress else raw
        for record in [content] if whole else content:
            packed.write(json.dumps(record, default=str).encode() + b"\n")
        if packed is not raw:
            packed.close()
    os.replace(part, path)
    return path
