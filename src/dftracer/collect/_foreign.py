"""Profilers and observers of the program itself come first: ours ends its window when one of them begins.

torch has one Kineto session and one execution trace observer a process. A second observer takes the first
one's place and both end wrong; a second profiler empties the first one.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Foreign"]


class Foreign:
    """Knows whether others are on, and calls `give_way` before another one begins."""

    def __init__(self, torch: Any, give_way: Callable[[str], None]) -> None:
        self._observer_class = torch.profiler.ExecutionTraceObserver
        self._profile_class = torch.autograd.profiler.profile
        self._enabled = torch.autograd._profiler_enabled
        self._give_way = give_way
        self._ours = 0
        self._observers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def watch(self) -> None:
        """Find those that are registered already and hear of those to come."""
        for candidate in gc.get_objects():
            if type(candidate) is self._observer_class:
                self._observers.add(candidate)
        register = self._observer_class.register_callback
        prepare = self._profile_class._prepare_trace

        def register_callback(observer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._ours:
                self._observers.add(observer)
                self._yield("the program started an execution trace of its own")
            return register(observer, *args, **kwargs)

        def prepare_trace(profiler: Any) -> Any:
            if not self._ours:
                self._yield("the program started a profiler of its own")
            return prepare(profiler)

        self._replace(self._observer_class, "register_callback", register_callback)
        self._replace(self._profile_class, "_prepare_trace", prepare_trace)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name), value))
        setattr(owner, name, value)

    def _yield(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._give_way(reason)

    def unwatch(self) -> None:
        """Put torch back as it was."""
        for owner, name, original, value in self._replaced:
            if getattr(owner, name, None) is value:
                setattr(owner, name, original)
        self._replaced.clear()

    def __enter__(self) -> Foreign:
        """What begins inside is ours."""
        self._ours += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._ours -= 1

    def present(self) -> str | None:
        """What else is on in this process, if anything."""
        if self._enabled():
            return "a profiler of the program is on"
        if any(observer.is_registered for observer in self._observers):
            return "an execution trace of the program is on"
        return None
