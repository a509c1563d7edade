"""The recorder as an interface, and one that records nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dftracer.python._recorder import dftracer

__all__ = ["NoOpProfiler", "ProfilerProtocol", "get_time_scale"]


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
