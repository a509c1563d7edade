"""The FLOPs of one step, counted once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dftracer import _core

__all__ = ["count_flops"]


@contextlib.contextmanager
def count_flops(*, samples: float | None = None, tokens: float | None = None) -> Iterator[Any]:
    """Count the FLOPs of the step inside, for the report's FLOP/s and MFU; also its samples and tokens.

    torch's counter sees every operator and is slow: use it for one step only. Yields the counter.
    """
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - only where it is used

    with FlopCounterMode(display=False) as counter:
        yield counter
    for key, value in (("flops", counter.get_total_flops()), ("samples", samples), ("tokens", tokens)):
        if value is not None:
            _core.log_metadata("CM", f"step.{key}", str(value))
