"""The recorder as module functions, for clients that probe for a native module of this name."""

from __future__ import annotations

from typing import Any

from dftracer.python import dftracer as _recorder

__all__ = [
    "enter_event",
    "exit_event",
    "finalize",
    "get_config",
    "get_time",
    "initialize",
    "log_event",
    "log_metadata_event",
    "mark_used",
    "set_app_metadata_int",
    "set_app_metadata_string",
]


def initialize(log_file: str | None = None, data_dirs: str | None = None, process_id: int = -1) -> None:
    """Record from now on."""
    _recorder.initialize_log(log_file, data_dirs, process_id)


def get_time() -> int:
    """Now, in us since the epoch."""
    return _recorder.get_instance().get_time()


def get_config(key: str) -> str:
    """The value of a setting by the name of its variable."""
    return _recorder.get_instance().get_config(key)


def enter_event() -> None:
    """Open an event."""
    _recorder.get_instance().enter_event()


def exit_event() -> None:
    """Close it."""
    _recorder.get_instance().exit_event()


def log_event(
    name: str,
    cat: str,
    start_time: int,
    duration: int,
    int_args: Any = None,
    string_args: Any = None,
    float_args: Any = None,
) -> None:
    """One complete event; see `dftracer.python.dftracer.log_event`."""
    _recorder.get_instance().log_event(name, cat, start_time, duration, int_args, float_args, string_args)


def log_metadata_event(key: str, value: str) -> None:
    """A fact about the run."""
    _recorder.get_instance().log_metadata_event(key, value)


def set_app_metadata_int(key: str, value: int) -> None:
    """A fact about the program."""
    _recorder.get_instance().set_app_metadata_int(key, value)


def set_app_metadata_string(key: str, value: str) -> None:
    """A fact about the program."""
    _recorder.get_instance().set_app_metadata_string(key, value)


def mark_used(name: str) -> None:
    """An integration took part."""
    _recorder.get_instance().mark_used(name)


def finalize() -> None:
    """Write everything and close the trace."""
    _recorder.get_instance().finalize()
