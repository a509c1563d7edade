"""The compiled schema is the schema."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

import dftracer.link

FOLDER = Path(dftracer.link.__file__).parent


def test_the_compiled_schema_is_fresh(tmp_path: Path) -> None:
    made = tmp_path / "chakra.desc"
    arguments = ["protoc", f"-I{FOLDER}", f"--descriptor_set_out={made}", str(FOLDER / "chakra.proto")]
    assert protoc.main(arguments) == 0
    shipped = FileDescriptorSet.FromString((FOLDER / "chakra.desc").read_bytes())
    assert shipped == FileDescriptorSet.FromString(made.read_bytes()), "run: make chakra-descriptor"
