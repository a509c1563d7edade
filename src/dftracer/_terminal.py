"""Untrusted text on a terminal: a name in a trace must not move the cursor or type for the user."""

from __future__ import annotations

import contextlib
import os
import re
import sys

TYPE_CHECKING = False  # `typing` alone takes longer to load than the rest of this
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, TextIO

__all__ = ["escape_controls", "safe_console", "shown_output"]

# C0 but tab and newline, DEL and C1, and what changes the direction of the text around it.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """`text` with every control character written out; those that JSON allows, as JSON would."""
    return _CONTROLS.sub(lambda m: f"\\x{ord(m[0]):02x}" if m[0] < " " else f"\\u{ord(m[0]):04x}", text)


class _ShownStream:
    """A text stream that shows control characters instead of sending them; otherwise like the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich has colours to send: safe_console() looks after its text

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _nowhere() -> TextIO:
    """For a stream that was closed before we started: `print` would choose another."""
    return open(os.devnull, "w", encoding="utf-8")


@contextlib.contextmanager
def shown_output() -> Iterator[None]:
    """Inside this context, nothing that is printed reaches the terminal as a command."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_ShownStream(s or _nowhere()) for s in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def safe_console(**options: Any) -> Any:
    """A rich console that shows control characters in what it is given."""
    from rich.console import Console  # noqa: PLC0415 - only where something is printed in colour
    from rich.segment import Segment  # noqa: PLC0415

    class SafeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or not _CONTROLS.search(segment.text):
                    yield segment
                else:
                    yield Segment(escape_controls(segment.text), segment.style)

    if "file" not in options:
        stream = sys.stderr if options.get("stderr") else sys.stdout
        options["file"] = getattr(stream, "rich_proxied_file", stream)
    return SafeConsole(**options)
