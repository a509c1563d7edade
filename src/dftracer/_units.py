"""Numbers for people."""

from __future__ import annotations

__all__ = ["bytes_text", "count_text", "counted", "plural", "seconds_text"]


def seconds_text(s: float) -> str:
    """A duration with about three digits."""
    if s >= 120:
        minutes, rest = divmod(s, 60)
        hours, minutes = divmod(int(minutes), 60)
        return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02.0f} s"
    if s >= 1:
        return f"{s:.2f} s"
    if s >= 1e-3:
        return f"{s * 1e3:.3g} ms"
    return f"{s * 1e6:.3g} us" if s > 0 else "0 s"


def plural(n: int, noun: str, many: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{n} {noun}" if n == 1 else f"{n} {many or noun + 's'}"


def counted(n: int, noun: str, many: str | None = None) -> str:
    """`1 event`, `12 345 events`."""
    return f"{count_text(n)} {noun if n == 1 else many or noun + 's'}"


def bytes_text(n: float) -> str:
    """A size in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def count_text(n: int) -> str:
    """A count with thin separators."""
    return f"{n:,}".replace(",", " ")
