"""Python stacks of many processes: what one says about its process, and all of them as one tree."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FRAME = re.compile(r"(.*):(\d+) (.*)$", re.DOTALL)
_LIBRARIES = tuple(
    f"{each}/" for each in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} if each
)
_OURS = f"{Path(__file__).parents[1]}/"
# Functions of torch.distributed that wait for other ranks.
_OPERATIONS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier"),
    *(
        "monitored_barrier",
        "send",
        "recv",
        "broadcast_object_list",
        "all_gather_object",
        "init_process_group",
    ),
)
_C10D = "torch/distributed/distributed_c10d.py"
_BACKWARD = "_engine_run_backward"


def is_user_code(file: str) -> bool:
    """Whether a source file is the program's own."""
    if file.startswith("<frozen ") or "/site-packages/" in file or "/dist-packages/" in file:
        return False
    if re.search(r"/lib/python3\.\d+/", file):
        return False
    return not file.startswith((*_LIBRARIES, _OURS))


@dataclass
class Thread:
    """One thread: what the kernel and the interpreter say about it."""

    tid: int
    name: str
    state: str
    call: str
    path: str
    frames: list[tuple[str, int, str]]  # file, line, function; innermost first

    @property
    def where(self) -> str | None:
        """`data.py:57 load_shard`, the innermost line of the program itself."""
        own = next((f for f in self.frames if is_user_code(f[0])), None)
        return None if own is None else place_of(own)


@dataclass
class Process:
    """One process."""

    pid: int
    name: str
    state: str
    threads: list[Thread] = field(default_factory=list)

    @property
    def main(self) -> Thread | None:
        return next((t for t in self.threads if t.tid == self.pid), self.threads[0] if self.threads else None)

    @property
    def where(self) -> str | None:
        main = self.main
        own = None if main is None else main.where
        if own is None and self.leaving:  # what it waits for is another thread's doing
            own = next((t.where for t in self.threads if t.where is not None), None)
        if own is None and main is not None and main.frames:
            own = place_of(main.frames[0])
        return own

    @property
    def leaving(self) -> bool:
        """The program itself is through: its exit handlers run, or it waits for its threads."""
        main = self.main
        if main is None or not main.frames:
            return False
        file, _, function = main.frames[-1]
        return function != "<module>" and file != "<frozen runpy>"

    @property
    def open_file(self) -> str | None:
        """The file that a thread of it waits for."""
        for thread in self.threads:
            if thread.path.startswith("/") and not thread.path.startswith("/dev/"):
                return thread.path
        return None

    @property
    def distributed_call(self) -> str | None:
        """The function of torch.distributed that its main thread is in."""
        frames = self.main.frames if self.main is not None else ()
        return next((f for file, _, f in frames if file.endswith(_C10D) and f in _OPERATIONS), None)

    @property
    def operation(self) -> str | None:
        """The collective that its main thread is in, by its stack."""
        main = self.main
        # DDP's reducer waits for its all-reduce inside of backward, where nothing else sleeps.
        if main is not None and main.call == "futex" and any(f == _BACKWARD for *_, f in main.frames):
            return self.distributed_call or "all_reduce"
        return self.distributed_call


def place_of(frame: tuple[str, int, str]) -> str:
    return f"{os.path.basename(frame[0])}:{frame[1]} {frame[2]}"


def seen_process(record: dict[str, Any]) -> Process:
    """From the JSON of a hang file, of one of its workers, or of `_core.stacks_of`."""
    threads = []
    for each in record.get("threads") or ():
        frames = [(m[1], int(m[2]), m[3]) for m in map(_FRAME.match, each.get("frames") or ()) if m]
        threads.append(
            Thread(
                int(each.get("tid") or 0),
                str(each.get("name") or ""),
                str(each.get("state") or "?"),
                str(each.get("call") or ""),
                str(each.get("path") or ""),
                frames,
            )
        )
    main = next((t for t in threads if t.tid == record.get("pid")), None)
    state = str(record.get("state") or "?")
    if len(state) > 1:  # of a hang file: in words
        state = main.state if main is not None else "?"
    return Process(int(record.get("pid") or -1), str(record.get("name") or ""), state, threads)


def shown_frames(frames: list[tuple[str, int, str]]) -> list[str]:
    """Outermost first, without ours, through which calls that are observed pass."""
    out: list[str] = []
    before = None
    for file, line, function in reversed(frames):
        if "/dftracer/torch/" in file or file.startswith(_OURS):
            continue
        if (file, function) == before:  # the same function, on both sides of ours or recursive
            out.pop()
        out.append(f"{function} {os.path.basename(file)}:{line}")
        before = file, function
    return out


class Tree:
    """The stacks of all ranks, outermost frame first, with the ranks that are in each frame."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self.below: dict[str, Tree] = {}

    def add(self, rank: int, frames: Iterable[str]) -> None:
        """One more stack, outermost first."""
        at = self
        at.ranks.add(rank)
        for frame in frames:
            at = at.below.setdefault(frame, Tree())
            at.ranks.add(rank)

    def lines(self) -> list[tuple[int, str, str]]:
        """(depth, ranks, frames); frames that the same ranks pass one after the other share a line."""
        out: list[tuple[int, str, str]] = []
        stack = [(0, name, node) for name, node in reversed(self._sorted())]
        while stack:
            depth, name, node = stack.pop()
            names = [name]
            while len(node.below) == 1:
                ((inner, only),) = node.below.items()
                if only.ranks != node.ranks:
                    break
                names.append(inner)
                node = only
            shown = names if len(names) <= _MAX_FRAMES else [*names[:2], "…", *names[-(_MAX_FRAMES - 2) :]]
            out.append((depth, rank_set(node.ranks), " > ".join(shown)))
            stack += [(depth + 1, inner, each) for inner, each in reversed(node._sorted())]
        return out

    def _sorted(self) -> list[tuple[str, Tree]]:
        return sorted(self.below.items(), key=lambda item: (-len(item[1].ranks), item[0]))


_MAX_FRAMES = 6


def rank_set(ranks: Iterable[int]) -> str:
    """`0-2, 5`."""
    out: list[str] = []
    numbers = sorted(ranks)
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            first, last = numbers[begin], numbers[i - 1]
            out.append(str(first) if first == last else f"{first}-{last}")
            begin = i
    return ", ".join(out)
