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

from dftracer.torch.patches import Patches

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
        self._profilers: weakref.WeakSet[Any] = weakref.WeakSet()  # that are warming up or on
        self._patches = Patches()

    def watch(self) -> None:
        """Find those that are registered already and hear of those to come."""
        for candidate in gc.get_objects():
            if type(candidate) is self._observer_class:
                self._observers.add(candidate)

        def around_register(original: Callable[..., Any]) -> Callable[..., Any]:
            def register_callback(observer: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._ours:
                    self._observers.add(observer)
                    self._yield("the program started an execution trace of its own")
                return original(observer, *args, **kwargs)

            return register_callback

        def around_prepare(original: Callable[..., Any]) -> Callable[..., Any]:
            def prepare_trace(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                if not self._ours:
                    self._profilers.add(profiler)
                    self._yield("the program started a profiler of its own")
                return original(profiler, *args, **kwargs)

            return prepare_trace

        def around_exit(original: Callable[..., Any]) -> Callable[..., Any]:
            def leave(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                self._profilers.discard(profiler)
                return original(profiler, *args, **kwargs)

            return leave

        self._patches.around(self._observer_class, "register_callback", around_register)
        self._patches.around(self._profile_class, "_prepare_trace", around_prepare)
        self._patches.around(self._profile_class, "__exit__", around_exit)

    def _yield(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._give_way(reason)

    def unwatch(self) -> None:
        """Put torch back as it was."""
        self._patches.take_back()

    def __enter__(self) -> Foreign:
        """What begins inside is ours."""
        self._ours += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._ours -= 1

    def present(self) -> str | None:
        """What else is on in this process, if anything."""
        if self._enabled() or self._profilers:
            return "a profiler of the program is on"
        if any(observer.is_registered for observer in self._observers):
            return "an execution trace of the program is on"
        return None
