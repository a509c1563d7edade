"""Events of an unannotated training program.

::

    DFTRACER_ENABLE=1 DFTRACER_AUTO=torch python train.py     # or: dftracer run -- python train.py

    from dftracer import auto
    auto.install()             # from code; uninstall() restores everything

Only boundaries are watched: where a batch is awaited, where backward and the optimizer begin and end, where
batches are copied, collectives called, checkpoints written. What the program annotates with the `ai` tree is
never recorded twice. Nothing here imports torch: hooks are installed when the program imports it.

An adapter of a framework is a module with `NAME` (as users call the framework) and `install(module,
patches)`, where `patches` can undo every change; it is installed when the program imports the framework. It
tells the step rule what it knows through `dftracer._core.training()`: the calls there (`step_ends`,
`evaluation_begins`, `forward_begins` ...) replace, for as long as they are made, what the rule would have
inferred.
"""

from __future__ import annotations

import os
import sys

from dftracer import _session
from dftracer._session import before_finalize
from dftracer.torch import boundaries
from dftracer.torch.patches import Patches

# Every traced interpreter imports this before the program begins: slow imports happen on first use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from dftracer._core import Training
    from dftracer.torch.rule import modules

__all__ = ["ADAPTERS", "adapter", "install", "installed", "modules", "uninstall"]

# Module of a framework -> our adapter, installed when that module is imported.
ADAPTERS: dict[str, str] = {
    "accelerate.accelerator": "dftracer.auto.accelerate",
    "deepspeed.runtime.engine": "dftracer.auto.deepspeed",
    "keras.src.callbacks.callback_list": "dftracer.auto.keras",
    "lightning.pytorch.trainer.trainer": "dftracer.auto.lightning",
    "pytorch_lightning.trainer.trainer": "dftracer.auto.lightning",
    "ray.train.torch.train_loop_utils": "dftracer.auto.ray",
    "transformers.trainer": "dftracer.auto.huggingface",
}

_patches: Patches | None = None
_registered = False


def adapter(module: str, ours: str) -> None:
    """Install `ours` when `module` is imported."""
    ADAPTERS[module] = ours


def installed() -> bool:
    """Whether this process is watched."""
    return _patches is not None


def training_state() -> Training | None:
    """What the step rule knows of this thread, for adapters; None if this process is not watched."""
    if _patches is None:
        return None
    from dftracer._core import training  # noqa: PLC0415 - the recorder is loaded on use

    return training()


def begin() -> None:
    """What every Python process does first where DFTRACER_AUTO is set.

    `dftracer_auto.pth` in the site directory calls this; `dftracer run` has its own sitecustomize call it too,
    for installations whose .pth files nobody reads (PYTHONPATH, `pip --target`).
    """
    try:
        if _session.SETTINGS.auto == "TORCH":
            install()
    except Exception as error:  # the program must start whatever happens here
        sys.stderr.write(f"dftracer: automatic tracing is off: {type(error).__name__}: {error}\n")


def install() -> bool:
    """Watch torch, once it is imported, and its frameworks; returns whether anything is recorded."""
    if not _session.SETTINGS.enable:
        return False
    watch()
    _session.arm()
    return True


def watch() -> None:
    """The same without beginning to record: subscribers of `boundaries` learn what happens."""
    global _patches  # noqa: PLW0603 - one per process
    if _patches is not None:
        return
    if "dftracer.python" in sys.modules:  # annotations of an earlier session do not count
        from dftracer.torch.rule import forget_annotations  # noqa: PLC0415 - only where there are any

        forget_annotations()
    _patches = Patches()
    _patches.when_imported("torch", _on_torch_import)
    # Not after torch: a framework that imports it is in the middle of its own import then.
    for name, ours in ADAPTERS.items():
        _patches.when_imported(name, _by_adapter(ours))


def uninstall() -> None:
    """Restore everything; open events are closed."""
    global _patches  # noqa: PLW0603
    if _patches is None:
        return
    _patches.undo_all()
    _patches = None
    finish()
    _forked()  # the next installation starts over


def _on_torch_import(torch: ModuleType, patches: Patches) -> None:
    global _registered  # noqa: PLW0603
    boundaries.watch(torch, patches, _session.SETTINGS.auto_modules)
    if not _registered:
        _registered = True
        before_finalize(finish)
        os.register_at_fork(after_in_child=_forked)
    found("PyTorch")
    patches.on_undo(boundaries.subscribe("loader", _after_loader_began))


def _by_adapter(ours: str) -> Any:
    def install(module: ModuleType, patches: Patches) -> None:
        adapter: Any = __import__(ours, fromlist=["*"])
        adapter.install(module, patches)
        found(adapter.NAME)

    return install


def finish() -> None:
    """Close what is open, in all threads: the program or its recording ends."""
    rule: Any = sys.modules.get("dftracer.torch.rule")
    if rule is not None:
        failure = getattr(sys, "last_value", None)
        rule.finish_all(None if failure is None else type(failure).__name__)


def _forked() -> None:
    rule: Any = sys.modules.get("dftracer.torch.rule")
    if rule is not None:
        rule.forget_all()


def __getattr__(name: str) -> object:
    if name == "modules":
        from dftracer.torch.rule import modules  # noqa: PLC0415

        return modules
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- One line, once per run, that says what was found

_MARK = "DFTRACER_AUTO_MARK"  # set by `dftracer run`: the file created by the first process that announces

_names: list[str] = []
_announced = False


def found(name: str) -> None:
    """Something whose steps are recorded has been imported."""
    if name and name not in _names:
        _names.append(name)


def found_unless(name: str, other: str) -> None:
    """The same, unless `other` was found, which is built on it."""
    if other not in _names:
        found(name)


def _after_loader_began(begins: bool, _: object) -> None:
    """A loader begins: say so on stderr, unless another process of this run has, or no mark is set."""
    global _announced  # noqa: PLW0603 - once per process
    if begins or _announced:  # frameworks are imported by the time it has begun
        return
    _announced = True
    mark = os.environ.get(_MARK)
    if not mark or not _names:
        return
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        names = sorted(_names, key=lambda name: name != "PyTorch")  # frameworks after what they are built on
        sys.stderr.write(f"dftracer: {', '.join(names)}: steps are recorded\n")
        sys.stderr.flush()
    except OSError:
        pass
