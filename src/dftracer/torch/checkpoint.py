"""Saving and loading state: `checkpoint/capture` and `checkpoint/restart`, by whichever library.

What torch has for gathering the state of all ranks before that is `checkpoint/gather`. A function of the
program that does the same is its own code, and named: nothing says what the state will be used for.
"""

from __future__ import annotations

import io
import os
import pathlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dftracer._core import AutoEvent, busy_begins, busy_ends, training
from dftracer.torch.boundaries import notify
from dftracer.torch.hang import CHECKPOINT
from dftracer.torch.loader import in_worker
from dftracer.torch.patches import Patches, hide_from_dynamo, safely
from dftracer.torch.rule import ANY_OPTIMIZER, CAPTURE, GATHER, RESTART, now

# Module -> function -> (event, position and name of the parameter that says where).
CALLS: dict[str, dict[str, tuple[AutoEvent, int, str]]] = {
    "torch": {"save": (CAPTURE, 1, "f"), "load": (RESTART, 0, "f")},
    "torch.distributed.checkpoint": {
        "save": (CAPTURE, 99, "checkpoint_id"),
        "async_save": (CAPTURE, 99, "checkpoint_id"),
        "load": (RESTART, 99, "checkpoint_id"),
    },
    "torch.distributed.checkpoint.state_dict": {
        "get_state_dict": (GATHER, 99, ""),
        "get_model_state_dict": (GATHER, 99, ""),
        "get_optimizer_state_dict": (GATHER, 99, ""),
    },
    "safetensors.torch": {
        "save_file": (CAPTURE, 1, "filename"),
        "save_model": (CAPTURE, 1, "filename"),
        "load_file": (RESTART, 0, "filename"),
        "load_model": (RESTART, 1, "filename"),
    },
    "safetensors.numpy": {"save_file": (CAPTURE, 1, "filename"), "load_file": (RESTART, 0, "filename")},
}

# Types whose attributes and text can be read safely: with any other object that might run the user's code.
_PATHS = (str, pathlib.PosixPath)
_FILES = (io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.FileIO)

# Keys under which programs save the number of their step; the first one present counts.
_COUNTERS = ("global_step", "step", "iteration", "iter", "steps", "num_steps", "iteration_number")

_inside = threading.local()


def install(module: ModuleType, patches: Patches) -> None:
    """Watch the functions of one module."""
    for ours in (safely, _done, _counter):  # Dynamo would compile what has tensors among its arguments
        safely(hide_from_dynamo, ours)
    for name, (event, at, parameter) in CALLS[module.__name__].items():
        if hasattr(module, name):
            patches.around(module, name, _timed(event, at, parameter))


def _timed(event: AutoEvent, at: int, parameter: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            # While a batch is made it reads samples; inside another of these calls it is a part of that.
            training_state = training()
            if in_worker() or training_state.fetching or getattr(_inside, "call", False):
                return original(*args, **kwargs)
            _inside.call = True
            scaling = training_state.scaling
            if event is GATHER:  # an optimizer without a state yet is stepped to have one
                training_state.scaling = ANY_OPTIMIZER
            busy_begins(CHECKPOINT)
            notify("checkpoint", True)
            start = now()
            error = result = None
            try:
                result = original(*args, **kwargs)
                return result
            except BaseException as e:
                error = type(e).__name__
                raise
            finally:
                _inside.call = False
                training_state.scaling = scaling
                busy_ends(CHECKPOINT)
                where = args[at] if len(args) > at else kwargs.get(parameter)
                states = (result, *args[:1], *kwargs.values())
                safely(_done, event, start, where, error, states)
                notify("checkpoint", False)

        return timed

    return around


def _counter(states: tuple[Any, ...]) -> int | None:
    """The number of the step that is saved or loaded; only plain dicts are looked into."""
    for state in states:
        if type(state) is dict:
            for name in _COUNTERS:
                value = state.get(name)
                if type(value) is int and value >= 0:
                    return value
    return None


def _done(event: AutoEvent, start: int, where: Any, error: str | None, states: tuple[Any, ...]) -> None:
    end = now()
    facts: dict[str, Any] = {} if error is None else {"error": error}
    if type(where) in _PATHS:
        facts["path"] = os.fspath(where)
    elif type(where) in _FILES:
        facts["path"] = str(where.name)
    counter = _counter(states)
    if counter is not None:
        facts["counter"] = counter
    training_state = training()
    training_state.write(event, start, end, **facts)
    training_state.interrupt(start, end)
