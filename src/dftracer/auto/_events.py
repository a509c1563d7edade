"""The words of automatic events, and who may say them: an event written by hand silences its twin."""

from __future__ import annotations

from typing import Any

from dftracer import _core
from dftracer.python import ai

__all__ = [
    "AHEAD",
    "BACKWARD",
    "BLOCK",
    "CAPTURE",
    "COLLATE",
    "EPOCH",
    "EVALUATE",
    "FETCH",
    "FORWARD",
    "ITEM",
    "PREPROCESS",
    "RESTART",
    "STEP",
    "TRAIN",
    "TRANSFER",
    "Word",
    "begin_anew",
    "now",
]

now = _core.time_ns
_log = _core.log_event
_log_automatic = _core.log_automatic
_boundary = _core.boundary


class Word:
    """One kind of automatic event, and the nodes that say the same by hand."""

    __slots__ = ("_begin", "_seen", "_silent", "_twins", "cat", "name")

    def __init__(self, name: str, cat: str, *twins: _core.Node, phase: int = 0) -> None:
        self.name = name
        self.cat = cat
        self._twins = twins
        self._seen = 0
        self._silent = False
        self._begin = 2 * phase  # as native/module/boundary.hpp numbers them; 0: no phase of a device

    def begins(self) -> None:
        """It begins now: devices are asked how far they are."""
        if self._begin and not self._silent:
            _boundary(self._begin)

    def ends(self) -> None:
        """It ends now."""
        if self._begin and not self._silent:
            _boundary(self._begin + 1)

    def by_hand(self) -> bool:
        """Whether the program has said it itself since this was last asked."""
        begun = 0
        for twin in self._twins:
            begun += twin.begun
        self._silent = begun != self._seen
        self._seen = begun
        return self._silent

    def write(self, start: int, end: int, args: dict[str, Any]) -> bool:
        """One event, unless the program writes its own; gives whether it was written."""
        begun = 0
        for twin in self._twins:
            begun += twin.begun
        if begun != self._seen:
            self._seen = begun
            self._silent = True
            return False
        self._silent = False
        args["auto"] = 1
        _log(self.name, self.cat, start, end - start, args)
        return True

    def write_in_step(self, start: int, end: int, step: int, epoch: int) -> None:
        """`write` with the two numbers that nearly every event has."""
        begun = 0
        for twin in self._twins:
            begun += twin.begun
        if begun != self._seen:
            self._seen = begun
            self._silent = True
            return
        self._silent = False
        _log_automatic(self.name, self.cat, start, end, "step", step, "epoch", epoch)


def begin_anew() -> None:
    """What was said by hand until now does not count."""
    for word in WORDS:
        word.by_hand()
        word._silent = False


_fetch, _pipeline = ai.dataloader.fetch, ai.pipeline

FETCH = Word("fetch.iter", "dataloader", _fetch._named("fetch.iter"), _fetch.derive("iter"), phase=1)
AHEAD = Word("fetch", "dataloader", _fetch)
BLOCK = Word("fetch.block", "dataloader", _fetch._named("fetch.block"), _fetch.derive("block"), phase=2)
ITEM = Word("item", "data", ai.data.item)
COLLATE = Word("collate", "data", ai.data.derive("collate"), ai.data.preprocess.derive("collate"))
PREPROCESS = Word("preprocess", "data", ai.data.preprocess)
TRANSFER = Word("transfer", "device", ai.device.transfer)
FORWARD = Word("forward", "compute", ai.compute.forward, phase=4)
BACKWARD = Word("backward", "compute", ai.compute.backward, phase=5)
STEP = Word("step", "compute", ai.compute.step, phase=6)
CAPTURE = Word("capture", "checkpoint", ai.checkpoint.capture)
RESTART = Word("restart", "checkpoint", ai.checkpoint.restart)
TRAIN = Word("train", "pipeline", _pipeline.train)
EPOCH = Word(
    "epoch",
    "pipeline",
    _pipeline.epoch,
    _pipeline.epoch._named("epoch.block"),
    _pipeline.epoch.derive("block"),
)
EVALUATE = Word("evaluate", "pipeline", _pipeline.evaluate, _pipeline.test)
WORDS = [word for word in globals().values() if isinstance(word, Word)]
