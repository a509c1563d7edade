"""Typed argument values, as clients of the native interface pass them."""

from __future__ import annotations

from enum import Enum
from typing import Any

__all__ = ["TagDType", "TagType", "TagValue", "plain"]


class TagDType(Enum):
    """What an argument's value is."""

    INT = 0
    FLOAT = 1
    STRING = 2

    def __int__(self) -> int:
        return int(self.value)


class TagType(Enum):
    """What an argument is for."""

    KEY = 0
    VALUE = 1
    IGNORE = 2

    def __int__(self) -> int:
        return int(self.value)


_CONVERT: dict[TagDType, type[Any]] = {TagDType.INT: int, TagDType.FLOAT: float, TagDType.STRING: str}


class TagValue:
    """A value with its type and purpose."""

    def __init__(
        self, value: Any, dtype: TagDType = TagDType.STRING, tag_type: TagType = TagType.KEY
    ) -> None:
        self._value = value
        self._dtype = dtype
        self._tag_type = tag_type

    def value(self) -> tuple[int, Any]:
        """The pair (purpose, value of the declared type)."""
        return int(self._tag_type), _CONVERT[self._dtype](self._value)


def plain(value: Any) -> Any:
    """The value itself of a TagValue, of a (purpose, value) pair, or of anything else."""
    if isinstance(value, TagValue):
        return value.value()[1]
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (int, TagType)):
        return value[1]
    return value
