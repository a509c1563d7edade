"""What reaches a terminal: no control characters out of a trace, and only what its encoding has."""

from __future__ import annotations

import codecs
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, TextIO

# --- Untrusted text on a terminal: a name in a trace must not move the cursor or type for the user


# C0 but tab and newline, DEL and C1, and what changes the direction of the text around it.
_CONTROLS = {
    code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"
    for codes in ((0x00, 0x09), (0x0B, 0x20), (0x7F, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A))
    for code in range(*codes)
}


def escape_controls(text: str) -> str:
    """`text` with every control character written out; those that JSON allows, as JSON would."""
    return text if text.isprintable() else text.translate(_CONTROLS)


class _ShownStream:
    """A text stream that shows control characters instead of sending them; otherwise like the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich sends colours: safe_console() escapes its text

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


class _ShownOutput:
    def __enter__(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = (_ShownStream(s or _nowhere()) for s in self._before)

    def __exit__(self, *error: object) -> None:
        sys.stdout, sys.stderr = self._before


def shown_output() -> _ShownOutput:
    """Inside this context, nothing that is printed reaches the terminal as a command."""
    return _ShownOutput()


def safe_console(**options: Any) -> Any:
    """A rich console that shows control characters in what it is given."""
    from rich.console import Console  # noqa: PLC0415 - only where something is printed in colour
    from rich.segment import Segment  # noqa: PLC0415

    class SafeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else escape_controls(segment.text)
                yield segment if text == segment.text else Segment(text, segment.style)

    if "file" not in options:
        stream = sys.stderr if options.get("stderr") else sys.stdout
        options["file"] = getattr(stream, "rich_proxied_file", stream)
    return SafeConsole(**options)


# --- Output in the requested encoding: our own symbols that it lacks become ASCII


_HANDLER = "dftracer.ascii"
# One character for one where the meaning allows it, so that columns stay aligned.
_SIGNS = {
    **dict.fromkeys("█▉▊▋▌▍▎▓▒░■", "#"),
    **dict.fromkeys("▏▕│┃║┆┊", "|"),
    **dict.fromkeys("─━┄┈╌–—", "-"),  # noqa: RUF001
    "═": "=",
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪╔╗╚╝╠╣╦╩╬┏┓┗┛┡┩╇", "+"),
    **dict.fromkeys("▁▂▃▄", "."),
    **dict.fromkeys("▅▆▇", ":"),
    **dict.fromkeys("◀◂←", "<"),
    **dict.fromkeys("▶▸", ">"),
    "→": "->",
    **dict.fromkeys("▲↑", "^"),
    **dict.fromkeys("▼↓", "v"),
    **dict.fromkeys("·•", "*"),
    "…": "~",
    "×": "x",  # noqa: RUF001
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "±": "+-",
    "µ": "u",
    "μ": "u",
    "\u00a0": " ",
    "\u202f": " ",
    "\u2009": " ",
}


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    made = [_SIGNS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text]
    return "".join(made), error.end


codecs.register_error(_HANDLER, _replace)


def ascii_is_asked_for(env: Mapping[str, str] | None = None) -> bool:
    """Whether the user has chosen the C locale; Python then switches to UTF-8, but the terminal does not."""
    given = original_environment() if env is None else env
    if given.get("PYTHONIOENCODING") or given.get("PYTHONUTF8") == "1":
        return False
    chosen = next((given[k] for k in ("LC_ALL", "LC_CTYPE", "LANG") if given.get(k)), "")
    return chosen in ("C", "POSIX")


def original_environment() -> Mapping[str, str]:
    """As the program was started: Python itself writes LC_CTYPE into its environment."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return os.environ
    return {os.fsdecode(k): os.fsdecode(v) for k, _, v in (p.partition(b"=") for p in pairs)}


def fit_streams() -> None:
    """Everything can be printed: symbols become ASCII, file names that are not text are shown escaped."""
    ascii_only = ascii_is_asked_for()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if ascii_only:
                stream.reconfigure(encoding="ascii", errors=_HANDLER)
            else:
                stream.reconfigure(errors=_HANDLER)


def has_unicode(stream: object) -> bool:
    """Whether everything can be written to the stream as it is."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        return codecs.lookup(encoding).name.startswith("utf")
    except LookupError:
        return False


def in_stream_encoding(text: str, stream: object) -> str:
    """Data for programs: what the stream's encoding lacks is escaped, never replaced by another symbol."""
    if has_unicode(stream):
        return text
    encoding = str(getattr(stream, "encoding", "ascii"))
    return text.encode(encoding, "backslashreplace").decode(encoding)
