"""The manifests: of each window, of each rank, and of the whole directory."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dftracer
from dftracer._text import plural
from dftracer.collect._collection import Collection
from dftracer.collect._comms import Comms
from dftracer.collect._names import directory_lock, rank_of_process, write_json
from dftracer.collect._window_files import Finisher

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dftracer.collect._windows import Window

VERSION = 1

# --- Windows: each entry is completed as its files are finished beside the loop

_WHOLE = 0.998  # share of the operators joined: less than this is worth a warning


class Entries:
    """One entry per window; `changed` is called when the files of one are finished."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._finisher = Finisher(collection.options.finish == "process")
        self.all: list[dict[str, Any]] = []
        self.changed: Callable[[], None] = lambda: None

    def begin(self, index: int, step: int) -> dict[str, Any]:
        """The entry of a window that starts with this step."""
        left_out = {"pfw"} if self._collection.options.wants_et(index) else {"pfw", "et"}
        entry = {
            "index": index,
            "steps": [step, step],
            "start_us": 0.0,
            "end_us": 0.0,
            "kind": "+".join(name for name in self._collection.options.traces if name not in left_out),
            **dict.fromkeys(("et", "kineto", "et_nodes", "joined", "coverage", "name_agreement")),
        }
        self.all.append(entry)
        return entry

    def finish(self, window: Window, prefix: str) -> None:
        """Start making the files of the window that ended last; their contents are known later."""
        entry = self.all[-1]
        with self._collection.health.guard("finishing"), self._collection.recording.hidden():
            self.update_rank()
            job = {
                "et": window.et_path if window.has_et else None,
                "kineto": window.kineto_path if window.has_kineto else None,
                "et_out": self._collection.names.trace("torch_et", window.index),
                "kineto_out": self._collection.names.trace("kineto_trace", window.index),
                "compress": self._collection.options.compress,
            }
            self._finisher.submit(job, f"{prefix}.job", lambda result: self._finished(entry, result))
        self.changed()

    def take_finished(self) -> None:
        """Take those whose files are finished by now."""
        if self._finisher.pending:
            self._finisher.collect_done()

    def wait_for_all(self) -> None:
        """Wait until every file is finished."""
        with self._collection.health.guard("finishing"), self._collection.recording.hidden():
            self._finisher.collect_done(wait=True)

    def update_rank(self, final: bool = False) -> None:
        """Name the files by the rank known by now: a process group made late changes it."""
        rank, world_size, source = rank_of_process()
        known = self._collection.names.source
        renamed = self._collection.names.settle(rank, world_size, source)
        if final:
            renamed = self._collection.names.settle_at_end() or renamed
        if renamed:
            for entry in self.all:
                for kind in ("et", "kineto"):
                    if entry[kind]:
                        entry[kind] = self._collection.names.renamed(entry[kind])
        if rank is not None and known == "unknown":
            self._collection.recording.write_rank(rank, self._collection.names.world_size)

    def _finished(self, entry: dict[str, Any], result: dict[str, Any]) -> None:
        for path in result["files"]:
            name = self._collection.names.add(path)
            entry["et" if name.startswith("torch_et") else "kineto"] = name
        self._compare(entry, result)
        if result.get("base_ns"):
            entry["kineto_base_ns"] = result["base_ns"]
        for text in result["notes"]:
            self._collection.health.note(f"window {entry['index']}: {text}")
        self._collection.costs.add("finish_s", result["seconds"])
        self._collection.costs.add("finish_cpu_s", result["cpu_seconds"])
        comms = self._collection.plugins.of(Comms)
        if comms is not None and result.get("comm"):
            with self._collection.health.guard("comms"):
                comms.add_kineto_times(entry, result["comm"], result["base_ns"])
        self.changed()

    def _compare(self, entry: dict[str, Any], result: dict[str, Any]) -> None:
        """How much of the execution trace Kineto has seen too."""
        for key in ("et_nodes", "joined", "kineto_events"):
            entry[key] = result.get(key)
        nodes, joined = entry["et_nodes"], entry["joined"]
        if not nodes or joined is None:
            return
        entry["coverage"] = joined / nodes
        entry["name_agreement"] = joined / result["matched"] if result["matched"] else None
        if entry["coverage"] < _WHOLE:
            all_threads = self._collection.options.threads == "all"
            self._collection.health.warn(
                f"window {entry['index']}: {joined} of {plural(nodes, 'operator')} of the execution trace"
                " are in Kineto's trace too"
                + ("" if all_threads else "; threads='all' includes other threads")
            )


# --- Clocks
#
# Pairs of the wall clock and the monotonic clock, for laying traces of several processes side by
# side.


_TRIES = 8


def anchor() -> dict[str, Any]:
    """Epoch and CLOCK_MONOTONIC at one moment, and how far apart the two readings can be, in ns."""
    best: tuple[int, int, int] | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        epoch = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if best is None or after - before < best[0]:
            best = (after - before, epoch, (before + after) // 2)
    assert best is not None
    return {"epoch_us": best[1] / 1000, "epoch_ns": best[1], "monotonic_ns": best[2], "error_ns": best[0]}


# --- One rank


@dataclass
class RankManifest:
    """What one rank collected: where, when and at what cost."""

    collection: Collection
    entries: Entries
    steps: int = 0
    complete: bool = False

    def __post_init__(self) -> None:
        self._pid = os.getpid()
        self._clock = {"start": anchor()}

    def end_clock(self) -> None:
        """Read the clock again, at the end."""
        self._clock["end"] = anchor()

    def write(self) -> None:
        """Write what is known so far."""
        with self.collection.health.guard("manifest"), self.collection.recording.hidden():
            write_json(self.collection.names.manifest(), self.content())

    def content(self) -> dict[str, Any]:
        """What is known so far."""
        names = self.collection.names
        return {
            "version": VERSION,
            "versions": {
                "torch": str(self.collection.torch.__version__),
                "python": platform.python_version(),
                "pydftracer": dftracer.__version__,
                "cuda": self.collection.torch.version.cuda,
            },
            "run": names.run,
            "directory": names.directory,
            "rank": names.rank,
            "rank_source": names.source,
            "world_size": names.world_size,
            "host": socket.gethostname(),
            "pid": self._pid,
            "command": list(sys.argv),
            "complete": self.complete,
            "steps": self.steps,
            "schedule": self.collection.options.schedule(),
            "traces": list(self.collection.options.traces),
            "windows": self.entries.all,
            "clock": self._clock,
            "files": self._files(),
            "overheads": self.collection.costs.to_json(),
            "warnings": list(self.collection.health.warnings),
        }

    def _files(self) -> list[dict[str, Any]]:
        files = self.collection.names.files()
        path = self.collection.recording.trace_path
        if path and os.path.exists(path):
            inside = os.path.dirname(os.path.abspath(path)) == self.collection.names.directory
            files.append({"name": os.path.basename(path) if inside else path, "bytes": os.path.getsize(path)})
        return files


# --- All ranks

_FEW = 64  # ranks that may each read all manifests
_WAIT_S = 10.0
_RANK = re.compile(r"^manifest_(\d+)\.json$")


def merge_at_end(directory: str, rank: int, world_size: int) -> None:
    """Merge when this rank has ended: every rank if there are few, otherwise rank 0, after a short wait."""
    if world_size > _FEW:
        if rank != 0:
            return
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            if sum(bool(_RANK.match(name)) for name in os.listdir(directory)) >= world_size:
                break
            time.sleep(0.5)
    merge(directory)


def merge(directory: str) -> None:
    """`manifest.json` from what the ranks have left so far; the last rank to write sees all."""
    with directory_lock(directory):
        write_json(os.path.join(directory, "manifest.json"), _merged(directory))


def _merged(directory: str) -> dict[str, Any]:
    ranks: dict[int, dict[str, Any]] = {}
    for name in os.listdir(directory):
        found = _RANK.match(name)
        if not found:
            continue
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                ranks[int(found[1])] = json.load(file)
        except (OSError, ValueError):
            continue
    world = max((int(m.get("world_size") or 1) for m in ranks.values()), default=0)
    nodes = sum(w.get("et_nodes") or 0 for m in ranks.values() for w in m["windows"])
    joined = sum(w.get("joined") or 0 for m in ranks.values() for w in m["windows"])
    return {
        "version": VERSION,
        "world_size": world,
        "ranks_present": sorted(ranks),
        "ranks_missing": sorted(set(range(world)) - set(ranks)),
        "et_nodes": nodes,
        "joined": joined,
        "coverage": joined / nodes if nodes else None,
        "ranks": [ranks[rank] for rank in sorted(ranks)],
        "warnings": [f"rank {rank}: {text}" for rank in sorted(ranks) for text in ranks[rank]["warnings"]],
    }
