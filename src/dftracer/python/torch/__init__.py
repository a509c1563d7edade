"""PyTorch's profiler in the trace: `torch.profiler.profile(..., on_trace_ready=trace_handler)`."""

from dftracer.python.torch._flops import count_flops
from dftracer.python.torch._handler import trace_handler

__all__ = ["count_flops", "trace_handler"]
