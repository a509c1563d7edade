"""Made-up traces whose truth is known: for tests, for benchmarks, and for trying out an analysis.

`Process` writes the spans it is given, exactly; `training_run` builds a whole job by the million events.
"""

from dftracer.load.synthetic._process import Process
from dftracer.load.synthetic._training import Run, training_run

__all__ = ["Process", "Run", "training_run"]
