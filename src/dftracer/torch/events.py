"""The kinds of automatic events: a manual annotation suppresses the matching automatic event."""

from __future__ import annotations

from dftracer import _core
from dftracer.python import ai

now = _core.time_ns
Word = _core.Word


def begin_anew() -> None:
    """Ignore manual annotations made until now."""
    for word in WORDS:
        word.begin_anew()


_fetch, _pipeline = ai.dataloader.fetch, ai.pipeline

FETCH = Word("fetch.iter", "dataloader", (_fetch._named("fetch.iter"), _fetch.derive("iter")), phase=1)
AHEAD = Word("fetch", "dataloader", (_fetch,))
BLOCK = Word("fetch.block", "dataloader", (_fetch._named("fetch.block"), _fetch.derive("block")), phase=2)
ITEM = Word("item", "data", (ai.data.item,))
COLLATE = Word("collate", "data", (ai.data.derive("collate"), ai.data.preprocess.derive("collate")))
PREPROCESS = Word("preprocess", "data", (ai.data.preprocess,))
TRANSFER = Word("transfer", "device", (ai.device.transfer,))
FORWARD = Word("forward", "compute", (ai.compute.forward,), phase=4)
BACKWARD = Word("backward", "compute", (ai.compute.backward,), phase=5)
STEP = Word("step", "compute", (ai.compute.step,), phase=6)
CAPTURE = Word("capture", "checkpoint", (ai.checkpoint.capture,))
RESTART = Word("restart", "checkpoint", (ai.checkpoint.restart,))
TRAIN = Word("train", "pipeline", (_pipeline.train,))
EPOCH = Word(
    "epoch",
    "pipeline",
    (_pipeline.epoch, _pipeline.epoch._named("epoch.block"), _pipeline.epoch.derive("block")),
)
EVALUATE = Word("evaluate", "pipeline", (_pipeline.evaluate, _pipeline.test))
WORDS = [word for word in globals().values() if isinstance(word, Word)]
