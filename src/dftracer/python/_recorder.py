"""`dftracer`: begin, end, and events that come from elsewhere."""

from __future__ import annotations

from dftracer import _config, _core, _session

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any, ClassVar


class dftracer:  # noqa: N801 - the name users import
    """The recorder of this process."""

    _instance: ClassVar[dftracer | None] = None
    _unit_ns: ClassVar[int] = {"NS": 1, "US": 1000, "MS": 1_000_000, "SEC": 1_000_000_000}[
        _session.SETTINGS.time_metric
    ]

    def __init__(self) -> None:
        self._used: set[str] = set()

    @classmethod
    def get_instance(cls) -> dftracer:
        """The only instance."""
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
        """Now since the epoch, on the clock of the trace: in us, or as DFTRACER_TIME_METRIC says."""
        return _core.time_ns() // self._unit_ns

    def get_config(self, key: str) -> str:
        """The value of a setting by the name of its variable (`DFTRACER_LOG_FILE`); "" if there is none."""
        for setting in _config.SETTINGS:
            if setting.env == key:
                value = getattr(_session.SETTINGS, setting.name)
                return str(int(value)) if isinstance(value, bool) else str(value)
        return ""

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
        relations: Mapping[Any, list[int]] | None = None,
    ) -> None:
        """One complete event; times as `get_time` gives them. Argument values are plain or (tag type, value)
        pairs; `relations` are lists of entities by their relation.
        """
        from dftracer.python._enums import plain  # noqa: PLC0415 - few programs have events from elsewhere

        args: dict[str, Any] = {}
        for given, convert in ((int_args, int), (float_args, float), (string_args, str)):
            for key, value in (given or {}).items():
                args[key] = _converted(convert, plain(value))
        if relations:
            args.update(_entities().relation_args(relations))
        _core.log_event(name, cat, self._ns(start_time), self._ns(duration), args)

    def log_metadata_event(self, key: str, value: str) -> None:
        """A fact about the run, written at once."""
        _core.log_metadata("CM", key, value)

    def declare_entity(self, type: str, key: Any, store: Any = 0, uri: str = "") -> int:
        """The id of a named thing that events use or make; 0 while nothing is recorded."""
        number: int = _entities().declare_entity(type, key, store, uri)
        return number

    def declare_entity_type(self, type: str, role: Any = 0, description: str = "") -> None:
        """The role of a type of entity in the workflow."""
        _entities().declare_entity_type(type, role, description)

    def relate_entities(self, relation: Any, subject: int, object: int) -> None:
        """One entity is part of, made from, … another."""
        _entities().relate_entities(relation, subject, object)

    def set_app_metadata_int(self, key: str, value: int) -> None:
        """A fact about the program."""
        _core.log_metadata("CM", key, str(int(value)))

    def set_app_metadata_string(self, key: str, value: str) -> None:
        """A fact about the program."""
        _core.log_metadata("CM", key, str(value))

    def mark_used(self, name: str) -> None:
        """Note in the trace that an integration was used; once for each."""
        if name not in self._used:
            self._used.add(name)
            _core.log_metadata("CM", "used", str(name))

    def finalize(self) -> None:
        """Write everything and close the trace."""
        _session.end()

    def _ns(self, value: Any) -> int:
        try:
            return int(value * self._unit_ns)
        except (TypeError, ValueError, OverflowError):
            return 0


def _converted(convert: Any, value: Any) -> Any:
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError):
        return value


def _entities() -> ModuleType:
    from dftracer.compat import entities  # noqa: PLC0415 - few programs have any

    return entities
