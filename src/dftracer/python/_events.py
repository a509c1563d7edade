"""The vocabulary: categories and the events of each."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "CheckpointEvent",
    "CommunicationEvent",
    "ComputeEvent",
    "DataEvent",
    "DataLoaderEvent",
    "DeviceEvent",
    "IOEvent",
    "OtherEvent",
    "PipelineEvent",
    "ProfileCategory",
    "StringEnum",
]


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
