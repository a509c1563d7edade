"""The names of a debug build. There is only one build: DFTRACER_LOG_LEVEL=DEBUG enables its messages."""

import sys

from dftracer.python import *  # noqa: F403
from dftracer.python import torch

logger = sys.modules[__name__]
sys.modules.update({f"{__name__}.{old}": logger for old in ("ai", "logger")})
sys.modules.update({f"{__name__}.{old}": torch for old in ("torch", "torch.profiler")})
