"""What the step rule remembers between two boundaries."""

from __future__ import annotations

import threading

from dftracer._core import StateFields
from dftracer.auto._passes import Pass
from dftracer.auto._step import Step

__all__ = ["OPTIMIZERS", "State"]


class _Optimizers:
    """Whether the program is known to have no optimizer."""

    none = False


OPTIMIZERS = _Optimizers()


class State(StateFields):
    """Of one thread. All times are those of the trace's clock, in ns."""

    __slots__ = ("gradients",)
    gradients: list[tuple[int, int]]
    step: Step | None
    evaluation: tuple[int, Pass] | None
    _epoch_pass: Pass | None
    latest: Pass | None

    def __init__(self) -> None:
        self.step = None
        self.number = 0  # of the open step, or the next one
        self.epoch = None
        self._epoch_start = 0
        self._epoch_pass = None
        self.evaluation = None
        self._loaders = {}  # loader -> whether it trains
        self._free = 0  # since when the thread may be computing forward
        self._last = 0  # the end of the latest event
        self._first = 0  # the begin of the first step
        self._step_end = 0  # of the latest step
        # A thread that is not the main one and has not trained only loads ahead for another.
        self._counts = threading.current_thread() is threading.main_thread()
        self._backwards = 0
        self._depth = 0  # of nested backwards
        self._backward_start = 0
        self._backward_end = 0
        self._optimizers = []  # that are stepping: key and start
        self._optimizer = self._optimizer_start = 0  # the same, of one that is alone
        self._leftover = None  # the last wait of a loader that has ended
        self._marked_forward = None
        self._forward_done = 0
        self._framework_steps = False
        self._framework_evaluates = False
        self.fetching = False
        self.scaling = None  # the optimizer that a gradient scaler steps, or an engine ALL_INSIDE (_compute)
        self.scaled = False  # and whether it did
        self.gradients = []  # calls of torch.autograd.grad that may turn out to be a backward
        self.batch = ()  # ids of the tensors of the latest batch
        self.latest = None  # the pass that it came from
        self.facts = None  # which task of which worker made it, as keys and values in turns
        self.fetch_end = 0
