"""Message classes from our own schema file, made by the protobuf library when they are needed.

The file is the only place where the format is written down: no generated module that may be older than
it, and none that is tied to one version of the library. Read here is the part of the language that the
file uses.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from dftracer.load._need import need

__all__ = ["messages"]

_SCHEMA = Path(__file__).with_name("chakra.proto")
_BLOCK = re.compile(r"(message|enum)\s+(\w+)\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FIELD = re.compile(r"(repeated\s+)?(\w+)\s+(\w+)\s*=\s*(\d+)\s*;")
_ONEOF = re.compile(r"oneof\s+(\w+)\s*\{(.*?)\}", re.DOTALL)
_VALUE = re.compile(r"(\w+)\s*=\s*(\d+)\s*;")


@cache
def messages() -> dict[str, Any]:
    """All message classes of the schema by name."""
    descriptor = need("google.protobuf.descriptor_pb2", "link")
    pools = need("google.protobuf.descriptor_pool", "link")
    factory = need("google.protobuf.message_factory", "link")
    text = re.sub(r"//.*", "", _SCHEMA.read_text(encoding="utf-8"))
    package = re.search(r"package\s+(\w+)\s*;", text)
    name = package.group(1) if package else ""
    file = descriptor.FileDescriptorProto(name="dftracer/link/chakra.proto", package=name, syntax="proto3")
    blocks = _BLOCK.findall(text)
    enums = {title for kind, title, _ in blocks if kind == "enum"}
    for kind, title, body in blocks:
        if kind == "enum":
            enum = file.enum_type.add(name=title)
            for value, number in _VALUE.findall(body):
                enum.value.add(name=value, number=int(number))
            continue
        message = file.message_type.add(name=title)
        for oneof in _ONEOF.finditer(body):
            message.oneof_decl.add(name=oneof.group(1))
            _add_fields(descriptor, message, oneof.group(2), enums, name, len(message.oneof_decl) - 1)
        _add_fields(descriptor, message, _ONEOF.sub("", body), enums, name, None)
    pool = pools.DescriptorPool()
    pool.Add(file)
    return {
        m.name: factory.GetMessageClass(pool.FindMessageTypeByName(f"{name}.{m.name}"))
        for m in file.message_type
    }


def _add_fields(
    descriptor: Any, message: Any, body: str, enums: set[str], package: str, oneof: int | None
) -> None:
    kinds = descriptor.FieldDescriptorProto
    for repeated, kind, name, number in _FIELD.findall(body):
        field = message.field.add(
            name=name, number=int(number), label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        )
        plain = getattr(kinds, f"TYPE_{kind.upper()}", None)
        if plain is not None:
            field.type = plain
        else:
            field.type = kinds.TYPE_ENUM if kind in enums else kinds.TYPE_MESSAGE
            field.type_name = f".{package}.{kind}"
        if oneof is not None:
            field.oneof_index = oneof
