"""Processes from arguments, for verbs that need no extra."""

from __future__ import annotations

import argparse

from dftracer.cli.main import CommandError
from dftracer.load.files import NoTraces, recover
from dftracer.load.heads import processes_of as find_processes
from dftracer.load.process import ProcessInfo

__all__ = ["processes_of"]


def processes_of(args: argparse.Namespace) -> list[ProcessInfo]:
    """The processes that wrote the files the arguments mean, after completing traces of killed ones."""
    try:
        recover(args.paths)
        return find_processes(args.paths)
    except NoTraces as e:
        raise CommandError(str(e)) from None
