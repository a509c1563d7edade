"""The tree of annotations, where some programs import it."""

from dftracer.python.ai_common import *  # noqa: F403
