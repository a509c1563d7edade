"""The step rule as the boundaries see it: the events it writes, a `Training` for each thread, a `Pass` for
each loop over a loader.

The rule itself is native (native/module/step_rule.hpp says what a step is), so that steps are known while the
program runs, without the interpreter's lock.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from dftracer import _core, metrics
from dftracer._core import AutoEvent, Training, training
from dftracer.python import ai
from dftracer.torch.hang import rest_at_forks
from dftracer.torch.patches import Patches, out_of_sight, safely

ALL_INSIDE = -1  # `Training.scaling`, instead of one optimizer: all that step now are parts of one step

# --- The kinds of automatic events: a manual annotation suppresses the matching automatic event

now = _core.time_ns


_fetch, _pipeline = ai.dataloader.fetch, ai.pipeline

FETCH = AutoEvent("fetch.iter", "dataloader", (_fetch._named("fetch.iter"), _fetch.derive("iter")), phase=1)
AHEAD = AutoEvent("fetch", "dataloader", (_fetch,))
BLOCK = AutoEvent(
    "fetch.block", "dataloader", (_fetch._named("fetch.block"), _fetch.derive("block")), phase=2
)
ITEM = AutoEvent("item", "data", (ai.data.item,))
COLLATE = AutoEvent("collate", "data", (ai.data.derive("collate"), ai.data.preprocess.derive("collate")))
PREPROCESS = AutoEvent("preprocess", "data", (ai.data.preprocess,))
TRANSFER = AutoEvent("transfer", "device", (ai.device.transfer,))
FORWARD = AutoEvent("forward", "compute", (ai.compute.forward,), phase=4)
BACKWARD = AutoEvent("backward", "compute", (ai.compute.backward,), phase=5)
STEP = AutoEvent("step", "compute", (ai.compute.step,), phase=6)
CAPTURE = AutoEvent("capture", "checkpoint", (ai.checkpoint.capture,))
GATHER = AutoEvent("gather", "checkpoint", (ai.checkpoint.derive("gather"),))
RESTART = AutoEvent("restart", "checkpoint", (ai.checkpoint.restart,))
TRAIN = AutoEvent("train", "pipeline", (_pipeline.train,))
EPOCH = AutoEvent(
    "epoch",
    "pipeline",
    (_pipeline.epoch, _pipeline.epoch._named("epoch.block"), _pipeline.epoch.derive("block")),
)
EVALUATE = AutoEvent("evaluate", "pipeline", (_pipeline.evaluate, _pipeline.test))
EVENTS = [each for each in globals().values() if isinstance(each, AutoEvent)]


def begin_anew() -> None:
    """Ignore manual annotations made until now."""
    for event in EVENTS:
        event.begin_anew()


# --- The rule

_local = threading.local()
_all: list[Training] = []


class Pass(_core.LoaderPass):
    """One pass over a loader: from `iter(loader)` to its last batch, or to the moment it is dropped."""

    __slots__ = ("__weakref__",)

    def of_iterator(self, iterator: Any) -> None:
        """The iterator whose pass it is; neither it nor its workers' pipes are kept alive by that."""
        self.iterator = weakref.ref(iterator)
        self.has_workers = getattr(iterator, "_workers", None) is not None

    def follow(self, iterator: Any) -> None:
        """The same, and know when the program lets go of it: the end of a loop that was left early."""
        self.of_iterator(iterator)
        seen = weakref.ref(self)

        def gone(_: object) -> None:
            known = seen()
            if known is not None:
                known.dies()

        self.iterator = weakref.ref(iterator, gone)


def install(torch: ModuleType, patches: Patches) -> None:
    """Set the rule up, and watch the calls of models."""
    events = (
        FETCH,
        AHEAD,
        BLOCK,
        FORWARD,
        BACKWARD,
        STEP,
        TRAIN,
        EPOCH,
        EVALUATE,
    )
    _core.step_rule(events, torch.is_grad_enabled, _make, vars(torch.compiler))
    rest_at_forks()
    _core.sample_own_code(_not_the_programs())
    safely(out_of_sight, _make)
    _core.mute_models(False)
    watch_models(torch, patches)


def watch_models(torch: ModuleType, patches: Patches) -> None:
    """Know of the calls of models, whichever class they have."""
    module: Any = torch.nn.Module
    _core.watch_models(module)
    patches.later(_core.unwatch_models)

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        super(module, cls).__init_subclass__(**kwargs)
        _core.watch_model_type(cls)

    safely(out_of_sight, init_subclass)
    if "__init_subclass__" not in vars(module):
        module.__init_subclass__ = classmethod(init_subclass)
        patches.later(functools.partial(_take_away, module, "__init_subclass__", init_subclass))


def _take_away(owner: Any, name: str, function: Any) -> None:
    if getattr(vars(owner).get(name), "__func__", None) is function:
        delattr(owner, name)


# Detail inside the model, on request: `compute/forward.<class>` for every module that is called. The calls
# are seen where those of models are (native/module/model_calls.hpp). A hook of torch would switch off its
# fastest path and change compiled graphs, which are left alone.


def install_modules(torch: ModuleType, patches: Patches) -> None:
    """Watch every module's forward."""
    watch_models(torch, patches)
    _core.record_modules(True)
    patches.later(functools.partial(_core.record_modules, False))


class modules:  # noqa: N801 - used as a word: `with modules():`
    """Watch modules for the time of a block."""

    def __init__(self) -> None:
        self._patches = Patches()

    def __enter__(self) -> modules:
        install_modules(sys.modules["torch"], self._patches)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.take_back()


def install_compiled(module: ModuleType, patches: Patches) -> None:
    """Functions that `torch.compile` made call models inside their graphs: each of them counts as one."""
    original = getattr(module, "_maybe_set_eval_frame", None)
    if original is None:
        return
    watching = _core.watch_compiled(original)
    vars(module)["_maybe_set_eval_frame"] = watching

    def undo() -> None:
        if vars(module).get("_maybe_set_eval_frame") is watching:
            vars(module)["_maybe_set_eval_frame"] = original

    patches.later(undo)


def _not_the_programs() -> tuple[str, ...]:
    """Directories of the standard library and of this package."""
    library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return (*(f"{each}/" for each in sorted(library) if each), f"{Path(__file__).parents[1]}/")


def _make() -> Training:
    """The training of a thread that has none yet."""
    # The autograd engine has threads of its own, on which an optimizer in backward steps.
    found = next((each for each in _all if each.in_backward), None)
    if found is None:
        if not _all:
            _finish_at_exit()
            safely(metrics.training_begins)
        main = threading.current_thread() is threading.main_thread()
        found = Training(main)
        _all.append(found)
        if not main:
            _local.leaving = _Leaving(found)
    return found


class _Leaving:
    """Goes when its thread does, and closes what that has open: Ray kills a process soon after."""

    __slots__ = ("_of", "_thread")

    def __init__(self, of: Training) -> None:
        self._of = of
        self._thread = os.getpid(), threading.get_ident()

    def __del__(self, pid: Any = os.getpid, ident: Any = threading.get_ident) -> None:
        if self._thread == (pid(), ident()):  # not the copy that a forked child throws away
            safely(_leave, self._of)


def _leave(of: Training) -> None:
    of.finish()
    if of in _all:
        _all.remove(of)


def _finish_at_exit() -> None:
    """Processes of multiprocessing leave without `atexit`."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        util = importlib.import_module("multiprocessing.util")
        util.Finalize(None, finish_all, exitpriority=0)


def finish_all(error: str | None = None) -> None:
    """Close what is open in all threads."""
    for each in list(_all):
        each.finish(error)


def forget_all() -> None:
    """A child process begins without what its parent had open."""
    _core.forget_trainings()
    vars(_local).clear()  # the child has one thread
    _all.clear()


def forget_this() -> None:
    """What this thread has done so far was no training."""
    here = training()
    if here in _all and not here.backwards:
        _all.remove(here)
        _core.forget_training()


def evaluating(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of a framework, its time accounted as evaluation."""

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        here = training()
        safely(here.evaluation_begins)
        try:
            return original(*args, **kwargs)
        finally:
            safely(here.evaluation_ends)

    return evaluate
