"""Output in the requested encoding: our own symbols that it lacks become ASCII."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ascii_is_asked_for", "fit_streams", "has_unicode", "in_stream_encoding", "original_environment"]

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
        pairs = Path("/proc/self/environ").read_bytes().split(b"\0")
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
