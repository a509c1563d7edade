"""The native module of a debug build, for clients that probe for it. There is one build."""

from dftracer.dftracer import *  # noqa: F403
