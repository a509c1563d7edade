"""What programs import from `dftracer.python.dynamo` besides the tracer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dftracer.python.dynamo._description import event_name, is_operation

__all__ = ["CallStackRecord", "create_detailed_op_name"]


@dataclass
class CallStackRecord:
    """One operation of a compiled graph, as a program may keep it."""

    op_name: str
    op_type: str
    target: str
    timestamp_us: int
    grad_enabled: bool


def create_detailed_op_name(node: Any, gm: Any) -> str:
    """The event name of a graph's node; for inputs and outputs, which have no event, their own name."""
    return event_name(node) if is_operation(node) else str(node.name)
