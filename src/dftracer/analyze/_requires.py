"""Imported before everything else here: a missing package is named together with its extra."""

from dftracer._packages import need

for _package in ("numpy", "polars"):
    need(_package)
