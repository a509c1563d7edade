"""Names in torch's traces: which ones stand for nothing that ran, and when two names are the same."""

from __future__ import annotations

import re

__all__ = ["STRUCTURAL", "plain_name"]

# Nodes of an execution trace that contain others, or facts.
STRUCTURAL = re.compile(r"\[pytorch\|profiler\|execution_trace\|\w+\]|## process_group:init ##")
# What one of torch's writers escapes or cuts and the other does not.
_ODD = re.compile(r"[\"\\\s\x00-\x1f�]+")


def plain_name(name: str) -> str:
    """A name as far as all of torch's writers agree on it."""
    return _ODD.sub("", name)
