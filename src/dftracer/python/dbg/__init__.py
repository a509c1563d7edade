"""The names of a build with debug output. There is one build: DFTRACER_LOG_LEVEL=DEBUG makes it talk."""

import sys

from dftracer.python import *  # noqa: F403

# As in the package above, the module `ai` must not take the place of the object.
sys.modules[__name__].__class__ = type(sys.modules["dftracer.python"])
