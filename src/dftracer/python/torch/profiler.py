"""The callback for PyTorch's profiler, where some programs import it."""

from dftracer.python.torch.common import *  # noqa: F403
