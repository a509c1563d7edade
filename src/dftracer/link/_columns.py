"""Small helpers for columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Codes", "Flags", "Interner", "Ints", "integers", "last_at_or_before"]

Ints: TypeAlias = "npt.NDArray[np.int64]"
Codes: TypeAlias = "npt.NDArray[np.int32]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"


class Interner(dict[Any, int]):
    """Numbers for values, in the order of their first appearance."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number

    def codes(self, values: Iterable[Any]) -> list[int]:
        """The numbers of many values."""
        return list(map(self.__getitem__, values))


def integers(values: Iterable[Any]) -> Ints:
    """Whole numbers as a column; -1 for what is no number and for the largest unsigned one."""
    numbers = values if isinstance(values, list) else list(values)
    try:
        return np.array(numbers, dtype=np.int64)
    except (OverflowError, TypeError, ValueError):
        return np.array([_integer(v) for v in numbers], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if -(1 << 63) <= number < 1 << 63 else -1


def last_at_or_before(sorted_values: Ints, wanted: Ints) -> Ints:
    """For each wanted value the position of the last that is not larger, -1 without one."""
    at: Ints = np.searchsorted(sorted_values, wanted, side="right").astype(np.int64) - 1
    return at
