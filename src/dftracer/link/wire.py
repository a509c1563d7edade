"""Pieces of protobuf messages for whole columns.

A message is its fields one after the other, so a piece that many messages share is made once, and the numbers of a
column are made together: the library writes them as one packed list, which is cut at the known widths. Every byte
comes from the protobuf library; only the joining is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dftracer.link._columns import Ints
from dftracer.link.proto import messages

__all__ = ["Lengths", "attribute", "attribute_column", "packed_column", "varints"]

_STEPS = np.array([1 << (7 * k) for k in range(1, 9)], dtype=np.int64)
_NEGATIVE_WIDTH = 10


def _widths(values: Ints) -> Ints:
    """The bytes of each number as a varint."""
    width: Ints = np.searchsorted(_STEPS, values, side="right").astype(np.int64) + 1
    width[values < 0] = _NEGATIVE_WIDTH
    return width


def _payload(values: Ints) -> tuple[bytes, Ints]:
    """All numbers as varints in a row, and where each ends."""
    if not values.size:
        return b"", np.zeros(0, dtype=np.int64)
    packed: bytes = messages()["Int64List"](values=values.tolist()).SerializeToString()
    ends = np.cumsum(_widths(values))
    return packed[len(packed) - int(ends[-1]) :], ends


def varints(values: Ints) -> list[bytes]:
    """Each number as a varint; negative ones as `int64` fields hold them."""
    text, ends = _payload(values)
    last = ends.tolist()
    return [text[a:b] for a, b in zip([0, *last], last, strict=False)]


class Lengths:
    """A tag and a length, as they stand before text and messages."""

    def __init__(self, tag: bytes, limit: int = 1 << 14) -> None:
        self._tag = tag
        self._known = [tag + v for v in varints(np.arange(limit, dtype=np.int64))]
        self._limit = limit

    def __getitem__(self, length: int) -> bytes:
        if length < self._limit:
            return self._known[length]
        return self._tag + varints(np.array([length], dtype=np.int64))[0]


def tag_of(message: str, **field: Any) -> bytes:
    """The tag of a field, from a message with only this field; its number must have one byte."""
    text: bytes = messages()[message](**field).SerializeToString()
    return text[:1]


def packed_column(field: str, targets: Ints, values: Ints, n: int) -> list[bytes]:
    """For each of `n` nodes the field with its list of numbers, b"" without any; `targets` are sorted."""
    out = [b""] * n
    if not values.size:
        return out
    text, ends = _payload(values)
    last = np.append(np.flatnonzero(targets[1:] != targets[:-1]), targets.size - 1)
    stop = ends[last].tolist()
    head = Lengths(tag_of("Node", **{field: [1]}))
    begin = 0
    for node, end in zip(targets[last].tolist(), stop, strict=True):
        out[node] = head[end - begin] + text[begin:end]
        begin = end
    return out


def attribute(name: str, **value: Any) -> bytes:
    """An attribute of a node, with its tag."""
    m = messages()
    piece: bytes = m["Node"](attr=[m["AttributeProto"](name=name, **value)]).SerializeToString()
    return piece


def attribute_column(name: str, field: str, values: Ints) -> list[bytes]:
    """An attribute that differs from node to node, as a column of pieces."""
    heads: dict[int, bytes] = {}
    pieces = varints(values)
    for value, piece in zip(values.tolist(), pieces, strict=True):
        if len(piece) not in heads:
            whole = attribute(name, **{field: value})
            heads[len(piece)] = whole[: len(whole) - len(piece)]
        if len(heads) == _NEGATIVE_WIDTH:
            break
    return [heads[len(p)] + p for p in pieces]


def text_pieces(texts: Sequence[str], make: Callable[[str], Any]) -> list[bytes]:
    """One serialised message for each different text."""
    return [make(t).SerializeToString() for t in texts]
