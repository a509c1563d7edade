"""The runs below a directory, one row each, the newest first.

A row takes an analysis, so it is kept beside the traces: a second look reads only runs whose files changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dftracer import __version__
from dftracer.analyze.analysis import Analysis, analyze
from dftracer.analyze.device.summary import device_shares
from dftracer.analyze.job import attempt_of
from dftracer.analyze.map.step_rows import process_of_rows
from dftracer.format.trace_names import (
    ROWS_SUFFIX,
    NoTraces,
    find_files,
    find_traces,
    is_rows_name,
)
from dftracer.load.find import recover, recover_below, user_caches
from dftracer.load.process import ProcessInfo, Run, assign_ranks, find_runs, peek, run_identity
from dftracer.load.rows import read_row_file, rows_without_traces

_CACHE = "runs.json"
_CACHE_FORMAT = f"3/{__version__}"  # rows of another version may mean something else
_HEAD = (
    "pid",
    "ppid",
    "rank",
    "world_size",
    "host",
    "start_us",
    "born_us",
    "end_us",
    "facts",
    "command",
    "run",
)
_BESIDE = (
    "ended-*.json",
    "hang_*.json",
    f"*{ROWS_SUFFIX}",
)  # what others wrote about a run, beside its traces
_KEYS = (
    "run",
    "name",
    "tags",
    "start",
    "command",
    "git",
    "host",
    "ranks",
    "attempt",
    "steps",
    "samples_per_s",
    "bound",
    "ended",
    "path",
)


@dataclass
class RunRow:
    """What a list of runs says about one of them; None: not known."""

    run: str | None
    name: str | None
    tags: dict[str, str]
    start: int | None  # us since the epoch
    command: str | None
    git: dict[str, Any]  # commit, dirty
    host: str | None
    ranks: int
    attempt: int  # of its last processes: how often the launcher had restarted them
    steps: int | None
    samples_per_s: float | None
    bound: str | None
    ended: dict[str, Any]  # exit_code, signal, exception, rank, step
    path: str
    verdict: str = ""
    ended_words: str | None = None
    run_s: float = 0.0
    step_s: float | None = None  # the median of the steady steps
    gpu_busy: float | None = None
    files: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The row as `dftracer runs --json` has it."""
        return {key: getattr(self, key) for key in _KEYS}


def tags_of(text: str) -> dict[str, str]:
    """`a=1,b=2` as the recorder keeps them."""
    pairs = (each.partition("=") for each in text.split(",") if each.strip())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cache_file(root: Path) -> list[Path]:
    """Where the rows of the runs below a directory are kept: there, or with the user's caches."""
    base = user_caches()
    digest = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]
    return [root / ".dftracer-cache" / _CACHE, base / "dftracer" / f"{digest}-{_CACHE}"]


class _Cache:
    """Heads of files and rows of runs, each with what its files looked like."""

    def __init__(self, root: Path) -> None:
        self.cache_files = cache_file(root)
        self.heads: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}
        for file in self.cache_files:
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                if kept["format"] == _CACHE_FORMAT:
                    self.heads, self.rows = kept["heads"], kept["rows"]
                    return
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def knows(self, file: Path) -> bool:
        known = self.heads.get(str(file))
        return known is not None and known["stamp"] == _stamp(file)

    def save(self, heads: dict[str, Any], rows: dict[str, Any]) -> None:
        """Keep these, and nothing of files and runs that are gone."""
        if heads == self.heads and rows == self.rows:
            return
        text = json.dumps({"format": _CACHE_FORMAT, "heads": heads, "rows": rows}, separators=(",", ":"))
        for file in self.cache_files:
            temporary = file.with_name(f".{file.name}.{os.urandom(6).hex()}")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(text, encoding="utf-8")
                temporary.replace(file)
                return
            except OSError:
                continue
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)


def list_runs(
    paths: Iterable[str | os.PathLike[str]], progress: Callable[[int, int], None] | None = None
) -> list[RunRow]:
    """The runs below some paths, the newest first; `progress` receives how many of how many are done."""
    given = [Path(p) for p in paths]
    cache = _Cache(_root(given))
    runs, heads = _find(given, cache)
    kept: dict[str, Any] = {}
    out = []
    for done, run in enumerate(runs):
        key = json.dumps([run.id, sorted(map(str, run.files))])
        print_ = _fingerprint(run, heads)
        known = cache.rows.get(key)
        if known is None or known["print"] != print_:
            known = {"print": print_, "row": asdict(_row(run))}
        kept[key] = known
        out.append(RunRow(**{f.name: known["row"][f.name] for f in fields(RunRow)}))
        if progress is not None:
            progress(done + 1, len(runs))
    cache.save(heads, kept)
    return out


def runs_below(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The same runs as their files, without looking further than their heads."""
    given = [Path(p) for p in paths]
    return _find(given, _Cache(_root(given)))[0]


def _root(given: list[Path]) -> Path:
    return given[0] if given[0].is_dir() else given[0].parent


def _find(given: list[Path], cache: _Cache) -> tuple[list[Run], dict[str, Any]]:
    # Every folder is looked at once: those that have not changed since need not be completed again.
    recover_below(_root(given))
    recover([file for file in _files(given) if not cache.knows(file)])
    heads: dict[str, Any] = {}
    processes = []
    for file in _files(given):
        stamp = _stamp(file)
        known = cache.heads.get(str(file))
        if known is not None and known["stamp"] == stamp:
            info = ProcessInfo(file, **known["head"])
        else:
            if is_rows_name(file):
                rows = read_row_file(str(file))
                if not len(rows.steps):  # all of it is damaged
                    continue
                info = process_of_rows(rows)
            else:
                info = peek(file)
                if info.pid < 0:  # not a line of it is a record
                    continue
            known = {"stamp": stamp, "head": {key: getattr(info, key) for key in _HEAD}}
        heads[str(file)] = known
        processes.append(info)
    if not processes:
        raise NoTraces(f"no trace and no step rows can be read under {', '.join(map(str, given))}")
    assign_ranks(processes)
    runs = find_runs(processes)
    for run in runs:  # of what is there in detail, the rows tell nothing more
        detailed = [p for p in run.processes if not is_rows_name(p.file)]
        run.processes = detailed or run.processes
    return runs, heads


def _files(given: list[Path]) -> list[Path]:
    """The traces, and the step rows of those that are gone."""
    alone = [Path(file) for file in rows_without_traces(given)]
    if not alone:
        return find_files(given)
    traces = find_traces([path for path in given if not is_rows_name(path)])
    for missing in (path for path in given if not path.exists()):
        find_files([missing])  # says so
    return [*map(Path, traces), *alone]


def _stamp(file: Path) -> str:
    s = file.stat()
    return f"{s.st_size}:{s.st_mtime_ns}:{s.st_ino}"


def _fingerprint(run: Run, heads: dict[str, Any]) -> str:
    """Changes whenever one of the run's files does, or what is written beside them."""
    stamps = [f"{file}:{heads[str(file)]['stamp']}" for file in run.files]
    for folder in {file.parent for file in run.files}:
        for pattern in _BESIDE:
            stamps += [f"{each}:{_stamp(each)}" for each in folder.glob(pattern)]
    return hashlib.sha256("\n".join(sorted(stamps)).encode("utf-8", "surrogateescape")).hexdigest()


def _row(run: Run) -> RunRow:
    identity = run_identity(run.processes)
    facts: dict[str, str] = {}
    for process in run.processes:
        for key in ("run_name", "run_tags", "run_git"):
            if process.facts.get(key):
                facts.setdefault(key, process.facts[key])
    git = facts.get("run_git", "")
    row = RunRow(
        run=run.id,
        name=facts.get("run_name"),
        tags=tags_of(facts.get("run_tags", "")),
        start=identity["start"],
        command=identity["command"],
        git={
            "commit": git.rstrip("+?") or None,
            "dirty": None if not git or git[-1] == "?" else git[-1] == "+",
        },
        host=identity["host"],
        ranks=0,
        attempt=0,
        steps=0,
        samples_per_s=None,
        bound=None,
        ended=dict.fromkeys(("exit_code", "signal", "exception", "rank", "step")),
        path=os.path.commonpath([str(f.parent) for f in run.files]) or ".",
        files=[str(f) for f in run.files],
    )
    try:
        _judge(row, analyze([str(f) for f in run.files], run="all"))
        _complete_from_rows(row, run.files)
    except NoTraces as problem:  # a process that was killed at once
        row.verdict = str(problem)
    return row


def _complete_from_rows(row: RunRow, files: list[Path]) -> None:
    """Of remote files only the ends may have been read: their step rows say what is missing, if anything."""
    if not any("dftracer-remote" in file.parts for file in files):
        return
    from dftracer.load.remote import origin  # noqa: PLC0415 - for those who read from elsewhere
    from dftracer.load.rows import read_row_files  # noqa: PLC0415

    copies = [origin(file) for file in files]
    parts = [copy.url.partition("://") for copy in copies if copy is not None]
    if len(parts) == len(files):
        row.path = f"{parts[0][0]}://{os.path.commonpath([os.path.dirname(part[2]) for part in parts])}"
    if all(copy is None or copy.whole for copy in copies):
        return
    row.bound, row.verdict = None, ""
    row.steps = row.samples_per_s = row.step_s = row.gpu_busy = None
    ranks = [each for each in read_row_files(files) if len(each.steps)]
    if not ranks:
        return
    slowest = max(ranks, key=lambda each: int(each.column("wall_us").sum()))
    wall = slowest.column("wall_us")
    row.steps = len(wall)
    row.step_s = round(float(np.median(wall)) / 1e6, 6)
    samples = sum(int(each.column("samples").sum()) for each in ranks)
    row.samples_per_s = round(samples * 1e6 / int(wall.sum()), 6) if samples and wall.sum() else None
    row.gpu_busy = slowest.device_busy
    judged = analyze([each.path for each in ranks], run=row.run)
    row.bound = None if judged.bound is None else judged.bound.part.id
    row.verdict = judged.verdict


def _judge(row: RunRow, a: Analysis) -> None:
    """Fill in what takes an analysis."""
    slowest = a.job.slowest
    row.ranks = len(a.job.ranks)
    row.attempt = max((attempt_of(p) for p in a.job.partials), default=0)
    row.samples_per_s = a.samples_per_s
    row.bound = None if a.bound is None else a.bound.part.id
    row.ended = {key: value for key, value in a.ended.to_json().items() if key in row.ended}
    row.ended_words = a.ended.words(row.ranks)
    row.verdict = a.verdict
    row.run_s = round(a.run_s, 6)
    if slowest is None:
        return
    row.steps = slowest.main.finished_steps
    row.step_s = round(slowest.main.steps.usual_us / 1e6, 6) or None
    shares = device_shares(slowest)
    if shares is not None:
        row.gpu_busy = round(shares.account.busy_share, 6)
    elif a.from_rows:
        row.gpu_busy = slowest.main.device_busy
    else:
        used = [
            gpu["utilization"] for gpu in a.machine.get("gpu") or [] if gpu.get("utilization") is not None
        ]
        row.gpu_busy = round(sum(used) / len(used), 6) if used else None
