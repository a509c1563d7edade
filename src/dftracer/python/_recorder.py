"""`dftracer`: begin, end, and events that come from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from dftracer import _core, _session
from dftracer.python._tags import plain

__all__ = ["dftracer"]


class dftracer:  # noqa: N801 - the name users import
    """The recorder of this process."""

    _instance: ClassVar[dftracer | None] = None

    @classmethod
    def get_instance(cls) -> dftracer:
        """The one object there is."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    @staticmethod
    def initialize_log(
        logfile: str | os.PathLike[str] | None = None,
        data_dir: str | None = None,
        process_id: int = -1,
    ) -> dftracer:
        """Record from now on, into `logfile`; a second call changes nothing."""
        _session.begin(logfile, data_dir)
        return dftracer.get_instance()

    def get_time(self) -> int:
        """Now, in us since the epoch, on the clock of the trace."""
        return _core.time_ns() // 1000

    def enter_event(self) -> None:
        """Open an event; the next `log_event` gives it its name, `exit_event` closes it."""
        _core.enter_event()

    def exit_event(self) -> None:
        """Close what `enter_event` opened."""
        _core.exit_event()

    def log_event(
        self,
        name: str,
        cat: str,
        start_time: int,
        duration: int,
        int_args: Mapping[str, Any] | None = None,
        float_args: Mapping[str, Any] | None = None,
        string_args: Mapping[str, Any] | None = None,
    ) -> None:
        """One complete event; times in us. Argument values are plain or (tag type, value) pairs."""
        args: dict[str, Any] = {}
        for given, convert in ((int_args, int), (float_args, float), (string_args, str)):
            for key, value in (given or {}).items():
                args[key] = _converted(convert, plain(value))
        _core.log_event(name, cat, _us_to_ns(start_time), _us_to_ns(duration), args)

    def log_metadata_event(self, key: str, value: str) -> None:
        """A fact about the run, written at once."""
        _core.log_metadata("CM", key, value)

    def finalize(self) -> None:
        """Write everything and close the trace."""
        _session.end()


def _converted(convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _us_to_ns(value: Any) -> int:
    try:
        return int(value * 1000)
    except (TypeError, ValueError, OverflowError):
        return 0
