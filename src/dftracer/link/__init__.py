"""LINK: execution traces, profiler traces and our own trace of all ranks, joined."""

from dftracer.link.directory import LinkError, LinkReport, link
from dftracer.link.discover import NothingToLink

__all__ = ["LinkError", "LinkReport", "NothingToLink", "link"]
