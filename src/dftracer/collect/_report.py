"""What was collected, as an object to ask and a text to print."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dftracer._units import plural

__all__ = ["CollectReport"]


@dataclass
class CollectReport:
    """The manifest of this rank so far; complete once the `with` block has ended."""

    directory: str
    rank: int
    world_size: int
    windows: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    overheads: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def coverage(self) -> float | None:
        """Part of the execution traces' operators that Kineto's traces have too; None without any."""
        nodes = sum(w["et_nodes"] or 0 for w in self.windows)
        joined = sum(w["joined"] or 0 for w in self.windows)
        return joined / nodes if nodes else None

    def __str__(self) -> str:
        windows = plural(len(self.windows), "window")
        lines = [f"rank {self.rank} of {self.world_size}: {windows} in {self.directory}"]
        for window in self.windows:
            first, last = window["steps"]
            what = f"  window {window['index']}, steps {first} to {last}"
            if window["et_nodes"]:
                what += f": {window['joined']} of {plural(window['et_nodes'], 'operator')} joined"
                if window["coverage"] is not None:
                    what += f" ({100 * window['coverage']:.2f} %)"
            lines.append(what)
        lines += [f"  {entry['name']}: {plural(entry['bytes'], 'byte')}" for entry in self.files]
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)
