"""The core names, where some programs import them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dftracer import dftracer as profiler  # noqa: F401
from dftracer.python import *  # noqa: F403
from dftracer.python import dftracer
from dftracer.python._tree import START_METADATA_NAME, STOP_METADATA_NAME  # noqa: F401

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TagValueTuple = tuple[int, int | float | str]


def get_default_args(func: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that have a default, with it."""
    parameters = inspect.signature(func).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


def capture_signal(signal_number: int, frame: Any) -> None:
    """A signal handler that closes the trace and ends the program; nothing here installs it."""
    dftracer.get_instance().finalize()
    sys.exit(signal_number)
