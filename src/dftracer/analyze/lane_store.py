"""Data that grows with the trace between the two map steps, kept in memory only up to a limit."""

from __future__ import annotations

import pickle
import tempfile
from typing import IO

from dftracer.analyze.lanes import Lanes, packed, unpacked

__all__ = ["LaneStore"]


class LaneStore:
    """The lanes of every process: in memory while they are small, the rest in an unnamed file."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._places: dict[int, Lanes | int] = {}  # the lanes, or where they begin in the file
        self._bases: dict[int, int] = {}  # the base time of each one's lanes
        self._file: IO[bytes] | None = None

    def __enter__(self) -> LaneStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, key: int, lanes: Lanes) -> None:
        base = min((int(lane.start[0]) for lane in lanes.lanes if lane.start.size), default=0)
        lanes = packed(lanes, base)
        self._bases[key] = base
        if self._held + lanes.nbytes <= self._limit:
            self._held += lanes.nbytes
            self._places[key] = lanes
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="dftracer-")  # noqa: SIM115 - lives as long as self
        self._file.seek(0, 2)
        self._places[key] = self._file.tell()
        pickle.dump(lanes, self._file, protocol=5)

    def take(self, key: int) -> Lanes:
        """The lanes stored under `key`, which are removed from the store."""
        place, base = self._places.pop(key), self._bases.pop(key)
        if isinstance(place, Lanes):
            self._held -= place.nbytes
            return unpacked(place, base)
        assert self._file is not None
        self._file.seek(place)
        lanes: Lanes = pickle.load(self._file)
        return unpacked(lanes, base)
