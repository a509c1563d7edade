"""The names of a debug build. There is only one build: DFTRACER_LOG_LEVEL=DEBUG enables its messages."""

import sys

from dftracer.python import *  # noqa: F403

# As in the parent package, the module `ai` must not replace the object.
sys.modules[__name__].__class__ = type(sys.modules["dftracer.python"])
