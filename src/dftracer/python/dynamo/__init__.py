"""Compiled graphs in the trace.

The module is the face of a default `Dynamo`: `dynamo.compile`, `dynamo.update`, `dynamo.enable`, … work on
it, so that `from dftracer.python import dynamo` and `from dftracer.python.dynamo import dynamo` can be used
alike. Nothing here imports torch before something is compiled.
"""

from dftracer.python.dynamo._backend import create_backend
from dftracer.python.dynamo._tracer import Dynamo

__all__ = ["Dynamo", "create_backend", "dynamo"]

dynamo = Dynamo()
compile = dynamo.compile
update = dynamo.update
enable = dynamo.enable
disable = dynamo.disable
backend = dftracer_dynamo_backend = dynamo.backend
