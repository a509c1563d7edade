"""What a kernel does, judging by its name: one table, read top to bottom; the first matching rule counts."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["KERNEL_KINDS", "KERNEL_RULES", "kernel_kind"]

KERNEL_KINDS: Final = (
    "gemm/conv",
    "attention",
    "elementwise",
    "reduction",
    "optimizer",
    "communication",
    "copy",
    "other",
)

KERNEL_RULES: Final = (
    ("copy", r"^memcpy"),
    ("other", r"^memset"),
    ("communication", r"nccl|rccl|nvshmem|mscclpp|cross_device_reduce|deep_?ep|one_shot_all|two_shot_all"),
    ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|lamb|lion)|adamw?_kernel|lamb_stage"),
    # Before the words below, which also occur among the template arguments of these.
    (
        "elementwise",
        r"^(void )?(at::native::)?(\(anonymous namespace\)::)?(vectorized_|unrolled_)?elementwise",
    ),
    ("reduction", r"^(void )?(at::native::)?reduce_kernel"),
    ("attention", r"flash|fmha|attention|attn|sdpa|\bmha_|paged_kv"),
    (
        "gemm/conv",
        r"gemm|gemv|nvjet|cublas|cutlass|wgmma|xmma|cijk_|conv(?!ert)|winograd|dgrad|wgrad|fprop|splitk"
        r"|matmul|triton_\w*_mm|_mm_kernel|implicit",
    ),
    (
        "reduction",
        r"reduce|reduction|softmax|norm|rowwisemoments|gammabeta|bn_(fw|bw)|argm(ax|in)|nll_loss|entropy"
        r"|\bscan|sort|cub::|topk|triton_(red|per)_|_sum_",
    ),
    (
        "elementwise",
        r"elementwise|pointwise|triton_poi_|functor|catarray|index|gather|scatter|fill|dropout|embedding|copy"
        r"|where|relu|gelu|silu|arange|tril|triu|distribution|bernoulli|im2col|pool|upsample",
    ),
)
_COMPILED: Final = tuple((kind, re.compile(rule, re.IGNORECASE)) for kind, rule in KERNEL_RULES)


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> str:
    """One of KERNEL_KINDS."""
    for kind, rule in _COMPILED:
        if rule.search(name):
            return kind
    return "other"
