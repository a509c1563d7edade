"""The goodput of a job: of all its time, over all attempts, how much went into new steps, and into what else.

An attempt is one life of the job's processes, whoever started it again: a launcher, a scheduler, a loop in a
shell. Each is looked at through one of its ranks, for ranks that train together take the same time. Every
microsecond between the start of the first attempt and the end of the last is in exactly one part.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.analyze.analysis import Analysis, analyze
from dftracer.analyze.history import runs_below
from dftracer.analyze.intervals import EMPTY, Intervals, clip, difference, intersection, total, union
from dftracer.analyze.job import attempt_of
from dftracer.analyze.map.partial import Partial
from dftracer.analyze.map.steps import Checkpoint
from dftracer.analyze.rules.trust import Ended, attempts
from dftracer.format.trace_names import NoTraces
from dftracer.load.chunk import MISSING, Ints
from dftracer.load.process import Run, as_integer, run_identity

PARTS = (
    "initialization",
    "data",
    "checkpoint_save",
    "checkpoint_restore",
    "evaluation",
    "recomputed",
    "failed",
    "gap",
    "hang",
    "other",
)
_STRANGERS = 8  # unrelated runs of the same program in a row to skip before giving up
_CLOCKS_AGREE_US = 60_000_000
_ENDED = ("exit_code", "signal", "exception", "rank", "step")


@dataclass
class Attempt:
    """One life of the job, seen through the rank that made the most steps."""

    run: str | None
    start: int  # us since the epoch
    end: int
    main: Partial | None
    members: list[Partial]
    ended: Ended
    hangs: Intervals = EMPTY
    numbers: Ints = field(default_factory=lambda: EMPTY[0])  # of its finished steps, in the whole job
    numbered: bool = True  # False: it resumed from an unknown checkpoint
    followed: bool = False  # another attempt came after it
    spans: dict[str, Intervals] = field(default_factory=dict)  # its time by part; "productive" is one of them

    @property
    def failed(self) -> bool:
        """Whether it did not end by itself; one that still runs has not failed."""
        if self.ended.failed or not self.members:
            return self.ended.failed
        end = (_first(self.members) if self.main is None else self.main).process.end
        return self.followed if end is None else bool(end.get("recovered"))

    @cached_property
    def steps(self) -> Intervals:
        """Its finished steps. The last may have been killed between its update and its end."""
        if self.main is None or not len(self.main.steps):
            return EMPTY
        table, updated = self.main.steps, self.main.updated_us
        if updated is None:
            return table.start, table.end
        return np.append(table.start, table.end[-1]), np.append(table.end, updated)

    @property
    def first_step(self) -> int | None:
        return int(self.numbers[0]) if self.numbers.size and self.numbered else None

    @property
    def last_step(self) -> int | None:
        return int(self.numbers[-1]) if self.numbers.size and self.numbered else None

    def to_json(self) -> dict[str, Any]:
        ended = self.ended.to_json()
        return {
            "run": self.run,
            "start": self.start,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "ended": {key: ended[key] for key in _ENDED},
        }


@dataclass
class Goodput:
    """The time of a job, which is the sum of its parts."""

    attempts: list[Attempt]
    left_out: list[str] = field(
        default_factory=list
    )  # runs in the same directory that are not attempts of it

    @property
    def start(self) -> int:
        return self.attempts[0].start

    @property
    def end(self) -> int:
        return self.attempts[-1].end

    @property
    def wall_us(self) -> int:
        return self.end - self.start

    def spans(self, part: str) -> Intervals:
        """When the job was in one of its parts, or productive."""
        if part == "gap":
            ends, starts = [a.end for a in self.attempts[:-1]], [a.start for a in self.attempts[1:]]
            return union(np.array(ends, np.int64), np.array(starts, np.int64))
        found = [a.spans[part] for a in self.attempts if part in a.spans]
        if not found:
            return EMPTY
        return union(np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]))

    @property
    def parts_us(self) -> dict[str, int]:
        return {part: total(self.spans(part)) for part in PARTS}

    @property
    def productive_us(self) -> int:
        return total(self.spans("productive"))

    @property
    def share(self) -> float:
        return self.productive_us / self.wall_us if self.wall_us else 0.0

    @property
    def recomputed_steps(self) -> int | None:
        """None if it is not known where an attempt resumed."""
        if not all(a.numbered for a in self.attempts):
            return None
        return sum(int(again.sum()) for again in _repeated_steps(self.attempts))

    @property
    def steps(self) -> int:
        """Different steps that were finished; all of them, where it is not known which are different."""
        return sum(a.numbers.size for a in self.attempts) - (self.recomputed_steps or 0)

    def to_json(self) -> dict[str, Any]:
        parts: dict[str, float | None] = {part: round(us / 1e6, 6) for part, us in self.parts_us.items()}
        if self.recomputed_steps is None:
            parts["recomputed"] = None
        return {
            "wall_s": round(self.wall_us / 1e6, 6),
            "productive_s": round(self.productive_us / 1e6, 6),
            "goodput": round(self.share, 6),
            "parts": parts,
            "attempts": [a.to_json() for a in self.attempts],
            "recomputed_steps": self.recomputed_steps,
        }


def goodput(
    paths: Iterable[str | os.PathLike[str]],
    name: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Goodput:
    """The goodput of the newest job below some paths, or of the runs called `name`.

    `progress` receives how many of how many runs have been read.
    """
    runs = sorted(runs_below(paths), key=lambda r: r.start_us)
    chosen = _Chooser(runs, name, progress)
    found = [a for run, analysis in chosen.runs() for a in _attempts(run, analysis)]
    found.sort(key=lambda a: a.start)
    found[-1].end = max(a.end for a in found)  # an earlier one may have been left running
    for before, after in pairwise(found):
        before.end = min(before.end, after.start)
        before.followed = True
    _number(found)
    again = _repeated_steps(found)
    for attempt, repeated in zip(found, again, strict=True):
        _split_time(attempt, repeated)
    return Goodput(found, chosen.left_out)


# --- Which runs are attempts of one job


class _Chooser:
    """Finds the runs of a job: by the name they were given, by their launcher's id, or by what they did."""

    def __init__(
        self, runs: list[Run], name: str | None, progress: Callable[[int, int], None] | None
    ) -> None:
        self.all = runs
        self.name = name
        self.progress = progress
        self.left_out: list[str] = []

    def runs(self) -> list[tuple[Run, Analysis]]:
        """In the order of their start."""
        newest = self.all[-1]
        name = self.name if self.name is not None else _name_of(newest)
        if name is not None:
            mine = [r for r in self.all if _name_of(r) == name]
            if not mine:
                known = sorted({n for r in self.all if (n := _name_of(r))})
                choice = f"known names: {', '.join(known)}" if known else "no run has a name"
                raise NoTraces(f"no run is called {name!r}; {choice}")
            found = self._named(mine)
        else:
            found = self._chain(newest)
        chosen = {id(r) for r, _ in found}
        self.left_out = [str(r.id or r.files[0].parent) for r in self.all if id(r) not in chosen]
        return found

    def _read(self, run: Run, done: int, of: int) -> Analysis:
        analysis = analyze([str(f) for f in run.files], run="all")
        if self.progress is not None:
            self.progress(done + 1, of)
        return analysis

    def _named(self, mine: list[Run]) -> list[tuple[Run, Analysis]]:
        """All of them if the name was asked for. The newest run's own name may be that of a series of jobs:
        a run that ended normally and was not resumed belongs to the job before.
        """
        found: list[tuple[Run, Analysis]] = []
        for done, run in enumerate(reversed(mine)):
            analysis = self._read(run, done, len(mine))
            if found and self.name is None and not _failed(analysis) and _started_over(found[0][1], analysis):
                break
            found.insert(0, (run, analysis))
        return found

    def _chain(self, newest: Run) -> list[tuple[Run, Analysis]]:
        """From the newest run back, as long as each goes on with what one before it left."""
        same = [r for r in self.all if _same_program(r, newest)]
        found = [(newest, self._read(newest, 0, len(same)))]
        between: list[tuple[Run, Analysis]] = []  # runs since then that do not say that they are of this job
        for run in reversed(same[: same.index(newest)]):
            later_run, later = found[0]
            if _at_the_same_time(run, later_run):
                continue
            analysis = self._read(run, len(found), len(same))
            restored = any(_restored(each, analysis) for _, each in found)
            if restored or _started_again(later_run, later, run, analysis):
                tried = [b for b in between if _restored(b[1], analysis) or _never_trained(b[1])]
                found[:0] = [(run, analysis), *tried]
                between = []
            elif not _checkpoints(later, restored=True) or len(between) == _STRANGERS:
                break
            else:  # what it restored may be from further back
                between.insert(0, (run, analysis))
        return found


def _name_of(run: Run) -> str | None:
    return next((p.facts["run_name"] for p in run.processes if p.facts.get("run_name")), None)


def _command(run: Run) -> list[str]:
    return str(run_identity(run.processes)["command"] or "").split()


def _same_program(a: Run, b: Run) -> bool:
    """The same script, whatever its arguments: a resumed run may have others."""
    if _command(a) == _command(b):
        return True
    scripts = [next((w for w in _command(r) if w.endswith(".py")), None) for r in (a, b)]
    return scripts[0] is not None and scripts[0] == scripts[1]


def _at_the_same_time(run: Run, later: Run) -> bool:
    """Then they are two jobs. Clocks of different hosts may differ by a little."""
    hosts = [run_identity(r.processes)["host"] for r in (run, later)]
    return run.end_us > later.start_us + (_CLOCKS_AGREE_US if hosts[0] != hosts[1] else 0)


def _first(partials: Iterable[Partial]) -> Partial:
    return min(partials, key=lambda p: (p.process.start_us or p.first_us or 0, p.process.pid))


def _failed(run: Analysis) -> bool:
    """Whether it did not end by itself."""
    trained = [p for p in run.job.partials if len(p.steps)]
    ends = [p.process.end for p in trained or [_first(run.job.partials)]]
    return run.ended.failed or any(end is None or end.get("recovered") for end in ends)


def _never_trained(run: Analysis) -> bool:
    """Whether it failed before its first step was finished."""
    return _failed(run) and not any(len(p.steps) for p in run.job.partials)


def _checkpoints(run: Analysis, restored: bool) -> list[Checkpoint]:
    return [c for p in run.job.partials for c in p.checkpoints if c.restored == restored]


def _started_over(later: Analysis, before: Analysis) -> bool:
    """Whether a run begins where the one before it had begun, and with nothing from it."""
    if _checkpoints(later, restored=True):
        return False
    firsts = [
        min((int(p.steps.step[0]) for p in a.job.partials if len(p.steps)), default=None)
        for a in (later, before)
    ]
    return firsts[0] is None or firsts[1] is None or firsts[0] <= firsts[1]


def _restored(later: Analysis, before: Analysis) -> bool:
    """Whether a run began with what another had saved."""
    saved, loaded = _checkpoints(before, restored=False), _checkpoints(later, restored=True)
    pairs = [(s, r) for s in saved for r in loaded]
    if any(_same_path(_path(s.path), _path(r.path)) for s, r in pairs):
        return True
    # What was saved may have been renamed.
    beside = [(s, r) for s, r in pairs if _same_folder(s.path, r.path)]
    return any(s.counter is not None and s.counter == r.counter for s, r in beside)


def _started_again(later_run: Run, later: Analysis, run: Run, before: Analysis) -> bool:
    """Whether a run was started because another had failed: by the launcher, or in the same way."""
    ids = [re.sub(r"\.\d+$", "", r.id or "") for r in (later_run, run)]
    launched = all(run_identity(r.processes)["launcher"] for r in (later_run, run))
    same_command = _command(later_run) == _command(run)
    if launched and ids[0] == ids[1] and same_command:
        return True
    if not _failed(before):
        return False
    saved, loaded = _checkpoints(before, restored=False), _checkpoints(later, restored=True)
    beside = any(_same_folder(s.path, r.path) for s in saved for r in loaded)
    return same_command or beside or _continues_numbering(later, before)


def _continues_numbering(later: Analysis, before: Analysis) -> bool:
    """Whether the numbers of a run's steps go on where those of another were."""
    labels = [max((p.steps.step for p in a.job.partials), key=len) for a in (later, before)]
    if any(not each.size or (each == MISSING).any() for each in labels):
        return False
    return bool(labels[1][0] < labels[0][0] <= labels[1][-1] + 1)


# --- Attempts and their steps


def _attempts(run: Run, analysis: Analysis) -> list[Attempt]:
    """The attempts of one run: its launcher may have started it several times."""
    job = analysis.job
    ranked = [p for p in job.partials if p.process.world_size is not None]
    numbers = sorted({attempt_of(p) for p in ranked})
    if len(numbers) < 2:
        return [_attempt(run, job.partials, analysis.ended)]
    ends = attempts(job)
    out = [
        _attempt(run, [p for p in ranked if attempt_of(p) == n], ended)
        for n, ended in zip(numbers, ends, strict=True)
    ]
    # The launcher's own process was there before and after them.
    out[0].start = min(out[0].start, _started_us(job.partials))
    out[-1].end = max(out[-1].end, _ended_us(job.partials))
    return out


def _attempt(run: Run, partials: list[Partial], ended: Ended) -> Attempt:
    by_steps = sorted(partials, key=lambda p: (-len(p.steps), p.process.rank or 0, p.first_us or 0))
    main = by_steps[0] if by_steps and len(by_steps[0].steps) else None
    start, end = _started_us(partials), _ended_us(partials)
    hangs = _hangs({f.parent for f in run.files}, start, end)
    return Attempt(run.id, start, end, main, partials, ended, hangs)


def _started_us(partials: list[Partial]) -> int:
    known = [
        t for p in partials for t in (p.process.born_us, p.process.start_us, p.first_us) if t is not None
    ]
    return min(known, default=0)


def _ended_us(partials: list[Partial]) -> int:
    return max((t for p in partials for t in (p.process.end_us, p.last_us) if t is not None), default=0)


def _hangs(folders: set[Path], start: int, end: int) -> Intervals:
    """When nothing moved, as the hang watch wrote it down; a hang that nothing ended lasted until the end."""
    starts, ends = [], []
    for file in sorted(f for folder in folders for f in folder.glob("hang_*.json")):
        try:
            hang = json.loads(file.read_text(encoding="utf-8"))
            spans = [hang, *hang.get("earlier", [])]
        except (OSError, ValueError, AttributeError, TypeError):
            continue
        for each in spans if all(isinstance(s, dict) for s in spans) else []:
            since, lasted = as_integer(each.get("moved_us"), None), each.get("went_on_after_s")
            if since is not None and start <= since < end:  # otherwise it is another attempt's
                starts.append(since)
                ends.append(min(end, since + int(lasted * 1e6)) if isinstance(lasted, int | float) else end)
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def _number(found: list[Attempt]) -> None:
    """Number the steps of every attempt, from where its checkpoint or the program itself says it goes on."""
    origin: int | None = None  # the number of the job's first step
    for i, attempt in enumerate(found):
        n = attempt.steps[0].size
        if not n or attempt.main is None:
            continue
        labels = attempt.main.steps.step
        if (labels == MISSING).any() or (np.diff(labels) <= 0).any():
            labels = np.arange(len(labels), dtype=np.int64)  # not given, or counted anew in each epoch
        labels = np.append(labels, labels[-1] + 1)[:n]
        if origin is None:
            origin = int(labels[0])
        elif labels[0] == origin:  # the program does not say that it was resumed
            resumed = _resumed(attempt, found[:i])
            if resumed is not None:
                labels = labels + (resumed - origin)
            else:
                attempt.numbered = not _resumed_at_unknown_step(attempt, found[:i])
        attempt.numbers = labels


def _resumed_at_unknown_step(attempt: Attempt, earlier: list[Attempt]) -> bool:
    """Whether it restored what an earlier one may have saved, and nothing tells which checkpoint that was.

    Step rows and plain annotations have neither the path of a checkpoint nor a number that is in it.
    """
    before = attempt.steps[1][0]
    loaded = [c for p in attempt.members for c in p.checkpoints if c.restored and c.start <= before]
    saved = [c for each in earlier for p in each.members for c in p.checkpoints if not c.restored]
    return any(_nameless(r) or _nameless(s) for r in loaded for s in saved)


def _nameless(c: Checkpoint) -> bool:
    return not c.failed and not c.path and c.counter is None


def _resumed(attempt: Attempt, earlier: list[Attempt]) -> int | None:
    """The number of the first step after the checkpoint that an attempt began with; None without one."""
    saves = []  # path, number in it, number of the step after it
    for each in earlier:
        for partial in each.members:
            for c in partial.checkpoints:
                if not c.restored and not c.failed and each.numbers.size:
                    reached = int(each.numbers[min(c.done, each.numbers.size) - 1]) + 1 if c.done else None
                    saves.append(
                        (_path(c.path), c.counter, int(each.numbers[0]) if reached is None else reached)
                    )
    found: list[int] = []
    before = attempt.steps[1][0]
    for c in [c for p in attempt.members for c in p.checkpoints if c.restored and not c.failed]:
        if c.start > before:
            continue
        path = _path(c.path)
        ways = (
            [s for s in saves if path and _same_path(s[0], path)],
            [s for s in saves if c.counter is not None and s[1] == c.counter],
            [s for s in saves if _same_folder(s[0], path) and s[2] in _numbers_in(path)],
            [s for s in saves if _same_folder(s[0], path)],
        )
        match = next((way[-1][2] for way in ways if way), c.counter)
        if match is not None:
            found.append(match)
    return max(found, default=None)


def _numbers_in(path: str) -> set[int]:
    """Of checkpoints that were written under another name first, the last name often says which it is."""
    return {int(digits) for digits in re.findall(r"\d{1,18}", os.path.basename(path))}


def _path(path: str | None) -> str:
    return os.path.normpath(path) if path else ""


def _same_path(a: str, b: str) -> bool:
    """One may be given from the root, the other from the working directory."""
    return bool(a) and (a == b or a.endswith(f"/{b}") or b.endswith(f"/{a}")) and bool(b)


def _same_folder(a: str | None, b: str | None) -> bool:
    """A checkpoint is often written under another name first."""
    if not a or not b:
        return False
    folders = [os.path.dirname(_path(each)) for each in (a, b)]
    return folders[0] == folders[1] or _same_path(*folders)


def _repeated_steps(found: list[Attempt]) -> list[np.ndarray]:
    """For each attempt, which of its steps an earlier one had finished already."""
    done: list[tuple[int, int]] = []
    out = []
    for attempt in found:
        again = np.zeros(attempt.numbers.size, bool)
        for first, last in done if attempt.numbered else ():
            again |= (attempt.numbers >= first) & (attempt.numbers <= last)
        out.append(again)
        if attempt.numbers.size and attempt.numbered:
            done.append((int(attempt.numbers[0]), int(attempt.numbers[-1])))
    return out


# --- Where the time of an attempt went


def _split_time(attempt: Attempt, again: np.ndarray) -> None:
    """Give every moment of an attempt to one part: the first that claims it has it."""
    rest: Intervals = np.array([attempt.start], np.int64), np.array([attempt.end], np.int64)
    if attempt.end <= attempt.start:
        return

    def take(part: str, spans: Intervals) -> None:
        nonlocal rest
        mine = intersection(rest, spans)
        rest = difference(rest, mine)
        if mine[0].size:
            before = attempt.spans.get(part, EMPTY)
            attempt.spans[part] = union(*(np.concatenate(both) for both in zip(before, mine, strict=True)))

    take("hang", attempt.hangs)
    main = attempt.main
    thread = None if main is None else main.steps.tid
    for part, restored in (("checkpoint_restore", True), ("checkpoint_save", False)):
        mine = [
            c
            for p in ([main] if main is not None else attempt.members)
            for c in p.checkpoints
            if c.restored == restored and (thread is None or c.tid == thread)
        ]
        take(
            part,
            union(np.array([c.start for c in mine], np.int64), np.array([c.end for c in mine], np.int64)),
        )
    if main is None or not attempt.steps[0].size:
        take("failed" if attempt.failed else "initialization", rest)
        return
    start, end = attempt.steps
    first, last = int(start[0]), int(end[-1])
    take("evaluation", main.phases.evaluation)
    take("initialization", main.phases.aside)  # what is left of it is compilation
    take("recomputed", union(start[again], end[again]))
    take("data", clip(main.input, first, last))
    take("productive", union(start, end))
    take("initialization", clip(rest, attempt.start, first))
    take("failed" if attempt.failed else "other", clip(rest, last, attempt.end))
    take("other", rest)
