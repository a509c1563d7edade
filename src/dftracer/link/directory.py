"""All ranks of a directory, in parallel: read and connect every rank, align all clocks, then write."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dftracer.link.clock import Clock, Member, align, arrivals, match
from dftracer.link.discover import Found, RankFiles, discover

_WORTH_A_PROCESS = 24 << 20  # bytes of JSON: less than this is read faster than another process starts
_PACKED = 20  # the compression ratio of JSON traces


class LinkError(RuntimeError):
    """A rank could not be linked at all."""


@dataclass
class LinkReport:
    """What was linked, how completely, and where it was written."""

    output: Path
    ranks: list[dict[str, Any]]
    warnings: list[str]
    reasons: dict[int, dict[str, int]] = field(default_factory=dict)
    clocks: dict[int, Clock] = field(default_factory=dict)
    collectives: list[Member] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The documented keys."""
        return {"ranks": self.ranks, "warnings": self.warnings}

    def covers(self, least: float) -> bool:
        """Whether every rank reached a coverage."""
        return bool(self.ranks) and all(
            r["coverage"] is not None and r["coverage"] >= least for r in self.ranks
        )


def link(
    directory: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    workers: int | None = None,
) -> LinkReport:
    """Join all ranks' traces under `directory`; write to `output` (default `<directory>/linked`)."""
    warm = _warm_workers(Path(directory), workers)
    try:
        return _link(Path(directory), output, workers, warm)
    finally:
        for worker in warm:  # those that were not needed
            _stop(worker)


def _link(
    directory: Path,
    output: str | os.PathLike[str] | None,
    workers: int | None,
    warm: list[subprocess.Popen[bytes]],
) -> LinkReport:
    found = discover(directory)
    folder = Path(output) if output is not None else directory / "linked"
    folder.mkdir(parents=True, exist_ok=True)
    # Results appear when all are complete, whatever another `link` of the same directory does meanwhile.
    with tempfile.TemporaryDirectory(prefix=".dftracer-", dir=folder) as place:
        work = Path(place)
        report = _link_ranks(found, folder, work, workers, warm)
        for path in sorted(work.iterdir()):
            path.replace(folder / path.name)
    return report


def _link_ranks(
    found: Found, folder: Path, work: Path, workers: int | None, warm: list[subprocess.Popen[bytes]]
) -> LinkReport:
    """Write the results of all ranks to `work`."""
    files = list(found.ranks.values())
    lanes = _lanes(files, workers)
    team = _Team(lanes, work, warm)
    warnings = list(found.warnings)
    try:
        summaries = team.prepare()
        failed = {r: text for r, text in summaries.items() if isinstance(text, str)}
        for rank, text in failed.items():
            warnings.append(f"rank {rank} could not be linked: {text}")
        good = {r: s for r, s in summaries.items() if not isinstance(s, str)}
        if not good:
            raise LinkError("; ".join(failed.values()) or "nothing could be linked")
        members = [m for s in good.values() for m in s.members]
        remarks: list[str] = []
        matched = match(members, remarks)
        hosts = [{"rank": r, "host": s.host, "error_ns": s.error_ns} for r, s in good.items()]
        clocks = align(hosts, matched, remarks)
        arrivals(matched, clocks)
        starts = [s.start_ns + clocks[r].offset_ns for r, s in good.items() if s.start_ns is not None]
        base = min(starts, default=0)
        seconds = team.write({r: (clocks[r], good[r].members, base) for r in good})
    finally:
        team.close()
    _join_timeline(work, sorted(good), base, clocks)
    _write_collectives(work, members, clocks)
    ranks = []
    for rank in sorted(good):
        s = good[rank]
        warnings += [w if w.startswith("rank ") else f"rank {rank}: {w}" for w in s.warnings]
        ranks.append(
            {
                "rank": rank,
                "et_nodes": s.et_nodes,
                "joined": s.joined,
                "coverage": s.joined / s.et_nodes if s.et_nodes else None,
                "name_agreement": s.agreeing / s.matched if s.matched else None,
                "edges": s.edges,
                "collectives": s.collectives,
                "seconds": round(s.seconds + seconds[rank], 3),
            }
        )
    reasons = {r: s.reasons for r, s in good.items()}
    return LinkReport(folder, ranks, warnings + remarks, reasons, clocks, members)


def _lanes(files: Sequence[RankFiles], workers: int | None) -> list[list[RankFiles]]:
    """The ranks distributed over processes; this process is the first of them."""
    cores = _cores()
    if workers is None and sum(_text_size(f) for f in files) < _WORTH_A_PROCESS:
        cores = 1
    count = max(1, min(len(files), workers or cores))
    return [list(files[i::count]) for i in range(count)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text_size(files: RankFiles) -> int:
    """About how much JSON a rank has."""
    return sum(_json_size(s.path) for s in [*files.et, *files.activity])


def _json_size(path: Path) -> int:
    return path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1)


def _warm_workers(directory: Path, workers: int | None) -> list[subprocess.Popen[bytes]]:
    """Processes that load their modules while this one reads the directory: as many as names suggest."""
    named: dict[str, int] = {}
    for path in filter(Path.is_file, directory.glob("torch_et_*.json*")):
        rank = path.name.removeprefix("torch_et_").partition(".")[0].partition("_")[0]
        named[rank] = named.get(rank, 0) + _json_size(path)
    if sum(named.values()) < _WORTH_A_PROCESS:
        return []
    return [_start() for _ in range(min(len(named), workers or _cores()) - 1)]


def _start() -> subprocess.Popen[bytes]:
    # Not multiprocessing: that would run the caller's main module again.
    command = [sys.executable, "-c", "from dftracer.link.directory import serve; serve()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment())


def _stop(worker: subprocess.Popen[bytes]) -> None:
    """End a worker by closing its pipes."""
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            pipe.close()
    try:
        worker.wait(timeout=10)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def _join_timeline(folder: Path, ranks: list[int], base: int, clocks: dict[int, Clock]) -> None:
    from dftracer.link.timeline import join_fragments  # noqa: PLC0415 - what needs numpy is imported when it is used

    facts = {
        str(r): {
            "offset_ns": c.offset_ns,
            "error_ns": c.error_ns,
            "method": c.method,
            "collectives": c.collectives,
        }
        for r, c in clocks.items()
    }
    join_fragments(folder / "timeline.json.gz", [folder / f".timeline_{r}.part" for r in ranks], base, facts)


def _write_collectives(folder: Path, members: list[Member], clocks: dict[int, Clock]) -> None:
    from dftracer.link.tables import write_collectives  # noqa: PLC0415

    write_collectives(folder / "collectives.parquet", members, clocks)


class _Lane:
    """The ranks of one process: if there are several, each is kept on disk between the two halves.

    In a file without a name: pickled objects that someone else could replace would be their code.
    """

    def __init__(self, files: list[RankFiles], folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._held: dict[int, Any] = {}
        self._disk = tempfile.TemporaryFile(dir=folder) if len(files) > 1 else None  # noqa: SIM115
        self._places: dict[int, int] = {}

    def prepare(self) -> dict[int, Any]:
        """Summaries by rank; a text where a rank failed."""
        from dftracer.link.rank import prepare  # noqa: PLC0415

        out: dict[int, Any] = {}
        for files in self._files:
            try:
                ready = prepare(files)
            except ImportError:
                raise
            except Exception as e:
                out[files.rank] = f"{type(e).__name__}: {e}"
                continue
            out[files.rank] = ready.summary
            if self._disk is None:
                self._held[files.rank] = ready
            else:
                self._places[files.rank] = self._disk.tell()
                pickle.dump(ready, self._disk, protocol=5)
        return out

    def write(self, orders: dict[int, tuple[Clock, list[Member], int]]) -> dict[int, float]:
        """Write the ranks of this lane."""
        out = {}
        for files in self._files:
            if files.rank not in orders:
                continue
            ready = self._held.pop(files.rank, None)
            if ready is None and self._disk is not None:
                self._disk.seek(self._places[files.rank])
                ready = pickle.load(self._disk)
            clock, members, base = orders[files.rank]
            out[files.rank] = ready.write(self._folder, clock, members, base)
        return out

    def clean(self) -> None:
        if self._disk is not None:
            self._disk.close()


class _Team:
    """This process does the first lane, others one each."""

    def __init__(
        self, lanes: list[list[RankFiles]], folder: Path, warm: list[subprocess.Popen[bytes]]
    ) -> None:
        self._lanes = lanes
        self._own = _Lane(lanes[0], folder)
        self._others: list[subprocess.Popen[bytes]] = []
        for lane in lanes[1:]:
            worker = warm.pop() if warm else _start()
            self._others.append(worker)
            _send(worker.stdin, (lane, folder))

    def prepare(self) -> dict[int, Any]:
        return self._each(self._own.prepare, lambda lane: None)

    def write(self, orders: dict[int, tuple[Clock, list[Member], int]]) -> dict[int, float]:
        return self._each(
            lambda: self._own.write(orders),
            lambda lane: {f.rank: orders[f.rank] for f in lane if f.rank in orders},
        )

    def _each(
        self, own: Callable[[], dict[int, Any]], order: Callable[[list[RankFiles]], Any]
    ) -> dict[int, Any]:
        for worker, lane in zip(self._others, self._lanes[1:], strict=True):
            _send(worker.stdin, order(lane))
        out = own()
        for worker, lane in zip(self._others, self._lanes[1:], strict=True):
            answer = _receive(worker.stdout)
            if answer is None:
                ranks = ", ".join(str(f.rank) for f in lane)
                raise LinkError(f"the process that linked rank {ranks} ended: out of memory?")
            if isinstance(answer, BaseException):
                raise answer
            out.update(answer)
        return dict(sorted(out.items()))

    def close(self) -> None:
        self._own.clean()
        for worker in self._others:
            _stop(worker)


def _environment() -> dict[str, str]:
    """Workers are not traced, and use one core each."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "DFTRACER_ENABLE", "DFTRACER_INIT")}
    env["OMP_NUM_THREADS"] = env["OPENBLAS_NUM_THREADS"] = "1"
    return env


def _send(pipe: BinaryIO | Any, value: Any) -> None:
    """One pickled value with its length before it."""
    data = pickle.dumps(value, protocol=5)
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def _receive(pipe: BinaryIO | Any) -> Any:
    """One value; None at the end of the pipe."""
    head = pipe.read(8)
    if len(head) < 8:
        return None
    data = pipe.read(struct.unpack("<Q", head)[0])
    return pickle.loads(data)


def serve() -> None:
    """The other end of `_Team`, one lane of ranks in a separate process: requests come from stdin, answers go
    to the original stdout.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # printed text must not get between the answers
    import dftracer.link.rank  # noqa: F401, PLC0415 - while the other side looks at the directory

    task = _receive(sys.stdin.buffer)
    if task is None:
        return
    lane = _Lane(*task)
    try:
        for step in (lambda _: lane.prepare(), lane.write):
            order = _receive(sys.stdin.buffer)
            if order is None and step == lane.write:
                break
            answer: Any
            try:
                answer = step(order)
            except Exception as e:
                answer = e
            _send(answers, answer)
    finally:
        lane.clean()
