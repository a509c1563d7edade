"""The vocabulary of the annotations as enums: categories, their events, and types of argument values.

The tree writes the same words as plain text: importing `enum` takes longer than everything else here, so
that programs which only annotate do without this module.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any


class StringEnum(StrEnum):
    """Members that are their own text; `auto()` is the name, small."""


class ProfileCategory(StringEnum):
    """The categories of the `ai` tree."""

    COMPUTE = "compute"
    DATA = "data"
    DATALOADER = "dataloader"
    COMM = "comm"
    DEVICE = "device"
    CHECKPOINT = "checkpoint"
    PIPELINE = "pipeline"
    OTHER = "other"


class ComputeEvent(StringEnum):
    """Work of the model."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class DataEvent(StringEnum):
    """Making samples."""

    PREPROCESS = "preprocess"
    ITEM = "item"


class DataLoaderEvent(StringEnum):
    """Getting batches."""

    FETCH = "fetch"


class CommunicationEvent(StringEnum):
    """Communicating with other ranks."""

    SEND = "send"
    RECEIVE = "receive"
    BARRIER = "barrier"
    BCAST = "bcast"
    REDUCE = "reduce"
    ALL_REDUCE = "all_reduce"
    GATHER = "gather"
    ALL_GATHER = "all_gather"
    SCATTER = "scatter"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"


class DeviceEvent(StringEnum):
    """Moving data between host and device."""

    TRANSFER = "transfer"


class CheckpointEvent(StringEnum):
    """Saving and loading state."""

    CAPTURE = "capture"
    RESTART = "restart"


class PipelineEvent(StringEnum):
    """The phases of a run."""

    EPOCH = "epoch"
    TRAIN = "train"
    EVALUATE = "evaluate"
    TEST = "test"


class IOEvent(StringEnum):
    """Storage operations."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    CLOSE = "close"


class OtherEvent(StringEnum):
    """Anything else."""

    LOG = "log"


# --- Typed argument values, as clients of the native interface pass them


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
