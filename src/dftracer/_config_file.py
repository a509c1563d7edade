"""Settings from a TOML, YAML or JSON file: flat, under `dftracer`, or in the sections of DFTracer's files."""

from __future__ import annotations

import errno
import importlib
import json
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

_MAX_BYTES = 1 << 20

# DFTracer's sections: path in the file -> (setting, whether the meaning is inverted).
_SECTIONS: dict[tuple[str, ...], tuple[str, bool]] = {
    **{
        (section, key): (setting, False)
        for section in ("profiler", "tracer")
        for key, setting in (
            ("init", "init"),
            ("log_file", "log_file"),
            ("data_dirs", "data_dir"),
            ("data_dir", "data_dir"),
            ("log_level", "log_level"),
            ("compression", "trace_compression"),
            ("interval", "trace_interval_ms"),
        )
    },
    ("features", "metadata"): ("inc_metadata", False),
    ("features", "core_affinity"): ("set_core_affinity", False),
    ("features", "tid"): ("disable_tids", True),
    ("features", "io", "enable"): ("disable_io", True),
    ("features", "io", "posix"): ("disable_posix", True),
    ("features", "io", "stdio"): ("disable_stdio", True),
    ("features", "aggregation", "enable"): ("enable_aggregation", False),
    ("features", "aggregation", "type"): ("aggregation_type", False),
    ("features", "aggregation", "file"): ("aggregation_file", False),
    ("internal", "log_level"): ("log_level", False),
    ("internal", "bind_signals"): ("bind_signals", False),
    ("internal", "write_buffer_size"): ("write_buffer_size", False),
}
_SECTION_NAMES = {path[:depth] for path in _SECTIONS for depth in range(1, len(path))}

# Keys of DFTracer's files that have no counterpart here: not a user's mistake, but worth a warning.
_FOREIGN: tuple[tuple[str, ...], ...] = (
    ("gotcha",),
    ("internal", "throw_error"),
    ("profiler", "time_metric"),
    ("profiler", "libuv_threads"),
    ("tracer", "time_metric"),
    ("tracer", "libuv_threads"),
    ("features", "omnistat"),
    ("features", "papi"),
    ("features", "variorum"),
)


class Key:
    """A setting as the file spells it."""

    __slots__ = ("setting", "shown")

    def __init__(self, setting: str, shown: str) -> None:
        self.setting = setting
        self.shown = shown


def read(
    path: str,
    names: Mapping[str, object],
    mistake: Callable[[str], None],
    note: Callable[[str], None],
) -> Iterator[tuple[Key, object, bool]]:
    """Each setting of the file with its raw value and whether its meaning is inverted."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        mistake(f"cannot read DFTRACER_CONFIGURATION={path}: {getattr(error, 'strerror', None) or error}")
        return
    if len(data) > _MAX_BYTES:
        mistake(f"DFTRACER_CONFIGURATION={path} is larger than {_MAX_BYTES} bytes and is not read")
        return
    try:
        document = parse(data.decode("utf-8"), path)
    except _NoParser as error:
        mistake(f"cannot read DFTRACER_CONFIGURATION={path}: {error}")
        return
    except Exception as error:
        # Third-party parsers may raise anything, and a settings file must never stop a training job.
        mistake(f"DFTRACER_CONFIGURATION={path} is malformed and ignored: {error}")
        return
    if document is None or document == "":
        return
    if not isinstance(document, dict):
        mistake(f"DFTRACER_CONFIGURATION={path} is malformed and ignored: not a mapping of settings")
        return
    yield from _Walk(path, names, mistake, note).settings(document)


def _without_waiting(path: str, flags: int) -> int:
    """Opens a regular file; a pipe would wait for its writer, and the program with it."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")
    return handle


class _NoParser(ValueError):
    """What has to be installed."""


def parse(text: str, path: str) -> object:
    """The document of a settings file, TOML, JSON or YAML by its extension, else by its content."""
    if _is_toml(text, path):
        return _toml(text)
    if path.lower().endswith(".json"):
        return json.loads(text)
    return _yaml(text)


def _is_toml(text: str, path: str) -> bool:
    lowered = path.lower()
    if lowered.endswith((".yaml", ".yml", ".json")):
        return False
    if lowered.endswith(".toml"):
        return True
    for line in text.splitlines():
        content = line.strip()
        if content and not content.startswith("#"):
            equals, colon = content.find("="), content.find(":")
            return content.startswith("[") or (equals != -1 and (colon == -1 or equals < colon))
    return False


def _toml(text: str) -> object:
    import tomllib  # noqa: PLC0415 - only where there is such a file

    return tomllib.loads(text)


def _yaml(text: str) -> object:
    try:
        parser: Any = importlib.import_module("yaml")
    except ImportError:
        if text.lstrip().startswith("{"):  # JSON is YAML, too
            return json.loads(text)
        from dftracer._packages import advice  # noqa: PLC0415 - only when something is missing

        raise _NoParser(
            f"YAML needs PyYAML, which is not installed: {advice('PyYAML')}, or write the settings as TOML"
        ) from None
    # A few nested aliases can stand for billions of values; no setting needs them.
    if any(isinstance(token, parser.AliasToken) for token in parser.scan(text)):
        raise ValueError("aliases (*name) are not allowed")
    # Scalars stay text: the table of settings decides what `on`, `010` or `1_000` mean.
    return parser.load(text, Loader=parser.BaseLoader)


class _Walk:
    """Walks one document; knows whom to tell about what it cannot use."""

    __slots__ = ("mistake", "names", "note", "path")

    def __init__(
        self,
        path: str,
        names: Mapping[str, object],
        mistake: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self.path = path
        self.names = names
        self.mistake = mistake
        self.note = note

    def settings(
        self, mapping: dict[Any, Any], at: tuple[str, ...] = ()
    ) -> Iterator[tuple[Key, object, bool]]:
        for raw_key, value in mapping.items():
            shown = ".".join((*at, str(raw_key)))
            key = str(raw_key).lower().replace("-", "_")
            here = (*at, key)
            flat = key.removeprefix("dftracer_")
            if here in _SECTIONS:
                setting, invert = _SECTIONS[here]
                yield Key(setting, shown), value, invert
            elif not at and flat in self.names and flat != "configuration":
                yield Key(flat, shown), value, False
            elif not at and key == "dftracer" and isinstance(value, dict):
                yield from self.settings(value)
            elif here in _SECTION_NAMES and isinstance(value, dict):
                yield from self.settings(value, here)
            elif here in _SECTION_NAMES and (value is None or value == ""):
                continue
            elif here in _FOREIGN:
                self.note(f"{shown} in {self.path} has no effect here")
            else:
                self.mistake(f"unknown setting {shown} in {self.path}; ignored")
