"""What an event means for a training step: its stage, given what encloses it.

Every event belongs to a class; the rule table says which stage a class takes inside which enclosing stage.
So a `read` inside `checkpoint.capture` is checkpointing, the same call inside `data.item` is storage read,
and a user's function inside `forward` stays forward.

The recorder's step rows need the same, so both tables are native: native/format/stage.cpp.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from dftracer.format.io_calls import IO_CATEGORIES, is_process
from dftracer.load import rows
from dftracer.load._scan import event_class, stage_rules

STAGES: Final = rows.STAGES
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


def is_io(cat: str, name: str) -> bool:
    """Whether an event is an intercepted I/O call; starting and awaiting processes has the same category."""
    return cat.lower() in IO_CATEGORIES and not is_process(name)


@lru_cache(maxsize=4096)
def class_of(cat: str, name: str) -> int:
    """The class of an event, as an index into CLASSES."""
    return event_class(cat.encode(errors="replace"), name.encode(errors="replace"))


def _rules(auto: bool) -> npt.NDArray[np.uint8]:
    return np.frombuffer(stage_rules(auto), np.uint8).reshape(len(CLASSES), len(STAGES))


# [class, stage around it] -> stage; of annotated, of automatically traced steps
RULES: Final = (_rules(auto=False), _rules(auto=True))
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
