"""The objects of the tree, where some programs import them."""

from dftracer.python.ai_common import *  # noqa: F403
