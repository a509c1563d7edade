"""What can be completed: the options of every verb, and the values they take."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from dftracer.cli.main import build_parser

__all__ = ["Option", "verb_options"]

_FILES = {"FILE", "PATH", "RUN", "TOML", "TRACE"}
_FOLDERS = {"DIR", "DIRS", "DIRECTORY", "DIR|URL"}


# Duplicated here and compared with the recorder's by a test: importing the recorder would begin a session.
_CATEGORIES = ("compute", "data", "dataloader", "comm", "device", "checkpoint", "pipeline", "other")
_VALUES = {
    "--cat": (*_CATEGORIES, "POSIX", "STDIO"),
    "--name": (
        "forward",
        "backward",
        "step",
        "item",
        "preprocess",
        "fetch",
        "transfer",
        "all_reduce",
        "capture",
        "restart",
        "epoch",
        "train",
        "evaluate",
        "test",
        "open",
        "read",
        "write",
        "close",
    ),
    "--dask": ("local",),
    "--run": ("all",),
    "--traces": ("pfw", "et", "kineto", "nsys", "pfw,et,kineto", "pfw,nsys"),
    "--plugins": ("comms", "memory", "nvml", "comms,memory"),
}


class Option(NamedTuple):
    """An option with its names (none: the verb's arguments), and what follows it."""

    names: tuple[str, ...]
    takes: str  # "" nothing, "words" some of `values`, "files", "folders", "value" anything else
    values: tuple[str, ...] = ()


def verb_options() -> dict[str, list[Option]]:
    """All options by verb, read from the parsers themselves."""
    parser = build_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name: [_option(a) for a in sub._actions] for name, sub in verbs.choices.items()}


def _option(action: argparse.Action) -> Option:
    names = tuple(sorted(action.option_strings, key=len, reverse=True))
    if action.nargs == 0:
        return Option(names, "")
    values = tuple(map(str, action.choices)) if action.choices else _known(action)
    if values:
        return Option(names, "words", values)
    kind = str(action.metavar or "")
    return Option(names, "files" if kind in _FILES else "folders" if kind in _FOLDERS else "value")


def _known(action: argparse.Action) -> tuple[str, ...]:
    """Suggested values of options that also accept others."""
    return next((_VALUES[name] for name in action.option_strings if name in _VALUES), ())
