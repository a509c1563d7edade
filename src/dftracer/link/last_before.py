"""The last entry with the same key before a moment, for whole columns at once."""

from __future__ import annotations

import numpy as np

from dftracer.link._columns import Ints

__all__ = ["last_before"]


def last_before(
    key: Ints,
    time: Ints,
    wanted_key: Ints,
    wanted_time: Ints,
    place: Ints | None = None,
    wanted_place: Ints | None = None,
) -> Ints:
    """For each wanted key and time, the index of the last entry of `key` not after it, -1 if there is none.

    Among equal times the smaller place comes first, and at the same place the wanted one before the others.
    """
    n, m = key.size, wanted_key.size
    out = np.full(m, -1, dtype=np.int64)
    if not n or not m:
        return out
    is_wanted = np.concatenate([np.zeros(n, dtype=np.int8), np.ones(m, dtype=np.int8)])
    keys = np.concatenate([key, wanted_key])
    columns = [np.concatenate([time, wanted_time]), keys]
    if place is not None and wanted_place is not None:
        columns.insert(0, np.concatenate([place, wanted_place]))
    order = np.lexsort((-is_wanted, *columns))
    found = np.where(is_wanted[order] == 0, np.arange(n + m), -1)
    found = np.maximum.accumulate(found)
    at = np.flatnonzero(is_wanted[order] == 1)
    source = found[at]
    ok = (source >= 0) & (keys[order[np.maximum(source, 0)]] == keys[order[at]])
    out[order[at[ok]] - n] = order[source[ok]]
    return out
