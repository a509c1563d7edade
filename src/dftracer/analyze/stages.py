"""What an event means for a training step: its stage, given what encloses it.

Every event belongs to a class; the rule table says which stage a class takes inside which enclosing stage.
So a `read` inside `checkpoint.capture` is checkpointing, the same call inside `data.item` is storage read,
and a user's function inside `forward` stays forward.

The recorder's step rows need the same: native/format/stage.cpp has these tables, too, and a test compares.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dftracer.format.io_calls import IO_CATEGORIES, is_process, is_write

STAGES: Final = (
    "fetch_wait",
    "read",
    "preprocess",
    "collate",
    "transfer",
    "forward",
    "backward",
    "optimizer",
    "comm",
    "checkpoint",
    "sync",
    "own_code",
    "other",
    "unexplained",
)
STAGE_INDEX: Final = {name: i for i, name in enumerate(STAGES)}
NONE: Final = STAGE_INDEX["unexplained"]
COMPUTE_STAGES: Final = ("forward", "backward", "optimizer")
COMPUTE: Final = tuple(STAGE_INDEX[s] for s in COMPUTE_STAGES)
INPUT_STAGES: Final = ("fetch_wait", "read", "preprocess", "collate")

# Classes: the stages themselves (always that stage), then those that depend on what encloses them.
CLASSES: Final = (
    *STAGES[:-1],
    "item",
    "update",
    "any_compute",
    "block",
    "container",
    "io_read",
    "io_write",
    "process",
    "inherit",
    "model_op",
    "wait_for_device",
    "wait_for_peers",
    "copy",
    "launch",
    "skip",
)
AI_CATEGORIES: Final = frozenset(
    {"ai_root", "pipeline", "dataloader", "data", "device", "compute", "comm", "communication", "checkpoint"}
)
_CLASS: Final = {name: i for i, name in enumerate(CLASSES)}

# Calls that change storage without moving bytes to it, besides the writes themselves.
_CHANGES: Final = (
    "fsync",
    "fdatasync",
    "ftruncate",
    "truncate",
    "fflush",
    "msync",
    "mkdir",
    "rmdir",
    "unlink",
    "rename",
    "link",
    "symlink",
    "chmod",
    "chown",
    "creat",
    "posix_fallocate",
)


def is_io(cat: str, name: str) -> bool:
    """Whether an event is an intercepted I/O call; starting and awaiting processes has the same category."""
    return cat.lower() in IO_CATEGORIES and not is_process(name)


def class_of(cat: str, name: str) -> int:
    """The class of an event, as an index into CLASSES."""
    return _CLASS[_class_name(cat.lower(), name)]


def _class_name(cat: str, name: str) -> str:  # noqa: PLR0911, PLR0912 - one table, read top to bottom
    n = name.lower()
    if cat in {"dftracer", "device_time", "sample"}:
        return "skip"
    if cat == "cuda":
        return _cuda_class(n)
    if cat == "dataloader":
        if n.endswith(".iter"):
            return "fetch_wait"
        if n.endswith(".block"):
            return "block"
        return "fetch_wait" if n.startswith("fetch") and not n.endswith(".init") else "inherit"
    if cat == "data":
        if "collate" in n:
            return "collate"
        if n.startswith("preprocess") or any(w in n for w in ("augment", "transform", "decode")):
            return "preprocess"
        if n.endswith(".init"):
            return "inherit"
        if n.startswith(("io", "read")) or ".io" in n:
            return "read"
        # The time of an item beyond its I/O is work on it: only I/O is attributed to storage.
        return "item" if n.startswith(("item", "data", "load")) else "preprocess"
    if cat == "device":
        return "transfer"
    if cat == "compute":
        for word, stage in (("forward", "forward"), ("backward", "backward"), ("step", "update")):
            if n.startswith(word):
                return stage
        return "inherit" if n.endswith(".init") else "any_compute"
    if cat in {"comm", "communication"}:
        return "wait_for_peers" if n == "wait" else "comm"
    if cat == "checkpoint":
        return "checkpoint"
    if cat in {"pipeline", "ai_root"}:
        return "container"
    if cat in IO_CATEGORIES:
        if is_process(n):
            return "process"
        return "io_write" if is_write(n) or n.startswith(_CHANGES) else "io_read"
    if cat == "dynamo":
        return "model_op"
    if cat in {"pp", "kineto"}:
        return _torch_class(n)
    return "inherit"


def _cuda_class(n: str) -> str:
    """Of an intercepted call of the CUDA (or HIP) runtime: only those that block the host are recorded."""
    if "synchronize" in n:
        return "wait_for_device"
    if "memcpy" in n:
        return "copy"
    return "launch" if "graphlaunch" in n else "skip"


def _torch_class(n: str) -> str:  # noqa: PLR0911 - one table, read top to bottom
    if n.startswith("profilerstep"):
        return "block"
    if n.startswith("enumerate(dataloader)"):
        return "fetch_wait"
    if n.startswith("optimizer.step"):
        return "optimizer"
    if "backward" in n:
        return "backward"
    if n.endswith(("dataparallel.forward", "dataparallel::forward")):
        return "forward"
    if n.startswith(("nccl", "gloo", "c10d", "mpi:", "record_param_comms")):
        return "comm"
    if n.startswith(("memcpy htod", "memcpy dtoh")):
        return "transfer"
    if n.startswith(("cuda", "hip")) and n.endswith("synchronize"):
        return "wait_for_device"
    return "copy" if n.startswith(("cudamemcpy", "hipmemcpy")) else "inherit"


def _rules(auto: bool) -> npt.NDArray[np.uint8]:
    same = np.arange(len(STAGES), dtype=np.uint8)
    table = np.empty((len(CLASSES), len(STAGES)), dtype=np.uint8)
    for c, name in enumerate(CLASSES):
        if name in STAGE_INDEX:
            table[c] = STAGE_INDEX[name]
        else:
            table[c] = same
    other, read = STAGE_INDEX["other"], STAGE_INDEX["read"]
    table[_CLASS["block"]] = NONE
    table[_CLASS["item"]] = STAGE_INDEX["preprocess"]
    # `compute.step` is the optimizer or, depending on how it is used, the whole step: any compute.
    table[_CLASS["update"]] = STAGE_INDEX["optimizer"]
    table[_CLASS["any_compute"]] = STAGE_INDEX["forward"]
    for part in ("backward", "optimizer"):
        table[_CLASS["any_compute"], STAGE_INDEX[part]] = STAGE_INDEX[part]
    table[_CLASS["inherit"], NONE] = other
    # Only where nobody annotates, writing and waiting for processes are the program's own code: it is named
    # by the line that does it.
    for calls in ("io_write", "process"):
        table[_CLASS[calls], NONE] = STAGE_INDEX["own_code"] if auto else other
    table[_CLASS["model_op"], NONE] = STAGE_INDEX["forward"]
    # A checkpoint, a transfer or a collective that blocks in the driver stays what it is.
    for around in ("unexplained", "other", "forward", "backward", "optimizer"):
        table[_CLASS["wait_for_device"], STAGE_INDEX[around]] = STAGE_INDEX["sync"]
        table[_CLASS["copy"], STAGE_INDEX[around]] = STAGE_INDEX["transfer"]
    # DDP's wait is part of the backward pass; how much of it peers caused is found in `peers`.
    for around in ("unexplained", "other"):
        table[_CLASS["wait_for_peers"], STAGE_INDEX[around]] = STAGE_INDEX["comm"]
    table[_CLASS["launch"], NONE] = STAGE_INDEX["forward"]
    for around in ("unexplained", "other", "fetch_wait", "preprocess", "collate"):
        table[_CLASS["io_read"], STAGE_INDEX[around]] = read
    return table


RULES: Final = (_rules(auto=False), _rules(auto=True))  # of annotated, of automatically traced steps
# The stage that an event of each class makes visible; None: it says nothing about a stage.
SHOWS: Final = tuple(
    name
    if name in STAGE_INDEX
    else {
        "item": "preprocess",
        "update": "optimizer",
        "any_compute": "forward",
        "io_read": "read",
        "model_op": "forward",
        "wait_for_device": "sync",
        "wait_for_peers": "comm",
        "copy": "transfer",
    }.get(name)
    for name in CLASSES
)
