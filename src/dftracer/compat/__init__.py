"""Names that programs know from DFTracer's Python bindings and that nothing else here needs.

Imported when one of them is used, never by `import dftracer.python`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from dftracer.python import DFTRACER_ENABLE, DFTRACER_INIT_PRELOAD, DFTRACER_LOG_LEVEL, dftracer

__all__ = [
    "DFTRACER_ENABLE",
    "DFTRACER_ENABLE_ENV",
    "DFTRACER_INIT_ENV",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
    "DFTRACER_LOG_LEVEL_ENV",
    "DFTRACER_TIME_METRIC_ENV",
    "NoOpProfiler",
    "ProfilerProtocol",
    "get_time_scale",
    "setup_logger",
    "setup_stream_logger",
]

# --- The environment as programs import it: names of variables, the log level, a logger

DFTRACER_ENABLE_ENV = "DFTRACER_ENABLE"
DFTRACER_INIT_ENV = "DFTRACER_INIT"
DFTRACER_LOG_LEVEL_ENV = "DFTRACER_LOG_LEVEL"
DFTRACER_TIME_METRIC_ENV = "DFTRACER_TIME_METRIC"


def setup_stream_logger() -> logging.Logger:
    """The logger `DFTRACER`: to stderr, at the level set by DFTRACER_LOG_LEVEL."""
    logger = logging.getLogger("DFTRACER")
    logger.setLevel(getattr(logging, DFTRACER_LOG_LEVEL))
    if not logger.handlers:
        _add(logger, logging.StreamHandler(), "[%(levelname)s] %(message)s")
    return logger


def setup_logger(name: str, log_file: str, formatter: str, level: int = logging.INFO) -> logging.Logger:
    """A logger that writes to a file."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    _add(logger, logging.FileHandler(log_file), formatter)
    return logger


def _add(logger: logging.Logger, handler: logging.Handler, form: str) -> None:
    handler.setFormatter(logging.Formatter(form))
    logger.addHandler(handler)


# --- The recorder as an interface, and one that records nothing


class ProfilerProtocol(Protocol):
    """What the recorder offers; `dftracer.dftracer` is one."""

    def initialize(
        self, log_file: str | None = None, data_dirs: str | None = None, process_id: int = -1
    ) -> None: ...
    def get_time(self) -> int: ...
    def get_config(self, key: str) -> str: ...
    def enter_event(self) -> None: ...
    def exit_event(self) -> None: ...
    def log_event(
        self,
        name: str,
        cat: str,
        start_time: int,
        duration: int,
        int_args: Mapping[str, Any] | None = None,
        string_args: Mapping[str, Any] | None = None,
        float_args: Mapping[str, Any] | None = None,
        relations: Mapping[Any, list[int]] | None = None,
    ) -> None: ...
    def log_metadata_event(self, key: str, value: str) -> None: ...
    def declare_entity(self, type: str, key: str, store: Any, uri: str) -> int: ...
    def declare_entity_type(self, type: str, role: Any, description: str) -> None: ...
    def relate_entities(self, relation: Any, subject: int, object: int) -> None: ...
    def set_app_metadata_int(self, key: str, value: int) -> None: ...
    def set_app_metadata_string(self, key: str, value: str) -> None: ...
    def mark_used(self, name: str) -> None: ...
    def finalize(self) -> None: ...


class NoOpProfiler:
    """Takes everything and records nothing."""

    def initialize(
        self, log_file: str | None = None, data_dirs: str | None = None, process_id: int = -1
    ) -> None:
        """Nothing begins."""

    def get_time(self) -> int:
        """0: there is no clock."""
        return 0

    def get_config(self, key: str) -> str:
        """Nothing is set."""
        return ""

    def enter_event(self) -> None:
        """Nothing opens."""

    def exit_event(self) -> None:
        """Nothing closes."""

    def log_event(
        self,
        name: str,
        cat: str,
        start_time: int,
        duration: int,
        int_args: Mapping[str, Any] | None = None,
        string_args: Mapping[str, Any] | None = None,
        float_args: Mapping[str, Any] | None = None,
        relations: Mapping[Any, list[int]] | None = None,
    ) -> None:
        """No event."""

    def log_metadata_event(self, key: str, value: str) -> None:
        """No record."""

    def declare_entity(self, type: str, key: str, store: Any, uri: str) -> int:
        """0 is the id of no entity."""
        return 0

    def declare_entity_type(self, type: str, role: Any, description: str) -> None:
        """No record."""

    def relate_entities(self, relation: Any, subject: int, object: int) -> None:
        """No record."""

    def set_app_metadata_int(self, key: str, value: int) -> None:
        """No record."""

    def set_app_metadata_string(self, key: str, value: str) -> None:
        """No record."""

    def mark_used(self, name: str) -> None:
        """No record."""

    def finalize(self) -> None:
        """Nothing ends."""


def get_time_scale() -> float:
    """Units of `get_time` in a second."""
    return 1e9 / dftracer.get_instance()._unit_ns
