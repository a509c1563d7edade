"""The visual kind of an event: one kind for each colour of the timeline."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dftracer.analyze.stages import CLASSES, class_of
from dftracer.format.io_calls import IO_CATEGORIES, is_process, is_read, is_write

__all__ = ["KINDS", "KIND_INDEX", "PROFILER_KINDS", "kind_of"]

KINDS: Final = (
    "fetch wait",
    "step body",
    "read",
    "write",
    "file metadata",
    "preprocess",
    "collate",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "communication",
    "checkpoint",
    "sync",
    "own code",
    "operator",
    "launch",
    "kernel",
    "compile",
    "other",
)
KIND_INDEX: Final = {name: i for i, name in enumerate(KINDS)}

# The profiler says the type of each of its events.
PROFILER_KINDS: Final = {
    "kernel": "kernel",
    "gpu_memcpy": "transfer",
    "gpu_memset": "kernel",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "cpu_op": "operator",
    "user_annotation": "other",
    "python_function": "other",
}
_BY_CLASS: Final = {
    "fetch_wait": "fetch wait",
    "block": "step body",
    "container": "step body",
    "item": "preprocess",
    "update": "optimizer",
    "any_compute": "forward",
    "comm": "communication",
    "model_op": "compile",
    "wait_for_device": "sync",
    "wait_for_peers": "communication",
    "copy": "transfer",
    "launch": "launch",
}
_DEVICE_PHASES: Final = {"fetch": "fetch wait", "step": "step body"}


@lru_cache(maxsize=1 << 16)
def kind_of(cat: str, name: str, profiler_type: str = "") -> int:
    """The kind of an event, as an index into KINDS."""
    return KIND_INDEX[_kind(cat, name, profiler_type)]


def _kind(cat: str, name: str, profiler_type: str) -> str:
    if profiler_type:
        if "nccl" in name.lower():
            return "communication"
        return PROFILER_KINDS.get(profiler_type, "other")
    lower = cat.lower()
    if lower in IO_CATEGORIES and not is_process(name):
        return "read" if is_read(name) else "write" if is_write(name) else "file metadata"
    if lower == "device_time":
        return _DEVICE_PHASES.get(name, name if name in KIND_INDEX else "kernel")
    if lower in {"pp", "kineto"}:  # of unknown type: operators have names like `aten::mm`
        return "operator" if "::" in name else "other"
    found = CLASSES[class_of(cat, name)]
    return found if found in KIND_INDEX else _BY_CLASS.get(found, "other")
