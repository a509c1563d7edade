"""The core names, where older clients import them."""

from dftracer.python.logger import (
    DFTRACER_ENABLE,
    DFTRACER_INIT_PRELOAD,
    DFTRACER_LOG_LEVEL,
    TagDType,
    TagType,
    TagValue,
    dft_fn,
    dftracer,
)

__all__ = [
    "DFTRACER_ENABLE",
    "DFTRACER_INIT_PRELOAD",
    "DFTRACER_LOG_LEVEL",
    "TagDType",
    "TagType",
    "TagValue",
    "dft_fn",
    "dftracer",
]
