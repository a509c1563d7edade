"""A DeepSpeed engine of the parts."""

from __future__ import annotations

from typing import Any

import deepspeed

__all__ = ["engine_of"]

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def engine_of(stage: int, batches: int, model: Any, optimizer: Any, data: Any = None, **more: Any) -> Any:
    """Sub-groups of four elements: with stage 3 the weight and the bias are stepped one after the other.

    Gives the engine and its loader of the data.
    """
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": batches,
        "zero_optimization": {"stage": stage, "sub_group_size": 4},
        "zero_allow_untested_optimizer": True,
        **more,
    }
    engine, _, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, training_data=data
    )
    return engine, loader
