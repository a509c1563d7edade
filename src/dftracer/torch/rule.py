"""The step rule as the boundaries see it: the events it writes, a `Training` for each thread, a `Pass` for
each loop over a loader.

The rule itself is native (native/module/step_rule.hpp says what a step is), so that steps are known while the
program runs, without the interpreter's lock.
"""

from __future__ import annotations

import functools
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
from dftracer._session import at_child_exit
from dftracer.python import ai
from dftracer.torch.hang import pause_threads_around_fork
from dftracer.torch.patches import Patches, hide_from_dynamo, safely

ANY_OPTIMIZER = -1  # as `Training.scaling`: every optimizer step now belongs to one step

now = _core.time_ns

# --- The kinds of automatic events: a manual annotation suppresses the matching automatic event

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


def forget_annotations() -> None:
    """Ignore manual annotations made until now."""
    for event in EVENTS:
        event.forget_annotations()


# --- The rule

_local = threading.local()
_all: list[Training] = []


class Pass(_core.LoaderPass):
    """One pass over a loader: from `iter(loader)` to its last batch, or to the moment it is dropped."""

    __slots__ = ("__weakref__",)

    def of_iterator(self, iterator: Any) -> None:
        """Set the iterator of this pass, without keeping it or its workers' pipes alive."""
        self.iterator = weakref.ref(iterator)
        self.has_workers = getattr(iterator, "_workers", None) is not None

    def follow(self, iterator: Any) -> None:
        """The same, and note when the program drops it: a loop that breaks early ends there."""
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
    _core.step_rule(events, torch.is_grad_enabled, _new_training, vars(torch.compiler))
    pause_threads_around_fork()
    _core.sample_own_code(_library_prefixes())
    safely(hide_from_dynamo, _new_training)
    _core.mute_models(False)
    watch_models(torch, patches)


def watch_models(torch: ModuleType, patches: Patches) -> None:
    """Watch the calls of models of any class."""
    module: Any = torch.nn.Module
    _core.watch_models(module)
    patches.on_undo(_core.unwatch_models)

    def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
        super(module, cls).__init_subclass__(**kwargs)
        _core.watch_model_type(cls)

    safely(hide_from_dynamo, init_subclass)
    if "__init_subclass__" not in vars(module):
        module.__init_subclass__ = classmethod(init_subclass)
        patches.on_undo(functools.partial(_remove_method, module, "__init_subclass__", init_subclass))


def _remove_method(owner: Any, name: str, function: Any) -> None:
    if getattr(vars(owner).get(name), "__func__", None) is function:
        delattr(owner, name)


# Detail inside the model, on request: `compute/forward.<class>` for every module that is called. The calls
# are seen where those of models are (native/module/model_calls.hpp). A hook of torch would switch off its
# fastest path and change compiled graphs.


def install_modules(torch: ModuleType, patches: Patches) -> None:
    """Watch every module's forward."""
    watch_models(torch, patches)
    _core.record_modules(True)
    patches.on_undo(functools.partial(_core.record_modules, False))


class modules:  # noqa: N801 - used as a word: `with modules():`
    """Watch modules inside a block."""

    def __init__(self) -> None:
        self._patches = Patches()

    def __enter__(self) -> modules:
        install_modules(sys.modules["torch"], self._patches)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.undo_all()


def install_compiled(module: ModuleType, patches: Patches) -> None:
    """A function that `torch.compile` made calls models inside its graph: it counts as one model itself."""
    original = getattr(module, "_maybe_set_eval_frame", None)
    if original is None:
        return
    watching = _core.watch_compiled(original)
    vars(module)["_maybe_set_eval_frame"] = watching

    def undo() -> None:
        if vars(module).get("_maybe_set_eval_frame") is watching:
            vars(module)["_maybe_set_eval_frame"] = original

    patches.on_undo(undo)


def _library_prefixes() -> tuple[str, ...]:
    """Directories of the standard library and of this package."""
    library = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return (*(f"{each}/" for each in sorted(library) if each), f"{Path(__file__).parents[1]}/")


def _new_training() -> Training:
    """The training of a thread that has none yet."""
    # The autograd engine has threads of its own, on which an optimizer in backward steps.
    found = next((each for each in _all if each.in_backward), None)
    if found is None:
        if not _all:
            at_child_exit(finish_all, 0)
            safely(_training_begins)
        main = threading.current_thread() is threading.main_thread()
        found = Training(main)
        _all.append(found)
        if not main:
            _local.at_thread_end = _FinishWithThread(found)
    return found


def _training_begins() -> None:
    from dftracer.torch.loader import in_worker  # noqa: PLC0415 - which imports this module

    if not in_worker():
        metrics.training_begins()


class _FinishWithThread:
    """Dies with its thread and closes what the thread has open: Ray kills a process soon after."""

    __slots__ = ("_thread", "_training_state")

    def __init__(self, training_state: Training) -> None:
        self._training_state = training_state
        self._thread = os.getpid(), threading.get_ident()

    def __del__(self, pid: Any = os.getpid, ident: Any = threading.get_ident) -> None:
        if self._thread == (pid(), ident()):  # not the copy in a forked child
            safely(_finish_thread, self._training_state)


def _finish_thread(training_state: Training) -> None:
    training_state.finish()
    if training_state in _all:
        _all.remove(training_state)


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
    """What this thread has done so far was not training."""
    training_state = training()
    if training_state in _all and not training_state.backwards:
        _all.remove(training_state)
        _core.forget_training()


def evaluating(original: Callable[..., Any]) -> Callable[..., Any]:
    """A framework's function, wrapped so that its time counts as evaluation."""

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        training_state = training()
        safely(training_state.evaluation_begins)
        try:
            return original(*args, **kwargs)
        finally:
            safely(training_state.evaluation_ends)

    return evaluate
