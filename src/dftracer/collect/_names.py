"""The names of a rank's files, also before its rank is known.

Until its rank is known, a process uses 0, or its pid if another process already uses 0; its files are renamed
once the rank is known.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from dftracer import _config, _core
from dftracer.format.torch_files import EARLIER, mark
from dftracer.torch.collectives import distributed

# --- Which rank this is: torch.distributed knows best; otherwise what the launcher set


def rank_of_process() -> tuple[int | None, int | None, str]:
    """(rank, world size, source); None if unknown."""
    module = distributed()
    if module is not None:
        try:
            return int(module.get_rank()), int(module.get_world_size()), "torch.distributed"
        except Exception:  # a group that is being destroyed
            pass
    known = _config.rank_info()
    return known.rank, known.world_size, known.source or "unknown"


# --- Files of an earlier collection in the same directory: moved to a folder of their own, never replaced


_OF_RANK = re.compile(r"[A-Za-z][\w-]*?_(p?\d+)(_w\d+)?\.(json|jsonl|nsys-rep|sqlite)(\.gz)?")
_OF_ALL = ("manifest.json", "workload_card.yaml", "linked")  # of all ranks together


def move_aside(directory: str, label: str) -> None:
    """Move what another process left under this label to a folder named after its run."""
    names = [name for name in sorted(os.listdir(directory)) if _label_of(name) == label]
    if not names:
        return
    if label == "0":
        names += [name for name in _OF_ALL if os.path.exists(os.path.join(directory, name))]
    run = _run_of(os.path.join(directory, names[0]), _manifest_of(directory, label))
    folder = _folder_for(directory, names, run)
    for name in names:
        with contextlib.suppress(OSError):  # another rank may have moved it
            os.rename(os.path.join(directory, name), os.path.join(folder, name))


def move_ranks_aside(directory: str, world_size: int, run: str) -> None:
    """Move the files of ranks that only an earlier, larger job had."""
    labels = {_label_of(name) for name in os.listdir(directory)}
    for label in sorted(each for each in labels if each is not None and each.isdecimal()):
        if int(label) >= world_size and _manifest_of(directory, label).get("run") != run:
            move_aside(directory, label)


def _label_of(name: str) -> str | None:
    found = _OF_RANK.fullmatch(name)
    return found[1] if found else None


def _manifest_of(directory: str, label: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, f"manifest_{label}.json"), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _run_of(file: str, manifest: dict[str, Any]) -> str:
    run = manifest.get("run")
    if isinstance(run, str) and re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", run):
        return run
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(os.path.getmtime(file)))


def _folder_for(directory: str, names: list[str], run: str) -> str:
    for number in itertools.count(1):
        folder = os.path.join(directory, f"earlier-{run}" + (f"-{number}" if number > 1 else ""))
        os.makedirs(folder, exist_ok=True)
        mark(folder, EARLIER)
        if not any(os.path.lexists(os.path.join(folder, name)) for name in names):
            return folder
    raise AssertionError("unreachable")


# --- A directory that ranks share


def write_json(path: str, content: dict[str, Any]) -> None:
    """Replace a file in one step."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, default=str)
        file.write("\n")
    os.replace(part, path)


@contextlib.contextmanager
def directory_lock(directory: str) -> Iterator[None]:
    """One rank of this host at a time; not locked where the file system has no locks."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # no locks here
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# --- Names

_LABEL = re.compile(r"^(torch_et|kineto_trace)_(p?\d+)(?=[_.])")
_WAIT_S = 10.0


class Names:
    """Where each file of this process goes."""

    def __init__(self, directory: str, compress: bool) -> None:
        self.directory = directory
        self._suffix = ".json.gz" if compress else ".json"
        self._written: list[str] = []
        self.rank, self.world_size, self.source = 0, 1, "unknown"
        self.run = _core.run_id() or _core.identify_run(os.path.join(directory, "trace"))
        rank, world_size, source = rank_of_process()
        with directory_lock(directory):
            if rank is None:
                self.label = f"p{os.getpid()}" if self._taken(0) else "0"
            else:
                self.label = str(rank)
            move_aside(directory, self.label)
            if self.label == "0":
                move_ranks_aside(directory, world_size or 1, self.run)
            self._claim()
        self.settle(rank, world_size, source)

    def settle(self, rank: int | None, world_size: int | None, source: str) -> bool:
        """Use what is known about the rank by now; returns whether names have changed."""
        if rank is not None:
            self.rank, self.source = rank, source
            self.world_size = world_size or max(self.world_size, rank + 1)
        if rank is None or self.label == str(rank):
            return False
        return self._rename(str(rank))

    def settle_at_end(self) -> bool:
        """Take the names of the rank known at the end; waits if another process still uses them."""
        if self.label == str(self.rank):
            return False
        end = time.monotonic() + _WAIT_S
        while self._taken(self.rank) and time.monotonic() < end:
            time.sleep(0.05)
        return self._rename(str(self.rank), force=True)

    def _claim(self) -> None:
        mine = {"run": self.run, "pid": os.getpid(), "host": socket.gethostname(), "complete": False}
        empty = {"rank": self.rank, "world_size": self.world_size, "windows": [], "warnings": []}
        write_json(self.manifest(), {**mine, **empty})

    def _taken(self, rank: int) -> bool:
        """Whether another running process calls itself this rank."""
        try:
            with open(os.path.join(self.directory, f"manifest_{rank}.json"), encoding="utf-8") as file:
                other = json.load(file)
        except (OSError, ValueError):
            return False
        if other.get("complete") or other.get("host") != socket.gethostname():
            return False
        pid = other.get("pid")
        return isinstance(pid, int) and pid != os.getpid() and os.path.exists(f"/proc/{pid}")

    def trace(self, kind: str, window: int) -> str:
        """Where a trace of one window is written first; `add` gives it its current name."""
        number = f"_w{window}" if window else ""
        # The label may change while the file is being written, and belong to another process by then.
        label = self.label if self.source != "unknown" else f"p{os.getpid()}"
        return os.path.join(self.directory, f"{kind}_{label}{number}{self._suffix}")

    def stem(self, name: str) -> str:
        """The file of a plug-in, without its suffix."""
        return os.path.join(self.directory, f"{name}_{self.label}")

    def manifest(self) -> str:
        """The manifest of this rank."""
        return os.path.join(self.directory, f"manifest_{self.label}.json")

    def add(self, path: str) -> str:
        """Rename an existing file to the current label; returns its name."""
        target = os.path.join(self.directory, self.renamed(os.path.basename(path)))
        if target != path:
            os.replace(path, target)
        if target not in self._written:
            self._written.append(target)
        return os.path.basename(target)

    def files(self) -> list[dict[str, Any]]:
        """Name and size of each."""
        found = []
        for path in self._written:
            with contextlib.suppress(OSError):  # deleted since; it is not listed then
                found.append({"name": os.path.basename(path), "bytes": os.path.getsize(path)})
        return found

    def renamed(self, name: str) -> str:
        """The current name of a trace that was written under an older label."""
        return _LABEL.sub(lambda found: f"{found[1]}_{self.label}", name)

    def _rename(self, label: str, force: bool = False) -> bool:
        with directory_lock(self.directory):
            if self._taken(int(label)) and not force:
                return False
            move_aside(self.directory, label)
            old, self.label = self.manifest(), label
            kept = []
            for path in self._written:
                target = os.path.join(self.directory, self.renamed(os.path.basename(path)))
                try:
                    os.replace(path, target)
                    kept.append(target)
                except OSError:
                    kept.append(path)
            self._written = kept
            with contextlib.suppress(OSError):  # none was written yet
                os.unlink(old)
            self._claim()
        return True
