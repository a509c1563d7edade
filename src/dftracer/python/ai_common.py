"""The classes of the tree, where some programs import them."""

from dftracer.python import *  # noqa: F403
