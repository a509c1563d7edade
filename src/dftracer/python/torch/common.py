"""The callback for PyTorch's profiler and what it logs with, where some programs import them."""

from dftracer.python import TagDType, TagType, TagValue, dftracer, get_time_scale
from dftracer.python.torch._handler import trace_handler

__all__ = ["TagDType", "TagType", "TagValue", "dftracer", "get_time_scale", "trace_handler"]
