"""What to collect and when: checked once, from a call, from the environment or from a command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dftracer import _config

TRACES = ("pfw", "et", "kineto", "nsys")
PREFIX = "DFTRACER_COLLECT"
_STEPS = ("auto", "optimizer", "loader")


@dataclass(frozen=True)
class Options:
    """The options of a collection; the defaults are those of the documentation."""

    directory: str
    wait: int = 1
    warmup: int = 1
    active: int = 2
    repeat: int = 1
    skip_first: int = 0
    traces: tuple[str, ...] = ("pfw", "et", "kineto")
    et_windows: int | None = None  # windows with an execution trace; the others have Kineto alone
    compress: bool = True
    threads: str = "all"
    record_shapes: bool = True
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    plugins: tuple[Any, ...] = ("comms", "memory", "nvml")
    card: bool = True
    workload: Mapping[str, Any] = field(default_factory=dict)
    finish: str = "process"
    steps: str = "auto"

    def __post_init__(self) -> None:
        for name in ("wait", "warmup", "repeat", "skip_first"):
            if int(getattr(self, name)) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.active < 1:
            raise ValueError(f"active={self.active}: a window needs at least one step")
        unknown = [t for t in self.traces if t not in TRACES]
        if unknown:
            raise ValueError(f"unknown trace {unknown[0]!r}; choose from {', '.join(TRACES)}")
        if {"nsys", "kineto"} <= set(self.traces):
            raise ValueError("nsys and Kineto exclude each other (one CUPTI client); remove one from traces")
        for name, allowed in (
            ("threads", ("all", "main")),
            ("finish", ("process", "inline")),
            ("steps", _STEPS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")

    def schedule(self) -> dict[str, int]:
        """The numbers of the schedule, for the manifest."""
        return {name: getattr(self, name) for name in ("skip_first", "wait", "warmup", "active", "repeat")}

    def wants_et(self, window: int) -> bool:
        """Whether this window has an execution trace."""
        return "et" in self.traces and (self.et_windows is None or window < self.et_windows)


_NUMBERS = ("wait", "warmup", "active", "repeat", "skip_first", "et_windows")
_SWITCHES = (
    "compress",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
    "card",
)
_LISTS = ("traces", "plugins")


def as_environment(directory: str, given: Mapping[str, Any]) -> dict[str, str]:
    """The variables that make a process collect by itself."""
    env = {PREFIX: directory}
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool):
            text = "1" if value else "0"
        elif isinstance(value, Sequence) and not isinstance(value, str):
            text = ",".join(map(str, value))
        else:
            text = str(value)
        env[f"{PREFIX}_{name.upper()}"] = text
    return env


def from_environment(environ: Mapping[str, str] | None = None) -> Options | None:
    """What DFTRACER_COLLECT and its relatives ask for; None without them; ValueError names a wrong one."""
    env = os.environ if environ is None else environ
    directory = env.get(PREFIX, "")
    if not directory:
        return None
    given: dict[str, Any] = {}
    for each in fields(Options):
        variable = f"{PREFIX}_{each.name.upper()}"
        raw = env.get(variable, "").strip()
        if not raw or each.name in ("directory", "workload"):
            continue
        try:
            given[each.name] = _value(each.name, raw)
        except ValueError as error:
            raise ValueError(f"{variable}={raw!r}: {error}") from None
    return Options(directory, **given)


def _value(name: str, raw: str) -> Any:
    if name in _NUMBERS:
        return int(raw)
    if name in _SWITCHES:
        return _config.read_switch(raw)
    if name in _LISTS:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    return raw


def turn_tracing_on() -> None:
    """Annotations imported from now on record, unless the environment says no."""
    if "dftracer._session" not in sys.modules and not os.environ.get("DFTRACER_ENABLE"):
        _config.turn_on()
