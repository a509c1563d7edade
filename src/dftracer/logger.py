"""The core names, where older clients import them."""

from dftracer.python import *  # noqa: F403
