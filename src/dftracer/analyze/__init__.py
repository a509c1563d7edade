"""ANALYZE: events to tables and statements. Analyses return tables; the report draws them."""

from dftracer.analyze import _requires  # noqa: F401 - names the extra before a bare ImportError can
from dftracer.analyze.analysis import Analysis, analyze
from dftracer.analyze.calltree import call_tree
from dftracer.analyze.catalog import FINDING_IDS
from dftracer.analyze.finding import Finding
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import STAGES
from dftracer.analyze.views import (
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
