"""Frameworks that mark their own phases: each adapter is installed when the program imports its framework.

An adapter is a module with `NAME` (as users call the framework) and `install(module, patches)`, where
`patches` can undo every change. It tells the step rule what it knows through
`dftracer._core.training()`: the calls there (`step_begins`, `step_ends`, `evaluation_begins`,
`forward_begins` ...) replace, for as long as they are made, what the rule would have inferred.
"""

from __future__ import annotations

__all__ = ["ADAPTERS", "adapter"]

# Module whose import brings the framework -> module of ours.
ADAPTERS: dict[str, str] = {
    "accelerate.accelerator": "dftracer.auto.accelerate",
    "deepspeed.runtime.engine": "dftracer.auto.deepspeed",
    "keras.src.callbacks.callback_list": "dftracer.auto.keras",
    "lightning.pytorch.trainer.trainer": "dftracer.auto.lightning",
    "pytorch_lightning.trainer.trainer": "dftracer.auto.lightning",
    "ray.train.torch.train_loop_utils": "dftracer.auto.ray",
    "transformers.trainer": "dftracer.auto.huggingface",
}


def adapter(module: str, ours: str) -> None:
    """Install `ours` when `module` is imported."""
    ADAPTERS[module] = ours
