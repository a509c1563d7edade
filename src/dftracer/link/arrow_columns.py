"""Arrow columns straight from NumPy memory.

`pyarrow.array` would import pandas if it is installed, which takes longer than linking a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dftracer._packages import need

__all__ = ["booleans", "dictionary", "numbers", "texts"]


def _bits(flags: Any) -> Any:
    return need("pyarrow").py_buffer(np.packbits(flags, bitorder="little"))


def _validity(null: Any) -> Any:
    return None if null is None or not null.any() else _bits(~null)


def numbers(values: Any, null: Any = None) -> Any:
    """Whole numbers of 32 or 64 bits."""
    pa = need("pyarrow")
    values = np.ascontiguousarray(values)
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, values.size, [_validity(null), pa.py_buffer(values)])


def booleans(flags: Any) -> Any:
    pa = need("pyarrow")
    return pa.Array.from_buffers(pa.bool_(), flags.size, [None, _bits(flags)])


def texts(values: Sequence[str]) -> Any:
    pa = need("pyarrow")
    encoded = [v.encode("utf-8", "replace") for v in values]
    ends = np.cumsum([0, *(len(e) for e in encoded)]).astype(np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    )


def dictionary(codes: Any, listed: Sequence[str]) -> Any:
    """Texts from codes; -1 is null."""
    pa = need("pyarrow")
    indices = np.ascontiguousarray(codes, dtype=np.int32)
    return pa.DictionaryArray.from_arrays(numbers(indices, indices < 0), texts(listed))
