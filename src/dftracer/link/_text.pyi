"""What linking does byte by byte."""

from typing import Any, TypeAlias

# `collections.abc.Buffer` is newer than the oldest Python we run on.
_AnyBuffer: TypeAlias = Any
_Column: TypeAlias = bytes | tuple[str, _AnyBuffer] | tuple[str, _AnyBuffer, Any]

def parse_nodes(text: bytes, /) -> dict[str, Any] | None: ...
def parse_events(text: bytes, /) -> dict[str, Any] | None: ...
def join_columns(columns: list[_Column], rows: _AnyBuffer, /) -> tuple[bytes, bytes]: ...
