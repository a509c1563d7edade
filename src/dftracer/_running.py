"""`dftracer.start()` and `dftracer.stop()`: tracing at run time, without a variable in the environment."""

from __future__ import annotations

import os
import time

from dftracer import _config, _core, _messages, _session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["start", "stop"]

_enable_before: list[str | None] = []
_auto_before: list[bool] = []
_since_ns = 0


def start(
    log_file: str | os.PathLike[str] | None = None, data_dir: str | None = None, *, auto: bool = False
) -> str | None:
    """Record from now on, whatever the environment says, and return the path of the trace.

    Annotations that were imported, decorated or looped over before are recorded from now on, too. With
    `auto`, the steps of PyTorch programs are recorded without annotations. If a session is already open,
    nothing changes.
    """
    global _since_ns  # noqa: PLW0603 - one session per process
    if _core.active():
        _messages.always(f"already recording into {_core.trace_path()}; dftracer.stop() ends that")
        return _core.trace_path()
    _enable_before.append(os.environ.get("DFTRACER_ENABLE"))
    _since_ns = time.time_ns()
    _config.turn_on()
    _session.switch_on()
    _session.begin(log_file, data_dir)
    if auto:
        _auto_before.append(_auto().installed())
        _auto().install()
    return _core.trace_path()


def stop() -> list[str]:
    """End what `start` (or `initialize_log`) began; return the traces of this process and its children."""
    if not _core.active():
        return []
    if _auto_before and not _auto_before.pop():
        _auto().uninstall()
    path = _core.trace_path()
    _session.end()
    if _enable_before:
        _config.turn_back(_enable_before.pop())
    return [] if path is None else _written(path)


def _auto() -> Any:
    from dftracer import auto  # noqa: PLC0415 - for those who ask for it

    return auto


def _written(path: str) -> list[str]:
    """The trace, and later ones that begin with its name: those of processes started in between."""
    folder, name = os.path.split(path)
    stem = name.removesuffix(".gz").removesuffix(".pfw")
    try:
        found = [
            entry.path
            for entry in os.scandir(folder or os.curdir)
            if entry.name.startswith((f"{stem}.", f"{stem}-"))
            and entry.name.endswith((".pfw", ".pfw.gz"))
            and entry.stat().st_mtime_ns >= _since_ns - 1_000_000_000
        ]
    except OSError:
        found = []
    return sorted(found, key=lambda p: (p != path, p))
