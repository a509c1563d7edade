"""One pass over a loader: from `iter(loader)` to its last batch, or to the moment it is dropped."""

from __future__ import annotations

import weakref
from typing import Any

from dftracer._core import PassFields
from dftracer.auto._events import now

__all__ = ["Pass"]


class Pass(PassFields):
    """What is known about it. It trains if a backward follows one of its batches."""

    __slots__ = (
        "__weakref__",
        "began",
        "ended",
        "first",
        "loader",
        "ready",
        "restarts",
    )

    def __init__(self, loader: int, began: int, ready: int, restarts: int = 0) -> None:
        self.loader = loader  # which loader, as far as it can be told
        self.began = began  # iter(loader) was called, and
        self.ready = ready  # had returned
        self.restarts = restarts  # of persistent workers: which of their passes this is
        self.fetches = 0
        self.first = 0  # the begin of the first wait, iter() included
        self.trains = False
        self.ended = 0  # when it said that there are no more batches
        self.died = 0  # when its iterator was no longer referenced
        self.iterator = None
        self.workers = None  # the iterator's, if it has any

    def of_iterator(self, iterator: Any) -> None:
        """The iterator whose pass it is; it is not kept alive by that."""
        self.iterator = weakref.ref(iterator)
        self.workers = getattr(iterator, "_workers", None)

    def follow(self, iterator: Any) -> None:
        """The same, and know when the program lets go of it: the end of a loop that was left early."""
        self.of_iterator(iterator)
        seen = weakref.ref(self)

        def gone(_: object) -> None:
            known = seen()
            if known is not None:
                known.died = now()

        self.iterator = weakref.ref(iterator, gone)

    @property
    def over(self) -> int:
        """When it was over, 0 if it may go on; looking ahead, it is let go of after its last batch."""
        return max(self.ended, self.died)
