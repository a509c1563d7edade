"""Synthetic traces with known answers: for tests, benchmarks, and trying out an analysis.

`Process` writes exactly the spans it is given; `training_run` builds a whole job with millions of events.
"""

from dftracer.load.synthetic._process import Process
from dftracer.load.synthetic._training import Run, training_run

__all__ = ["Process", "Run", "training_run"]
