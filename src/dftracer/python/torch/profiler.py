"""The callback for PyTorch's profiler, where some programs import it."""

from dftracer.python.torch._handler import trace_handler

__all__ = ["trace_handler"]
