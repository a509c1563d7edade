"""Optional packages, imported on use; a missing one is named together with the extra that includes it."""

from dftracer._packages import MissingExtra, need

__all__ = ["MissingExtra", "need"]
