"""ANALYZE: events to tables and statements. Analyses return tables; the report draws them."""

# ruff: noqa: E402 - a missing package is named together with its extra before a bare ImportError can be raised
from dftracer._packages import need

for _package in ("numpy", "polars"):
    need(_package)

from dftracer.analyze.analysis import Analysis, analyze
from dftracer.analyze.frames import (
    call_tree,
    concurrency,
    directories,
    epochs,
    file_sizes,
    files,
    io_over_time,
    names,
    ranks,
    steps,
    threads,
    workers,
)
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.rules.finding import Finding
from dftracer.analyze.say.catalog import FINDING_IDS
from dftracer.analyze.stages import STAGES

__all__ = [
    "FINDING_IDS",
    "STAGES",
    "Analysis",
    "Finding",
    "Job",
    "Rank",
    "analyze",
    "call_tree",
    "concurrency",
    "directories",
    "epochs",
    "file_sizes",
    "files",
    "io_over_time",
    "names",
    "ranks",
    "steps",
    "threads",
    "workers",
]
