"""The recorder as module functions, for clients that probe for a native module of this name."""

from __future__ import annotations

from typing import Any

from dftracer.python import dftracer as _recorder

__all__ = [
    "enter_event",
    "exit_event",
    "finalize",
    "get_time",
    "initialize",
    "log_event",
    "log_metadata_event",
]


def initialize(log_file: str | None = None, data_dirs: str | None = None, process_id: int = -1) -> None:
    """Record from now on."""
    _recorder.initialize_log(log_file, data_dirs, process_id)


def get_time() -> int:
    """Now, in us since the epoch."""
    return _recorder.get_instance().get_time()


def enter_event() -> None:
    """Open an event."""
    _recorder.get_instance().enter_event()


def exit_event() -> None:
    """Close it."""
    _recorder.get_instance().exit_event()


def log_event(*args: Any, **kwargs: Any) -> None:
    """One complete event; see `dftracer.python.dftracer.log_event`."""
    _recorder.get_instance().log_event(*args, **kwargs)


def log_metadata_event(key: str, value: str) -> None:
    """A fact about the run."""
    _recorder.get_instance().log_metadata_event(key, value)


def finalize() -> None:
    """Write everything and close the trace."""
    _recorder.get_instance().finalize()
