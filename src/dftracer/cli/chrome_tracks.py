"""The tracks of an exported timeline: ids that viewers can distinguish, familiar names, arrows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dftracer.load.process import ProcessInfo

__all__ = ["FEEDING", "ProcessTracks", "Tracks"]

_LARGEST = 1 << 31
# A child process with events of these categories reads samples: it is a data loader worker.
FEEDING = {"data", "dataloader", "POSIX", "STDIO"}
_LANE = "lane."
Row = dict[str, Any]


class _Numbers:
    """A unique 32-bit number for each key: the one the system gave, if it is still free."""

    def __init__(self) -> None:
        self._given: dict[Any, int] = {}
        self._taken: set[int] = {0}
        self._next = 1

    def get(self, key: Any, wish: int | None) -> int:
        found = self._given.get(key)
        if found is not None:
            return found
        if wish is None or not 0 < wish < _LARGEST or wish in self._taken:
            while self._next in self._taken:
                self._next += 1
            wish = self._next
        self._taken.add(wish)
        self._given[key] = wish
        return wish


class Tracks:
    """The ids of all processes, and the arrows between them."""

    def __init__(self, processes: Iterable[ProcessInfo]) -> None:
        self._known = {p.key for p in processes}
        self._pids = _Numbers()
        self._tids = _Numbers()
        self._workers: dict[Any, int] = {}
        self._collectives: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
        self._arrows = 0

    def begin(self, holder: ProcessInfo, original_pid: int, feeds: bool) -> ProcessTracks:
        """The tracks of one process; `feeds`: it has events typical of a data loader."""
        process = holder if holder.pid == original_pid else holder.others.get(original_pid)
        key = process.key if process is not None else (holder.host, original_pid)
        rank = holder.ranks().get(original_pid) if holder.others else holder.rank
        self._known |= {p.key for p in holder.others.values()}
        out = ProcessTracks(self, process, key, self._pids.get(key, original_pid), rank)
        out.heads.append(_name("process_name", out.pid, 0, self._who(process, original_pid, rank, feeds)))
        if rank is not None:
            sort = {"sort_index": rank}
            out.heads.append(
                {"name": "process_sort_index", "ph": "M", "pid": out.pid, "tid": 0, "args": sort}
            )
        return out

    def tid(self, key: Any, original: int, lane: int) -> int:
        return self._tids.get((key, original, lane), None if lane else original)

    def meetings(self) -> Iterator[Row]:
        """Arrows between the ranks' parts of one collective, in order of arrival."""
        for parts in self._collectives.values():
            ranks = {rank for rank, _ in parts}
            if 1 < len(ranks) == len(parts):
                yield from self.arrow("collective", sorted((r for _, r in parts), key=lambda r: r["ts"]))

    def keep_collective(self, row: Row, rank: int | None) -> None:
        args = row["args"]
        if row["cat"] == "comm" and rank is not None and "seq" in args and "group" in args:
            where = (args["group"], row["name"], args["seq"])
            if row["name"] not in ("send", "receive"):  # each rank counts these separately
                self._collectives.setdefault(where, []).append((rank, _end(row)))

    def arrow(self, name: str, ends: list[Row]) -> Iterator[Row]:
        self._arrows += 1
        for i, row in enumerate(ends):
            ph = "s" if i == 0 else "f" if i == len(ends) - 1 else "t"
            arrow = {"ph": ph, "id": self._arrows, "name": name, "cat": name}
            more = {} if ph == "s" else {"bp": "e"}
            yield {**arrow, "pid": row["pid"], "tid": row["tid"], "ts": row["ts"], **more}

    def _who(self, process: ProcessInfo | None, pid: int, rank: int | None, feeds: bool) -> str:
        parts = [f"rank {rank}"] if rank is not None else []
        parent = (process.host, process.ppid) if process is not None and process.ppid is not None else None
        if parent in self._known and feeds:
            number = self._workers[parent] = self._workers.get(parent, -1) + 1
            parts.append(f"loader worker {number}")
        return " ".join([*parts, f"pid {pid}"])


class ProcessTracks:
    """The tracks of one process, named as its rows are written."""

    def __init__(
        self, tracks: Tracks, process: ProcessInfo | None, key: Any, pid: int, rank: int | None
    ) -> None:
        self.heads: list[Row] = []
        self.pid = pid
        self._tracks = tracks
        self._process = process
        self._key = key
        self._rank = rank
        self._named: set[int] = set()
        self._devices = {t for t, text in _device_lanes(process).items() if "stream" in text}
        self._launches: dict[int, Row] = {}
        self._kernels: list[tuple[int, Row]] = []

    def place(self, row: Row, lane: int) -> Iterator[Row]:
        """Give the row its ids; yields the name of its track if it is the first one on it."""
        original = row["tid"]
        row["pid"] = self.pid
        row["tid"] = self._tracks.tid(self._key, original, lane)
        if row["ph"] != "X":
            return
        if row["tid"] not in self._named:
            self._named.add(row["tid"])
            text = _thread(self._process, original) + (f" ({lane + 1})" if lane else "")
            yield _name("thread_name", self.pid, row["tid"], text)
        number = row["args"].get("correlation")
        if isinstance(number, int) and row["cat"] == "PP":
            if original in self._devices:
                self._kernels.append((number, _end(row)))
            else:
                self._launches[number] = _end(row)
        self._tracks.keep_collective(row, self._rank)

    def arrows(self) -> Iterator[Row]:
        """Arrows from launches to what they launched."""
        for number, kernel in self._kernels:
            if number in self._launches:
                yield from self._tracks.arrow("launch", [self._launches[number], kernel])


def _end(row: Row) -> Row:
    """What an arrow needs to know about a row."""
    return {k: row[k] for k in ("pid", "tid", "ts")}


def _device_lanes(process: ProcessInfo | None) -> dict[int, str]:
    """Lanes of device work: `GPU 0 stream 7`."""
    found = {}
    for key, text in process.user_metadata if process is not None else ():
        if key.startswith(_LANE) and key[len(_LANE) :].isdigit():
            found[int(key[len(_LANE) :])] = text
    return found


def _thread(process: ProcessInfo | None, tid: int) -> str:
    if process is not None:
        told = _device_lanes(process).get(tid) or process.threads.get(tid, "")
        if told and not told.isdigit():
            return told
        if tid == process.pid:
            return f"main thread {tid}"
    return f"thread {tid}"


def _name(kind: str, pid: int, tid: int, text: str) -> Row:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": text}}
