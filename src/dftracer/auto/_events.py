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
    "now",
]

now = _core.time_ns
_log = _core.log_event


class Word:
    """One kind of automatic event, and the nodes that say the same by hand."""

    __slots__ = ("_seen", "_twins", "cat", "name")

    def __init__(self, name: str, cat: str, *twins: _core.Node) -> None:
        self.name = name
        self.cat = cat
        self._twins = twins
        self._seen = 0

    def by_hand(self) -> bool:
        """Whether the program has said it itself since this was last asked."""
        begun = 0
        for twin in self._twins:
            begun += twin.begun
        if begun == self._seen:
            return False
        self._seen = begun
        return True

    def write(self, start: int, end: int, args: dict[str, Any]) -> bool:
        """One event, unless the program writes its own; gives whether it was written."""
        if self.by_hand():
            return False
        args["auto"] = 1
        _log(self.name, self.cat, start, end - start, args)
        return True


_fetch, _pipeline = ai.dataloader.fetch, ai.pipeline

FETCH = Word("fetch.iter", "dataloader", _fetch._named("fetch.iter"), _fetch.derive("iter"))
AHEAD = Word("fetch", "dataloader", _fetch)
BLOCK = Word("fetch.block", "dataloader", _fetch._named("fetch.block"), _fetch.derive("block"))
ITEM = Word("item", "data", ai.data.item)
COLLATE = Word("collate", "data", ai.data.derive("collate"), ai.data.preprocess.derive("collate"))
PREPROCESS = Word("preprocess", "data", ai.data.preprocess)
TRANSFER = Word("transfer", "device", ai.device.transfer)
FORWARD = Word("forward", "compute", ai.compute.forward)
BACKWARD = Word("backward", "compute", ai.compute.backward)
STEP = Word("step", "compute", ai.compute.step)
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
