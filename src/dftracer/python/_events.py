"""The vocabulary: categories and the events of each."""

from __future__ import annotations

from enum import Enum

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
]


class _Word(str, Enum):
    """A member that is its own text (enum.StrEnum came with Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class ProfileCategory(_Word):
    """The categories of the `ai` tree."""

    COMPUTE = "compute"
    DATA = "data"
    DATALOADER = "dataloader"
    COMM = "comm"
    DEVICE = "device"
    CHECKPOINT = "checkpoint"
    PIPELINE = "pipeline"
    OTHER = "other"


class ComputeEvent(_Word):
    """Work of the model."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class DataEvent(_Word):
    """Making samples."""

    PREPROCESS = "preprocess"
    ITEM = "item"


class DataLoaderEvent(_Word):
    """Getting batches."""

    FETCH = "fetch"


class CommunicationEvent(_Word):
    """Talking to other ranks."""

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


class DeviceEvent(_Word):
    """Moving data between host and device."""

    TRANSFER = "transfer"


class CheckpointEvent(_Word):
    """Saving and loading state."""

    CAPTURE = "capture"
    RESTART = "restart"


class PipelineEvent(_Word):
    """The phases of a run."""

    EPOCH = "epoch"
    TRAIN = "train"
    EVALUATE = "evaluate"
    TEST = "test"


class IOEvent(_Word):
    """What storage is asked to do."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    CLOSE = "close"


class OtherEvent(_Word):
    """What fits nowhere else."""

    LOG = "log"
