"""Acting when a module has been imported, without importing it."""

from __future__ import annotations

import sys

from dftracer import _messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any, TypeAlias

    Met: TypeAlias = Callable[[ModuleType], None]

_awaited: dict[str, list[Met]] = {}


class _Watcher:
    """Ignores every import except the awaited ones, and acts when such a module is ready."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """The spec of an awaited module, whose execution ends with what waits for it."""
        if name not in _awaited:
            return None
        from importlib.util import find_spec  # noqa: PLC0415 - programs that never come here do not pay

        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        loader = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # The loader may be shared, or asked again to reload.
            vars(loader).pop("exec_module", None)
            execute(module)
            _meet(name, module)

        if hasattr(loader, "__dict__"):
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watcher = _Watcher()


def when_imported(name: str, met: Met) -> None:
    """Call `met(module)` when `name` has been imported: now, or after its first import."""
    module = sys.modules.get(name)
    if module is not None and not half_made(module):
        _call(met, module)
        return
    _awaited.setdefault(name, []).append(met)
    if _watcher not in sys.meta_path:
        sys.meta_path.insert(0, _watcher)


def forget() -> None:
    """Stop waiting."""
    _awaited.clear()
    _leave()


def _leave() -> None:
    if _watcher in sys.meta_path:
        sys.meta_path.remove(_watcher)


def half_made(module: ModuleType) -> bool:
    """Whether it is being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _meet(name: str, module: ModuleType) -> None:
    while name in _awaited:  # who is met now may wait for the same module again: it is still being imported
        for met in _awaited.pop(name):
            _call(met, module)
    if not _awaited:
        _leave()


def _call(met: Met, module: ModuleType) -> None:
    try:
        met(module)
    except Exception as error:  # the program's import must not fail because of us
        _messages.always(f"auto: {module.__name__} is not watched: {type(error).__name__}: {error}")
