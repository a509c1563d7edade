"""The core names, where some programs import them."""

from __future__ import annotations

import sys
from typing import Any

from dftracer import dftracer as profiler  # noqa: F401
from dftracer.python import *  # noqa: F403
from dftracer.python import dftracer


def capture_signal(signal_number: int, frame: Any) -> None:
    """A signal handler that closes the trace and ends the program; nothing here installs it."""
    dftracer.get_instance().finalize()
    sys.exit(signal_number)
