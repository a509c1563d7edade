"""Each reader by itself over damaged files: what it promises never to raise, it must not raise."""

from __future__ import annotations

import random
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dftracer import _config, _config_file
from dftracer.format.reader import read_trace, text_size
from dftracer.format.writer import is_trace, maker_of
from dftracer.link.collectives import read_records as read_comms
from dftracer.link.discover import NothingToLink, discover, read_manifest
from dftracer.link.execution_trace import read_execution_trace
from dftracer.link.kineto import read_kineto
from dftracer.link.nsys import is_nsys, read_nsys
from dftracer.load import Trace
from dftracer.load.process import file_facts, read_through
from fuzz.commands import CORPUS
from fuzz.mutate import mutated

__all__ = ["READERS", "damaged_file"]


def _text(path: Path) -> None:
    found = read_trace([path])
    found.problems.lines()
    for record in found.records:
        assert record["ph"] in ("X", "M", "C")
        assert isinstance(record["pid"], int)
        found.resolve(str(record["args"].get("hhash")))
    text_size(path)
    is_trace(path)
    maker_of(path)


def _loader(path: Path) -> None:
    for process in Trace(path, cache=False).processes:
        file_facts(process)
    read_through(path)
    for batch in Trace(path, cache=False).batches():
        batch.validate(full=True)


def _settings(path: Path) -> None:
    output: list[str] = []
    names = {setting.name: setting for setting in _config.SETTINGS}
    list(_config_file.read(str(path), names, output.append, output.append))


def _nsys(path: Path) -> None:
    is_nsys(path)
    read_nsys(path)


def _discover(path: Path) -> None:
    try:
        _ = discover(path.parent).missing
    except NothingToLink:
        return


# A name: the part of the corpus, its files, and what reads one.
READERS: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "text of a trace": ("traces", "*", _text),
    "loader": ("traces", "*", _loader),
    "settings": ("settings", "*", _settings),
    "execution trace": ("collected", "torch_et_*", read_execution_trace),
    "profiler trace": ("collected", "kineto_*", read_kineto),
    "nsys export": ("collected", "nsys_*", _nsys),
    "communication records": ("collected", "comms_*", lambda path: read_comms([path], [])),
    "manifest": ("collected", "manifest_*", read_manifest),
    "contents of a directory": ("collected", "*", _discover),
}


def damaged_file(rng: random.Random, reader: str) -> str | None:
    """What went wrong when a reader met a damaged file; None if nothing did."""
    part, names, read = READERS[reader]
    seed = rng.choice(sorted((CORPUS / part).glob(names)))
    with tempfile.TemporaryDirectory(prefix="dftracer-fuzz-") as folder:
        path = Path(folder, seed.name)
        path.write_bytes(mutated(seed.read_bytes(), rng))
        try:
            read(path)
        except Exception:
            return traceback.format_exc()
    return None
