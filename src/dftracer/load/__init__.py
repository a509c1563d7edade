"""LOAD: trace files to columns."""

from dftracer.load._need import MissingExtra
from dftracer.load.files import NoTraces, find_files
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, Trace

__all__ = ["Filter", "MissingExtra", "NoTraces", "ProcessInfo", "Trace", "find_files"]
