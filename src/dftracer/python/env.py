"""The environment, where some programs look for it."""

from dftracer.compat.env import *  # noqa: F403
