"""See `dftracer.python.dbg`."""

from dftracer.python.torch import trace_handler

__all__ = ["trace_handler"]
