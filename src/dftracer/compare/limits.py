"""Limits that a run must meet: `fetch_wait.share < 0.1`, from the command line or a TOML file."""

from __future__ import annotations

import operator
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["BadLimit", "Limit", "LimitFile", "parse_limit", "parse_share", "read_limits"]

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_UNITS = {"": 1.0, "%": 0.01, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_UNITS |= {"B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(%|[A-Za-z]*)"
_LIMIT = re.compile(rf"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*{_NUMBER}\s*")
_VALUE = re.compile(rf"\s*{_NUMBER}\s*")
_MOST_BYTES = 1 << 20


class BadLimit(ValueError):
    """A limit, or a file of limits, that cannot be read."""


@dataclass(frozen=True)
class Limit:
    """The condition for one figure of the run."""

    figure: str
    sign: str
    value: float
    text: str

    def kept(self, value: float) -> bool:
        return _OPERATORS[self.sign](value, self.value)


@dataclass
class LimitFile:
    """The contents of a limits file."""

    limits: list[Limit] = field(default_factory=list)
    max_regression: float | None = None
    max_stage_regression: float | None = None
    baseline: str | None = None


def parse_limit(text: str) -> Limit:
    """`figure < number`, optionally with % or a unit."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        raise BadLimit(
            f"{text!r} is not a limit; write it like 'fetch_wait.share < 0.1' or 'step.p95 < 500 ms'"
        )
    figure, sign, number, unit = found.groups()
    return Limit(figure, sign, _number(number, unit, text), " ".join(text.split()))


def parse_share(text: object) -> float:
    """`5%` or `0.05`."""
    found = _VALUE.fullmatch(str(text))
    if found is None or found[2] not in ("", "%"):
        raise BadLimit(f"{text!r} is not a share; write it like 5% or 0.05")
    value = _number(found[1], found[2], str(text))
    if not 0 <= value < 100:
        raise BadLimit(f"{text!r} is not between 0 and 100 times; write it like 5% or 0.05")
    # Someone who writes 0.05 does not mean 5 as five percent, and nobody means it as five times.
    if found[2] == "" and value >= 1:
        raise BadLimit(f"{text!r}: is that percent? Write {text}%")
    return value


def _number(number: str, unit: str, text: str) -> float:
    if unit not in _UNITS:
        raise BadLimit(f"{text!r}: unknown unit {unit!r}; known units: {', '.join(u for u in _UNITS if u)}")
    return float(number) * _UNITS[unit]


def read_limits(path: str) -> LimitFile:
    """A TOML file: a table or a list `limits`, and optionally `baseline` and `max_regression`."""
    file = Path(path)
    if file.stat().st_size > _MOST_BYTES:
        raise BadLimit(f"{path} is larger than {_MOST_BYTES} bytes")
    try:
        told: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as e:
        raise BadLimit(f"{path}: {e}") from None
    out = LimitFile()
    for key, value in told.items():
        try:
            if key == "limits":
                out.limits += [parse_limit(text) for text in _texts(value)]
            elif key in ("max_regression", "max_stage_regression"):
                setattr(out, key, parse_share(value))
            elif key == "baseline":
                out.baseline = str(file.parent / str(value))
            else:
                known = "limits, baseline, max_regression, max_stage_regression"
                raise BadLimit(f"unknown key {key!r}; known keys: {known}")
        except BadLimit as e:
            raise BadLimit(f"{path}: {e}") from None
    return out


def _texts(value: Any, at: str = "") -> Iterator[str]:
    """`"step.p95" = "< 0.5"`, with or without quotes around the name, or whole limits in a list."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list):
        for inner in value:
            # A list may give one figure two limits, or contain whole limits.
            whole = isinstance(inner, str) and _LIMIT.fullmatch(inner)
            yield from _texts(inner, "" if whole else at)
    elif isinstance(value, str):
        yield f"{at} {value}" if at else value
    else:
        raise BadLimit(
            f"{at} = {value!r} does not say whether more or less is meant; write it like {at} = '< {value}'"
        )
