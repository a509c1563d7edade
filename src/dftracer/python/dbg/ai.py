"""See `dftracer.python.dbg`."""

from dftracer.python import *  # noqa: F403
