"""See `dftracer.python.dbg`."""

from dftracer.python.torch.common import *  # noqa: F403
