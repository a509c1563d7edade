"""Hashes that stand for hosts, paths and strings."""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["as_hash", "string_hash"]


def string_hash(text: str) -> str:
    """Hash a string the way traces do: every second byte of its MD5."""
    data = text.encode("utf-8", "surrogateescape")
    return hashlib.md5(data, usedforsecurity=False).digest()[::2].hex()


def as_hash(value: Any) -> str:
    """Integers of DFTracer 1.0.5-1.0.8 become 16 hex digits; a raw string of the 2023 dialect stays."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) not in (0, 16):
        value = int(value) if len(value) <= 20 else value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value & 0xFFFF_FFFF_FFFF_FFFF:016x}"
    return value if isinstance(value, str) else str(value)
