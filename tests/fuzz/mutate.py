"""Small damage, reproducible: the same seed gives the same bytes."""

from __future__ import annotations

import gzip
import random
import re
import struct
import zlib
from collections.abc import Callable

__all__ = ["mutated"]

# What a parser of JSON, YAML or numbers may trip over.
_TOKENS = [
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'""',
    b"-1",
    b"0",
    b"1.5",
    b"-0.0",
    b"1e999",
    b"-1e999",
    b"NaN",
    b"Infinity",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551616",
    b"9" * 5000,
    b'"\\ud800"',
    b'"\\u0000"',
    b'"\xff\xfe\x00"',
    b'"' + b"x" * 3000 + b'"',
    b"[" * 3000,
    b'{"a":' * 3000,
    b'"../../etc/passwd"',
    b'{"name":"x"}',
    b"[[1,2],[3]]",
    b"\\",
    b'"',
    b"\n",
    b"\0",
]
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|true|false|null')
_MAGIC = b"\x1f\x8b\x08"


def mutated(seed: bytes, rng: random.Random) -> bytes:
    """`seed` with a few injuries; of compressed text also of the text inside."""
    if seed.startswith(_MAGIC) and rng.random() < 0.7:
        try:
            text = gzip.decompress(seed)
        except (OSError, EOFError, zlib.error):
            return _injured(seed, rng, _BYTES)
        return _packed(_injured(text, rng, _BYTES + _TEXT * 2), rng)
    return _injured(seed, rng, _BYTES + (_TEXT * 2 if not seed.startswith(_MAGIC) else []))


def _injured(data: bytes, rng: random.Random, kinds: list[_Injury]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        data = rng.choice(kinds)(data, rng)
    return data[: 1 << 20]


def _packed(text: bytes, rng: random.Random) -> bytes:
    """Gzip members of the text: as other programs write them, or with a note that may lie."""
    how = rng.random()
    if how < 0.3:
        return gzip.compress(text, 1, mtime=0)
    cut = rng.randrange(len(text) + 1) if text else 0
    return b"".join(_noted(part, rng if how > 0.8 else None) for part in (text[:cut], text[cut:]) if part)


def _noted(text: bytes, liar: random.Random | None) -> bytes:
    body = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = body.compress(text) + body.flush()
    facts = [56 + len(packed), len(text), text.count(b"\n"), 0, 0, 0]
    if liar is not None:
        facts[liar.randrange(3)] = liar.choice((0, 1, 17, 64, 1 << 20, (1 << 32) - 1))
        facts[4], facts[5] = liar.choice(((0, 0), (1, (1 << 64) - 1), ((1 << 64) - 1, 1)))
    head = _MAGIC + b"\x04\0\0\0\0\0\xff" + struct.pack("<H2sHIIIIQQ", 36, b"DF", 32, *facts)
    return head + packed + struct.pack("<II", zlib.crc32(text), len(text))


_Injury = Callable[[bytes, random.Random], bytes]


def _place(data: bytes, rng: random.Random) -> int:
    return rng.randrange(len(data)) if data else 0


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = _place(data, rng)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.choice((1, 2, 4, 8, 64))
    return data[:at] + rng.randbytes(size) + data[at + size :]


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _delete(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + data[at + rng.choice((1, 2, 10, 100, 1000)) :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice((rng.randbytes(5), b"\0" * 40, _MAGIC, b"\xff" * 8)) + data[at:]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    at, size = _place(data, rng), rng.choice((4, 40, 400))
    return data[: at + size] + data[at : at + size] * rng.choice((1, 3)) + data[at + size :]


def _value(data: bytes, rng: random.Random) -> bytes:
    """Another value in the place of one."""
    found = [m.span() for m in _VALUE.finditer(data)]
    if not found:
        return data
    low, high = rng.choice(found)
    return data[:low] + rng.choice(_TOKENS) + data[high:]


def _token(data: bytes, rng: random.Random) -> bytes:
    at = _place(data, rng)
    return data[:at] + rng.choice(_TOKENS) + data[at:]


def _swap(data: bytes, rng: random.Random) -> bytes:
    """Two values change places: right in themselves, wrong where they are."""
    found = [m.span() for m in _VALUE.finditer(data)]
    if len(found) < 2:
        return data
    (a, b), (c, d) = sorted(rng.sample(found, 2))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


_BYTES: list[_Injury] = [_flip, _overwrite, _truncate, _delete, _insert, _repeat]
_TEXT: list[_Injury] = [_value, _value, _value, _token, _swap, _lines]
