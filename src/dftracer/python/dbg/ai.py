"""See `dftracer.python.dbg`."""

from dftracer.python.ai_common import *  # noqa: F403
