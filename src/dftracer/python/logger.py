"""The core names, where older clients import them."""

from dftracer.compat import setup_stream_logger
from dftracer.python.common import *  # noqa: F403

logger = setup_stream_logger()
