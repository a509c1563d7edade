"""Each training thread has its own `Training`."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

from dftracer.auto._training import Training
from dftracer.torch.patches import safely

__all__ = ["all_trainings", "finish_all", "forget_all", "local", "training"]

local = threading.local()
_all: list[Training] = []


def training() -> Training:
    """The training of this thread: `local.training`, where that is there."""
    found: Training | None = getattr(local, "training", None)
    if found is not None:
        return found
    # The autograd engine has threads of its own, on which an optimizer in backward steps.
    found = next((t for t in _all if t._depth), None)
    if found is None:
        if not _all:
            _see_to_the_end()
        found = local.training = Training()
        _all.append(found)
        if threading.current_thread() is not threading.main_thread():
            local.leaving = _Leaving(found)
    return found


class _Leaving:
    """Goes when its thread does, and closes what that has open: Ray kills a process soon after."""

    __slots__ = ("_of", "_thread")

    def __init__(self, of: Training) -> None:
        self._of = of
        self._thread = os.getpid(), threading.get_ident()

    def __del__(self, pid: Any = os.getpid, ident: Any = threading.get_ident) -> None:
        if self._thread == (pid(), ident()):  # not the copy that a forked child throws away
            safely(_leave, self._of)


def _leave(of: Training) -> None:
    of.finish()
    if of in _all:
        _all.remove(of)


def _see_to_the_end() -> None:
    """Processes of multiprocessing leave without `atexit`."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        util = importlib.import_module("multiprocessing.util")
        util.Finalize(None, finish_all, exitpriority=0)


def finish_all(error: str | None = None) -> None:
    """Close what is open in all threads."""
    for each in all_trainings():
        each.finish(error)


def all_trainings() -> list[Training]:
    """Those of all threads."""
    return list(_all)


def forget_all() -> None:
    """A child process begins without what its parent had open."""
    vars(local).clear()  # the child has one thread
    _all.clear()
