"""Traces made from traces: `dftracer merge`, `slice` and `repair`."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError, Verb
from dftracer.cli.outputs import OutputNames, appearing, check_folder, check_output, identity, print_json
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    refuse_empty_selection,
    take_newest,
    time_range,
)
from dftracer.format.reader import parse_line
from dftracer.format.records import PHASES, interval_us, is_metadata, is_own_event
from dftracer.format.trace_names import SUFFIXES, NoTraces
from dftracer.format.writer import SLICE, TraceWriter, maker_of
from dftracer.load.find import find_files, recover
from dftracer.load.process import (
    ProcessInfo,
    aggregation_interval_us,
    as_integer,
    assign_ranks,
    is_live,
    peek,
    read_through,
)

# --- What the three share: their inputs, and the records as they appear in them


def _input_files(paths: Iterable[str], not_below: Path | None = None) -> tuple[list[Path], list[str]]:
    """The trace files that the arguments mean, after completing those of killed processes.

    Files in the output folder `not_below` were written by an earlier run and are not read again, unless
    named explicitly.
    """
    given = list(paths)
    try:
        recovered = recover(given)
        files = find_files(given)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if not_below is not None:
        named = {identity(p) for p in given}
        folder = not_below.resolve()
        files = [f for f in files if folder not in f.resolve().parents or identity(f) in named]
        if not files:
            raise CommandError(f"all traces are in {not_below}; write to another directory with -o")
    return files, recovered


class Damage:
    """What could not be copied out of some files."""

    def __init__(self) -> None:
        self.members = 0  # damaged or truncated
        self.lines = 0  # not a record, or cut

    def __bool__(self) -> bool:
        return bool(self.members or self.lines)

    def count(self, counts: dict[str, Any]) -> None:
        """Add what a reader counted in one file."""
        self.members += counts["members_cut"]
        # The last line of a damaged member breaks off with it.
        self.lines += counts["bad_lines"] + max(0, counts["cut_lines"] - counts["members_cut"])

    def words(self) -> str:
        return " and ".join(
            plural(count, what)
            for count, what in ((self.members, "damaged gzip member"), (self.lines, "broken line"))
            if count
        )

    def as_json(self) -> dict[str, int]:
        return {"members": self.members, "lines": self.lines}


def _copied_lines(path: Path, damage: Damage) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each record that the other commands read, with its text; `damage` counts what they skip."""
    from dftracer.load._scan import Scanner

    scanner = Scanner(path, 1, 1 << 20, text=True)
    for raw in scanner:
        for line in bytes(raw.get("text", b"")).splitlines():
            try:
                record = parse_line(line)
            except ValueError:
                record = None
            yield line.decode("utf-8", "replace"), record if isinstance(record, dict) else {}
    damage.count(scanner.counts())


# --- dftracer merge


class Merge(Verb):
    help = "Merge many trace files into one; exit code 1 if some were damaged."
    example = "dftracer merge traces/ -o all.pfw.gz"
    output = "merged.pfw.gz"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)

    def run(self, args: argparse.Namespace) -> int:
        take_newest(args)
        out = Path(args.output or "merged.pfw.gz")
        if not out.name.endswith(SUFFIXES):
            raise CommandError(f"{out} must end in .pfw or .pfw.gz")
        files, _ = _input_files(args.paths)
        files = _without_earlier(files, out, args.paths)
        check_output(out, files, force=args.force)
        damage = Damage()
        with (
            appearing(out) as temporary,
            TraceWriter(temporary, packed=out.suffix == ".gz", made_by="dftracer merge") as writer,
        ):
            for file in files:
                for text, record in _copied_lines(file, damage):
                    writer.add(text, record)
            if damage:
                writer.add_damage(damage.words(), damage.as_json())
        if args.json:
            print_json(
                {
                    "file": str(out),
                    "files": len(files),
                    "records": writer.records,
                    "left_out": damage.lines,
                    "damaged_members": damage.members,
                }
            )
        elif not args.quiet:
            print(
                f"{out}: {plural(writer.records, 'record')} of {plural(len(files), 'file')}"
                + (f"; skipped: {damage.words()}" if damage else "")
            )
        return EXIT_PROBLEMS if damage else EXIT_OK


def _without_earlier(files: list[Path], out: Path, named: list[str]) -> list[Path]:
    """The inputs, without the output of an earlier merge in the same folder."""
    there = identity(out)
    if there is None or there in {identity(p) for p in named} or maker_of(out) is None:
        return files
    return [f for f in files if identity(f) != there]


# --- dftracer slice

Window = tuple[int, int]


class Slice(Verb):
    help = "Extract part of a trace: some steps, ranks, categories, or a time range."
    example = """\
dftracer slice traces/ --steps 100:120 --ranks 0 -o part/
dftracer slice traces/ --time 10:12.5 --cat POSIX -o io/"""
    output = "slice/"
    output_is = "DIR"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)
        add_filters(parser)

    def run(self, args: argparse.Namespace) -> int:
        take_newest(args)
        target = Path(args.output or "slice")
        files, _ = _input_files(args.paths, target)
        check_folder(target, files)
        if target.exists() and any(target.iterdir()) and not args.force:
            raise CommandError(f"{target} is not empty; use -f to write into it, or -o for another directory")
        processes = [peek(f) for f in files]
        assign_ranks(processes)
        time = time_range(args, processes)
        steps = _steps(args, files, processes) if args.steps is not None else None
        target.mkdir(parents=True, exist_ok=True)
        names = OutputNames(files)
        outputs = {f: target / names(f) for f in files}
        done: list[dict[str, Any]] = []
        for process in processes:
            allowed = _allowed(args, process, steps)
            if not allowed:
                continue
            out = check_output(outputs[process.file], files, force=args.force)
            kept = _slice(args, process, allowed, time, out)
            if kept:
                done.append({"file": str(out), "events": kept})
        if not done:
            with contextlib.suppress(OSError):  # not empty: it was there before
                target.rmdir()
            refuse_empty_selection(args)
        if args.json:
            print_json({"directory": str(target), "files": done})
        elif not args.quiet:
            events = sum(d["events"] for d in done)
            print(f"{target}: {plural(events, 'event')} in {plural(len(done), 'file')}")
        return EXIT_OK


def _slice(
    args: argparse.Namespace,
    process: ProcessInfo,
    allowed: dict[int, Spans | None],
    time: Window | None,
    out: Path,
) -> int:
    """Write the selected part of one file; no file is created if there are no events."""
    kept = 0
    with appearing(out) as temporary:
        writer = TraceWriter(temporary, packed=out.suffix == ".gz", made_by=SLICE)
        damage = Damage()
        for text, record in _copied_lines(process.file, damage):
            pid = as_integer(record.get("pid", process.pid))
            if pid is None or pid not in allowed:
                continue
            if is_metadata(record) or is_own_event(record):
                writer.add(text, record)
            elif _wanted(record, args, time, allowed[pid], process):
                writer.add(*_clipped(text, record, allowed[pid]))
                kept += 1
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
        writer.close()
        if not kept:
            temporary.unlink()
    return kept


def _allowed(args: argparse.Namespace, process: ProcessInfo, steps: Steps | None) -> dict[int, Spans | None]:
    """The processes of a file to keep, each with the time of its rank's steps if steps were requested."""
    # Other processes in the file are found along the way.
    everyone = process if process.alone else read_through(process.file)
    return {
        pid: None if steps is None else steps.spans(process.file, pid, rank)
        for pid, rank in everyone.ranks().items()
        if (steps is None or rank in steps.windows)
        and (args.ranks is None or rank in args.ranks)
        and (args.pids is None or pid in args.pids)
    }


@dataclass
class Steps:
    """The time of the requested steps by rank, and the batches they used by the process that made them.

    A worker makes a batch before the step that uses it: of a worker these are kept, whenever it made them.
    """

    windows: dict[int | None, Window]
    batches: dict[int, set[int]] = field(default_factory=dict)

    def spans(self, file: Path, pid: int, rank: int | None) -> Spans:
        if pid in self.batches:
            return Spans(_batch_spans(file, pid, self.batches[pid]), whole=True)
        return Spans([self.windows[rank]])


@dataclass
class Spans:
    """When events are wanted; `whole`: only those that lie in there completely, otherwise all are clipped."""

    windows: list[Window]
    whole: bool = False

    def take(self, ts: int, end: int) -> bool:
        if self.whole:
            return any(low <= ts and end <= high for low, high in self.windows)
        return any(end >= low and ts <= high for low, high in self.windows)


def _batch_spans(file: Path, pid: int, wanted: set[int]) -> list[Window]:
    """The time in which a worker made some batches: each since the batch before it on the same thread."""
    made: dict[Any, list[tuple[int, int | None]]] = {}
    for _, record in _copied_lines(file, Damage()):
        if record.get("cat") != "data" or record.get("name") != "collate" or record.get("pid") != pid:
            continue
        args = record.get("args")
        batch = as_integer(args.get("batch")) if isinstance(args, dict) else None
        ts, dur = as_integer(record.get("ts")), as_integer(record.get("dur") or 0)
        if ts is not None and dur is not None:
            made.setdefault(record.get("tid"), []).append((ts + dur, batch))
    out = []
    for ends in made.values():
        before = 0
        for end, batch in sorted(ends, key=lambda each: each[0]):
            if batch in wanted:
                out.append((before, end))
            before = end
    return out


def _clipped(text: str, record: dict[str, Any], spans: Spans | None) -> tuple[str, dict[str, Any]]:
    """An event that began before the steps or ended after them (an epoch) with the part inside them."""
    ts, dur = as_integer(record.get("ts")), as_integer(record.get("dur"))
    if spans is None or spans.whole or ts is None or not dur:
        return text, record
    first, last = spans.windows[0]
    low, high = max(ts, first), min(ts + dur, last)
    if (low, high) == (ts, ts + dur):
        return text, record
    args = record.get("args")
    own = {**(args if isinstance(args, dict) else {}), "clipped": 1}
    record = {**record, "ts": low, "dur": max(0, high - low), "args": own}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False), record


def _steps(args: argparse.Namespace, files: list[Path], processes: list[ProcessInfo]) -> Steps:
    """The requested steps: from the analysis, or by label if it is not installed."""
    try:
        found = _analyzed_steps(files, args.steps)
    except ImportError:
        found = Steps(_labelled_windows(processes, args.steps))
    out = found.windows
    if not out:
        low, high = args.steps
        raise CommandError(f"no step in {low}:{high}; `dftracer report --json` lists the steps")
    if all(p.rank is None for p in processes):
        # The analysis numbers programs that have no rank; their files have no number.
        out[None] = (min(first for first, _ in out.values()), max(last for _, last in out.values()))
    return found


def _analyzed_steps(files: list[Path], steps: Window) -> Steps:
    from dftracer.analyze import analyze
    from dftracer.load import Trace

    out = Steps({})
    for rank in analyze(Trace(files)).job.ranks:
        table = rank.main.steps
        inside = (table.step >= steps[0]) & (table.step <= steps[1])
        if not inside.any():
            inside[:] = False
            inside[steps[0] : steps[1] + 1] = True
        if inside.any():
            first, last = int(table.start[inside].min()), int(table.end[inside].max())
            out.windows[rank.number] = (first, last)
            for each in rank.awaited_between(first, last):
                out.batches.setdefault(each[1], set()).add(each[0])
    return out


def _labelled_windows(processes: list[ProcessInfo], steps: Window) -> dict[int | None, Window]:
    out: dict[int | None, Window] = {}
    for process in processes:
        for _, record in _copied_lines(process.file, Damage()):
            args = record.get("args")
            step = as_integer(args.get("step")) if isinstance(args, dict) else None
            ts = as_integer(record.get("ts"))
            if step is None or ts is None or not steps[0] <= step <= steps[1]:
                continue
            end = ts + max(as_integer(record.get("dur")) or 0, 0)
            low, high = out.get(process.rank, (ts, end))
            out[process.rank] = (min(low, ts), max(high, end))
    return out


def _wanted(
    record: dict[str, Any],
    args: argparse.Namespace,
    time: Window | None,
    spans: Spans | None,
    process: ProcessInfo,
) -> bool:
    ts = as_integer(record.get("ts"))
    dur = as_integer(record.get("dur") or 0)
    if ts is None or dur is None:
        return False
    multiply, divide = process.time_unit
    ts, dur = (value * multiply // divide for value in (ts, dur))
    if PHASES.get(record.get("ph")) == "A":
        dur = interval_us(record) or aggregation_interval_us(
            process, as_integer(record.get("pid", process.pid))
        )
    in_time = time is None or (ts + dur >= time[0] and ts <= time[1])
    if not in_time or (spans is not None and not spans.take(ts, ts + dur)):
        return False
    if args.cat is not None and record.get("cat") not in args.cat:
        return False
    if args.name is not None and record.get("name") not in args.name:
        return False
    if args.epochs is None:
        return True
    own = record.get("args")
    epoch = as_integer(own.get("epoch")) if isinstance(own, dict) else None
    return epoch is not None and bool(args.epochs[0] <= epoch <= args.epochs[1])


# --- dftracer repair


class Repair(Verb):
    help = (
        "Make clean copies of truncated or damaged traces: complete records only, properly closed; exit code"
        " 1 if anything could not be copied."
    )
    example = """\
dftracer repair traces/ -o repaired/
dftracer repair --rings"""
    output = "none: required unless --in-place is given"
    output_is = "DIR"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_paths(parser, newest=True)
        _add_ring_arguments(parser)
        parser.add_argument(
            "--in-place",
            action="store_true",
            help="replace the files themselves; a damaged file is kept as NAME.original",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.rings:
            return _recover_rings(args)
        if not args.in_place and not args.output:
            raise CommandError("say where to write the clean copies: -o DIRECTORY, or --in-place")
        take_newest(args)
        target = None if args.in_place else Path(args.output)
        files, recovered = _input_files(args.paths, target)
        done, left = _in_place(files) if target is None else (_copies(args, files, target), [])
        if args.json:
            print_json({"recovered": recovered, "files": done, "left_alone": [str(f) for f in left]})
        elif not args.quiet:
            for d in done:
                print(
                    f"{d['to']}: {plural(d['records'], 'record')}"
                    + (f"; skipped: {d['damage']}" if d["damage"] else "")
                    + (f"; the damaged file is kept as {d['kept']}" if d.get("kept") else "")
                )
        if not args.json:
            for f in left:
                print(f"dftracer repair: {f} is still being written: skipped", file=sys.stderr)
        return EXIT_PROBLEMS if left or any(d["damage"] for d in done) else EXIT_OK


def _copies(args: argparse.Namespace, files: list[Path], target: Path) -> list[dict[str, Any]]:
    check_folder(target, files)
    target.mkdir(parents=True, exist_ok=True)
    names = OutputNames(files)
    outputs = [check_output(target / names(f), files, force=args.force) for f in files]
    done = []
    for file, out in zip(files, outputs, strict=True):
        with appearing(out) as temporary:
            records, damage = _clean_copy(file, temporary)
        done.append(_result(file, out, records, damage))
    return done


def _result(file: Path, out: Path, records: int, damage: Damage) -> dict[str, Any]:
    return {
        "file": str(file),
        "to": str(out),
        "records": records,
        "left_out": damage.lines,
        "damaged_members": damage.members,
        "damage": damage.words(),
    }


def _in_place(files: list[Path]) -> tuple[list[dict[str, Any]], list[Path]]:
    """What was done, and the files that are still being written."""
    done: list[dict[str, Any]] = []
    left: list[Path] = []
    for file in files:
        info = read_through(file)
        if is_live(info):
            left.append(file)
            continue
        c = info.counts
        if c["closed"] and not (c["members_cut"] or c["bad_lines"] or c["cut_lines"]):
            done.append(_result(file, file, c["events"] + c["meta"], Damage()))
            continue
        with appearing(file) as temporary:
            records, damage = _clean_copy(file, temporary, signed=False)
            # A process that is still writing, not visible from here, continues with the kept file.
            kept = _keep_original(file) if damage or info.end is None else None
        result = _result(file, file, records, damage)
        done.append({**result, "kept": str(kept)} if kept else result)
    return done, left


def _clean_copy(file: Path, temporary: Path, signed: bool = True) -> tuple[int, Damage]:
    """Records written, and what of the file is missing from the copy, which says so itself."""
    damage = Damage()
    with TraceWriter(
        temporary, packed=file.suffix == ".gz", made_by="dftracer repair" if signed else None
    ) as writer:
        for text, record in _copied_lines(file, damage):
            writer.add(text, record)
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
    return writer.records, damage


def _keep_original(file: Path) -> Path:
    """Another name for the unchanged file, never one that is taken."""
    for number in itertools.count(1):
        kept = file.with_name(f"{file.name}.original" + (f"-{number}" if number > 1 else ""))
        try:
            os.link(file, kept)
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            if kept.exists():
                continue
            file.rename(kept)
        return kept
    raise AssertionError("unreachable")


# --- dftracer repair --rings: what killed processes have left

_DEAD = "dead"
_OUT_OF_SIGHT = "not visible here"
_ELSEWHERE = "of another host or container"
_UNFINISHED = "killed during its set-up"


def _add_ring_arguments(parser: argparse.ArgumentParser) -> None:
    """What `repair` offers for rings."""
    parser.add_argument(
        "--rings",
        action="store_true",
        help="list the rings of killed processes and recover them: into their traces (or those found under"
        " PATH, if they were moved), otherwise into new files in -o",
    )
    parser.add_argument(
        "--discard",
        action="store_true",
        help="with --rings: discard the events of rings that have no trace; only those of traces under PATH",
    )
    parser.add_argument(
        "--all", action="store_true", help="with --discard: the rings of every run, wherever its traces are"
    )


def _recover_rings(args: argparse.Namespace) -> int:
    """List every ring, with what became of it."""
    from dftracer import _core

    if args.discard and not (args.paths or args.all):
        raise CommandError("--discard needs the PATH of the traces, or --all for every run")
    moved = _traces_by_name(args.paths)
    rows: list[dict[str, Any]] = [
        {**ring, **_recover_ring(ring, moved, args)}
        for ring in _core.rings([os.path.abspath(p) for p in args.paths if os.path.isdir(p)])
    ]
    left = [r for r in rows if r["outcome"] == "kept" and r["state"] in {_DEAD, _ELSEWHERE}]
    if args.json:
        print_json({"rings": rows})
    elif not args.quiet:
        for row in rows:
            print(_ring_line(row))
        if not rows:
            print("no rings: every process that ended has its events in its trace")
        elif left and not args.output:
            print("give the PATH where the traces are now, or -o DIRECTORY to write the events to new files")
    return EXIT_PROBLEMS if left else EXIT_OK


def _traces_by_name(paths: list[str]) -> dict[str, list[Path]]:
    """The traces under the paths; where there are none, rings of theirs may still be left."""
    from dftracer.format.trace_names import find_traces

    found: dict[str, list[Path]] = {}
    for file in map(Path, find_traces(paths)):
        found.setdefault(file.name, []).append(file)
    return found


def _recover_ring(
    ring: dict[str, Any], moved: dict[str, list[Path]], args: argparse.Namespace
) -> dict[str, Any]:
    """What became of one ring."""
    from dftracer import _core

    discard = args.discard and (args.all or _is_below(ring, args.paths))
    if ring["state"] in {_OUT_OF_SIGHT, _UNFINISHED} and discard and _core.discard_ring(ring["ring"]):
        return {"outcome": "discarded", "why": "", "recovered": 0, "to": None}
    if ring["state"] != _DEAD and not (ring["state"] == _ELSEWHERE and args.force):
        return {"outcome": "kept", "why": ring["state"], "recovered": 0, "to": None}
    path, trace = ring["ring"], ring["trace"]
    outcome, why, events = _core.recover_ring(path, trace, False, args.force)
    to = trace
    for file in moved.get(Path(trace).name, []) if outcome == "kept" else []:
        if _core.ring_belongs_to(path, str(file)):
            to = str(file.resolve())
            outcome, why, events = _core.recover_ring(path, to, False, args.force)
            break
    if outcome == "kept" and args.output:
        target = Path(args.output)
        target.mkdir(parents=True, exist_ok=True)
        to = str(target.resolve() / Path(trace).name)
        outcome, why, events = _core.recover_ring(path, to, True, args.force)
    if outcome == "kept" and discard and _core.discard_ring(path):
        outcome, why = "discarded", ""
    return {"outcome": outcome, "why": why, "recovered": events, "to": to if outcome == "recovered" else None}


def _is_below(ring: dict[str, Any], paths: list[str]) -> bool:
    """Whether a ring belongs under one of the paths: its trace, or itself. One without events is no loss."""
    if ring["state"] == _UNFINISHED:
        return True
    roots = [Path(p).resolve() for p in paths]
    mine = [Path(p).resolve() for p in (ring["trace"], ring["ring"]) if p]
    return any(m == root or root in m.parents for m in mine for root in roots)


def _ring_line(row: dict[str, Any]) -> str:
    what = f"{row['ring']}: "
    if row["trace"]:
        what += f"process {row['pid']}, trace {row['trace']}, {plural(row['records'], 'record')} waiting: "
    if row["outcome"] == "recovered":
        return what + f"recovered into {row['to']}"
    if row["outcome"] == "kept":
        if row["state"] == "of another user":
            return what + f"owned by user {row['owner']}, who alone can recover it"
        return what + f"kept, {row['why']}"
    return what + str(row["outcome"])
