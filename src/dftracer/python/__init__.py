"""The annotations: `from dftracer.python import dftracer, ai`."""

from __future__ import annotations

from dftracer import _session
from dftracer.python._dft_fn import dft_fn
from dftracer.python._events import (
    CheckpointEvent,
    CommunicationEvent,
    ComputeEvent,
    DataEvent,
    DataLoaderEvent,
    DeviceEvent,
    IOEvent,
    PipelineEvent,
    ProfileCategory,
)
from dftracer.python._names import (
    BLOCK_NAME,
    CTX_SEPARATOR,
    INIT_NAME,
    ITER_COUNT_NAME,
    ITER_NAME,
    get_iter_block_name,
    get_iter_handle_name,
)
from dftracer.python._recorder import dftracer
from dftracer.python._tags import TagDType, TagType, TagValue
from dftracer.python._tree import (
    DFTracerAI,
    ai,
    checkpoint,
    comm,
    compute,
    data,
    dataloader,
    device,
    pipeline,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.python import dynamo
    from dftracer.python.dynamo import Dynamo, create_backend, dftracer_dynamo_backend

DFTRACER_ENABLE: bool = _session.SETTINGS.enable
DFTRACER_INIT_PRELOAD: bool = _session.SETTINGS.init == "PRELOAD"
DFTRACER_LOG_LEVEL: str = _session.SETTINGS.log_level

if DFTRACER_ENABLE:
    from dftracer.python import _decorate  # noqa: F401 - tells the core how to decorate

__all__ = [
    "BLOCK_NAME",
    "CTX_SEPARATOR",
    "DFTRACER_ENABLE",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
    "INIT_NAME",
    "ITER_COUNT_NAME",
    "ITER_NAME",
    "CheckpointEvent",
    "CommunicationEvent",
    "ComputeEvent",
    "DFTracerAI",
    "DataEvent",
    "DataLoaderEvent",
    "DeviceEvent",
    "Dynamo",
    "IOEvent",
    "PipelineEvent",
    "ProfileCategory",
    "TagDType",
    "TagType",
    "TagValue",
    "ai",
    "checkpoint",
    "comm",
    "compute",
    "create_backend",
    "data",
    "dataloader",
    "device",
    "dft_fn",
    "dftracer",
    "dftracer_dynamo_backend",
    "dynamo",
    "get_iter_block_name",
    "get_iter_handle_name",
    "pipeline",
]

# What needs torch is found when asked for: importing this package never imports it.
_DYNAMO = ("Dynamo", "create_backend", "dftracer_dynamo_backend", "dynamo")


def __getattr__(name: str) -> object:
    if name in _DYNAMO:
        from importlib import import_module  # noqa: PLC0415

        module = import_module("dftracer.python.dynamo")
        return module if name == "dynamo" else getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
