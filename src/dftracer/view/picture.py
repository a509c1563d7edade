"""What a row looks like between two moments, at a width in pixels: its spans, or how full each pixel is.

The answer is exact at every zoom, and costs one binary search and at most 16 spans for each pixel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.load._scan import pixels
from dftracer.load.chunk import uint8s
from dftracer.view.part import BLOCK, Part

__all__ = ["Bins", "RowPicture", "draw_row"]

FILL_STEPS = 15


@dataclass
class Bins:
    """Runs of pixels that look alike: from, how many, class, and how full (0 to FILL_STEPS)."""

    x: npt.NDArray[np.uint16]
    width: npt.NDArray[np.uint16]
    cls: npt.NDArray[np.uint8]
    fill: npt.NDArray[np.uint8]

    def take(self, rows: Any) -> Bins:
        return Bins(self.x[rows], self.width[rows], self.cls[rows], self.fill[rows])


@dataclass
class RowPicture:
    """Either spans (their numbers) or bins."""

    spans: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int64))
    bins: Bins | None = None


def draw_row(
    part: Part, row: int, t0: int, t1: int, width: int, visible: npt.NDArray[np.bool_], of_pair: Any
) -> RowPicture:
    """One row; `visible` says which classes of the part are shown, `of_pair` the class of each pair."""
    low, high = part.row_span(row)
    start, end = part.start[low:high], part.end[low:high]
    first = int(np.searchsorted(end, t0, side="right"))
    # A zero-length span at the very beginning ends there and is still visible.
    while first > 0 and start[first - 1] >= t0:
        first -= 1
    last = int(np.searchsorted(start, t1, side="left"))
    if last - first <= width // 2:
        spans = np.arange(first, last)
        if not visible.all():
            spans = spans[visible[of_pair[part.pair[low + first : low + last]]]]
        return RowPicture(spans + low)
    return RowPicture(bins=_bins(part, row, (t0, t1, width), visible, of_pair))


def _bins(
    part: Part, row: int, window: tuple[int, int, int], visible: npt.NDArray[np.bool_], of_pair: Any
) -> Bins:
    t0, t1, width = window
    low, high = part.row_span(row)
    shown = np.zeros(256, bool)
    shown[: visible.size] = visible
    raw = pixels(
        part.start[low:high],
        part.end[low:high],
        part.pair[low:high],
        of_pair,
        part.classes[int(part.row_classes_at[row]) : int(part.row_classes_at[row + 1])],
        part.sums[int(part.row_sums[row]) : int(part.row_sums[row + 1])],
        BLOCK,
        shown,
        t0,
        t1,
        width,
        FILL_STEPS,
    )
    cls, fill = (uint8s(r) for r in raw)
    look = np.where(fill > 0, cls.astype(np.int32) * (FILL_STEPS + 1) + fill, -1)
    begins = np.flatnonzero(np.concatenate(([True], look[1:] != look[:-1])))
    ends = np.concatenate((begins[1:], [width]))
    keep = look[begins] >= 0
    begins, ends = begins[keep], ends[keep]
    return Bins(begins.astype(np.uint16), (ends - begins).astype(np.uint16), cls[begins], fill[begins])
