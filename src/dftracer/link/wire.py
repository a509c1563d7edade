"""Chakra's wire format: protobuf messages for whole columns of nodes.

A message is its fields one after the other, so fields that many messages share are made once, and the numbers
of a column are made together: the library writes them as one packed list, which is cut at the known widths.
Every byte comes from the protobuf library; only the joining is ours.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dftracer._packages import need
from dftracer.link._columns import ByteColumn, Flags, Ints, int64s
from dftracer.link._text import join_columns

# What protoc makes of chakra.proto (`make chakra-descriptor`); a test compares the two. Unlike a generated
# Python module it is not tied to one version of the protobuf library.
_COMPILED = Path(__file__).with_name("chakra.desc")


@cache
def messages() -> dict[str, Any]:
    """All message classes of the schema by name."""
    descriptor = need("google.protobuf.descriptor_pb2", "link")
    pools = need("google.protobuf.descriptor_pool", "link")
    factory = need("google.protobuf.message_factory", "link")
    (file,) = descriptor.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file
    pool = pools.DescriptorPool()
    pool.Add(file)
    return {
        m.name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{m.name}"))
        for m in file.message_type
    }


Columns: TypeAlias = "list[Any]"  # what `join_columns` takes
_STEPS = tuple(1 << (7 * k) for k in range(1, 9))
_NEGATIVE_WIDTH = 10


def _widths(values: Ints) -> Ints:
    """The bytes of each number as a varint."""
    width = np.ones(values.size, dtype=np.int64)
    largest = int(values.max()) if values.size else 0
    for step in _STEPS:
        if step > largest:
            break
        width += values >= step
    width[values < 0] = _NEGATIVE_WIDTH
    return width


def _payload(values: Ints) -> bytes:
    """All numbers as varints in a row."""
    if not values.size:
        return b""
    packed: bytes = messages()["Int64List"](values=values.tolist()).SerializeToString()
    return packed[len(packed) - int(_widths(values).sum()) :]


def varints(values: Ints, present: Flags | None = None) -> ByteColumn:
    """Each number as a varint; nothing if it is not present. Negative ones as in `int64` fields."""
    width = _widths(values)
    if present is not None:
        width = np.where(present, width, 0)
        values = values[present]
    return ByteColumn(_payload(values), np.cumsum(width))


def coded(codes: Any, pieces: list[bytes]) -> tuple[str, Any, list[bytes]]:
    """One of a few pieces for each row."""
    return ("codes", np.ascontiguousarray(codes, dtype=np.int32), pieces)


def join(columns: Columns, rows: Ints) -> ByteColumn:
    """The columns side by side."""
    text, ends = join_columns(columns, np.ascontiguousarray(rows, dtype=np.int64))
    return ByteColumn(text, int64s(ends))


def tag_of(message: str, **field: Any) -> bytes:
    """The tag of a field, from a message with only this field; its number must fit one byte."""
    text: bytes = messages()[message](**field).SerializeToString()
    return text[:1]


def delimited(tag: bytes, column: ByteColumn) -> Columns:
    """Texts or messages as a field: tag, length, content."""
    lengths = np.diff(column.ends, prepend=0)
    return [tag, varints(lengths).slices, column.slices]


def number_field(name: str, values: Ints) -> Columns:
    """A number of the node; as the library does, nothing for 0."""
    present = values != 0
    tag = tag_of("Node", **{name: 1})
    return [coded(present, [b"", tag]), varints(values, present).slices]


def packed_field(name: str, targets: Ints, values: Ints, n: int) -> Columns:
    """For each of `n` nodes its list of numbers; `targets` are sorted."""
    width = np.bincount(targets, weights=_widths(values), minlength=n).astype(np.int64)
    tag = tag_of("Node", **{name: [1]})
    lengths, codes = np.unique(width, return_inverse=True)
    sizes = varints(lengths)
    pieces = [tag + size if length else b"" for length, size in zip(lengths.tolist(), sizes, strict=True)]
    return [coded(codes, pieces), ByteColumn(_payload(values), np.cumsum(width)).slices]


def attribute(name: str, **value: Any) -> bytes:
    """An attribute of a node, with its tag."""
    m = messages()
    clean = {k: _text(v) if isinstance(v, str) else v for k, v in value.items()}
    piece: bytes = m["Node"](attr=[m["AttributeProto"](name=_text(name), **clean)]).SerializeToString()
    return piece


def _text(text: str) -> str:
    """Text that can be written: damaged files contain partial characters."""
    return text.encode("utf-8", "replace").decode()


def attribute_columns(name: str, field: str, values: Ints, present: Flags | None = None) -> Columns:
    """An attribute that differs from node to node."""
    column = varints(values, present)
    width = np.diff(column.ends, prepend=0)
    heads = [b""] * (_NEGATIVE_WIDTH + 1)
    there, first = np.unique(width, return_index=True)
    for size, row in zip(there.tolist(), first.tolist(), strict=True):
        if size:
            whole = attribute(name, **{field: int(values[row])})
            heads[size] = whole[: len(whole) - size]
    return [coded(width, heads), column.slices]
