"""Message classes of Chakra's wire format, from the compiled form of chakra.proto.

`chakra.desc` is what protoc makes of it (`make chakra-descriptor`); a test compares the two. Unlike a
generated Python module it is not tied to one version of the protobuf library.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dftracer._packages import need

__all__ = ["messages"]

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
