"""The annotations: `from dftracer.python import dftracer, ai`."""

from __future__ import annotations

import sys

from dftracer import _session
from dftracer.python._dft_fn import dft_fn
from dftracer.python._recorder import dftracer
from dftracer.python._tree import (
    AI,
    BLOCK_NAME,
    CTX_SEPARATOR,
    INIT_NAME,
    IO,
    ITER_COUNT_NAME,
    ITER_NAME,
    ROOT_CAT,
    ROOT_NAME,
    Checkpoint,
    Communication,
    Compute,
    Data,
    DataLoader,
    Device,
    DFTracerAI,
    Other,
    Pipeline,
    ai,
    checkpoint,
    comm,
    compute,
    data,
    dataloader,
    device,
    get_iter_block_name,
    get_iter_handle_name,
    pipeline,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer._version import __version__
    from dftracer.compat import (
        DFTRACER_ENABLE_ENV,
        DFTRACER_INIT_ENV,
        DFTRACER_LOG_LEVEL_ENV,
        DFTRACER_TIME_METRIC_ENV,
        NoOpProfiler,
        ProfilerProtocol,
        get_time_scale,
        setup_logger,
        setup_stream_logger,
    )
    from dftracer.compat.entities import EntityID, EntityRelation, EntityRole, EntityStore
    from dftracer.python._enums import (
        CheckpointEvent,
        CommunicationEvent,
        ComputeEvent,
        DataEvent,
        DataLoaderEvent,
        DeviceEvent,
        IOEvent,
        OtherEvent,
        PipelineEvent,
        ProfileCategory,
        StringEnum,
        TagDType,
        TagType,
        TagValue,
    )
    from dftracer.python.dynamo import Dynamo, create_backend, dftracer_dynamo_backend, dynamo

DFTRACER_ENABLE: bool = _session.SETTINGS.enable
DFTRACER_INIT_PRELOAD: bool = _session.SETTINGS.init == "PRELOAD"
DFTRACER_LOG_LEVEL: str = _session.SETTINGS.log_level

__all__ = [
    "AI",
    "BLOCK_NAME",
    "CTX_SEPARATOR",
    "DFTRACER_ENABLE",
    "DFTRACER_ENABLE_ENV",
    "DFTRACER_INIT_ENV",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
    "DFTRACER_LOG_LEVEL_ENV",
    "DFTRACER_TIME_METRIC_ENV",
    "INIT_NAME",
    "IO",
    "ITER_COUNT_NAME",
    "ITER_NAME",
    "ROOT_CAT",
    "ROOT_NAME",
    "Checkpoint",
    "CheckpointEvent",
    "Communication",
    "CommunicationEvent",
    "Compute",
    "ComputeEvent",
    "DFTracerAI",
    "Data",
    "DataEvent",
    "DataLoader",
    "DataLoaderEvent",
    "Device",
    "DeviceEvent",
    "Dynamo",
    "EntityID",
    "EntityRelation",
    "EntityRole",
    "EntityStore",
    "IOEvent",
    "NoOpProfiler",
    "Other",
    "OtherEvent",
    "Pipeline",
    "PipelineEvent",
    "ProfileCategory",
    "ProfilerProtocol",
    "StringEnum",
    "TagDType",
    "TagType",
    "TagValue",
    "__version__",
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
    "get_time_scale",
    "pipeline",
    "setup_logger",
    "setup_stream_logger",
]

# Imported on first use: what needs torch or `enum`, and what only programs written for other bindings use.
_LATER = {
    "dftracer.python._enums": (
        *("CheckpointEvent", "CommunicationEvent", "ComputeEvent", "DataEvent", "DataLoaderEvent"),
        *("DeviceEvent", "IOEvent", "OtherEvent", "PipelineEvent", "ProfileCategory", "StringEnum"),
        *("TagDType", "TagType", "TagValue"),
    ),
    "dftracer.python.dynamo": ("Dynamo", "create_backend", "dftracer_dynamo_backend", "dynamo"),
    "dftracer.compat.entities": ("EntityID", "EntityRelation", "EntityRole", "EntityStore"),
    "dftracer.compat": (
        *("DFTRACER_ENABLE_ENV", "DFTRACER_INIT_ENV", "DFTRACER_LOG_LEVEL_ENV", "DFTRACER_TIME_METRIC_ENV"),
        *("NoOpProfiler", "ProfilerProtocol", "get_time_scale", "setup_logger", "setup_stream_logger"),
    ),
    "dftracer": ("__version__",),
}


def __getattr__(name: str) -> object:
    for module, names in _LATER.items():
        if name in names:
            from importlib import import_module  # noqa: PLC0415

            return getattr(import_module(module), name)
    return _submodule(__name__, name)


def _submodule(package: str, name: str) -> object:
    try:
        return sys.modules[f"{package}.{name}"]
    except KeyError:
        raise AttributeError(f"module {package!r} has no attribute {name!r}") from None


class _Package(type(sys)):  # type: ignore[misc]  # the type of modules, without importing `types`
    """Importing the module `dynamo` must not replace the object of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "dynamo" and isinstance(value, type(sys))):
            super().__setattr__(name, value)


class _OldName(type(sys)):  # type: ignore[misc]
    """An old import path, which programs use; the real module is imported on first use."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name, f"Another name of `{module}`.")
        self._module = module

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from importlib import import_module  # noqa: PLC0415

        names = vars(import_module(self._module))
        if name == "__all__" and name not in names:
            return [each for each in names if not each.startswith("_")]
        return names[name] if name in names else _submodule(str(self.__name__), name)


sys.modules[__name__].__class__ = _Package
sys.modules.update(
    {
        f"{__name__}.{old}": _OldName(f"{__name__}.{old}", f"dftracer.{module}")
        for old, module in {
            "ai": "python.common",
            "ai_common": "python.common",
            "ai_init": "python.common",
            "env": "compat",
            # There is only one build: DFTRACER_LOG_LEVEL=DEBUG enables the messages of a debug build.
            "dbg": "python.common",
            "dbg.ai": "python.common",
            "dbg.logger": "python.logger",
            "dbg.torch": "python.torch",
            "dbg.torch.profiler": "python.torch",
            "torch.common": "python.torch",
            "torch.profiler": "python.torch",
        }.items()
    }
)
