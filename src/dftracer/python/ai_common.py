"""The classes of the tree, where some programs import them."""

from dftracer.python._names import START_METADATA_NAME, STOP_METADATA_NAME  # noqa: F401
from dftracer.python.common import *  # noqa: F403
