"""The tree of annotations, where some programs import it."""

from dftracer.python import *  # noqa: F403
