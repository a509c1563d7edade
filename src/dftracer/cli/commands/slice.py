"""`dftracer slice`."""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.copying import Damage, copied_lines, input_files, whole_number
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import OutputNames, appearing, check_folder, check_output
from dftracer.cli.showing import print_json
from dftracer.cli.trace_arguments import (
    add_filters,
    add_paths,
    refuse_empty_selection,
    take_newest,
    time_range,
)
from dftracer.format.records import PHASES, interval_us, is_metadata, is_own_event
from dftracer.format.writer import SLICE, TraceWriter
from dftracer.load.heads import read_through
from dftracer.load.process import ProcessInfo, assign_ranks, peek

HELP = "Extract part of a trace: some steps, ranks, categories, or a time range."
Window = tuple[int, int]
EXAMPLE = """\
dftracer slice traces/ --steps 100:120 --ranks 0 -o part/
dftracer slice traces/ --time 10:12.5 --cat POSIX -o io/"""
OUTPUT = "slice/"
OUTPUT_IS = "DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, newest=True)
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    target = Path(args.output or "slice")
    files, _ = input_files(args.paths, target)
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
    with appearing(out) as place:
        writer = TraceWriter(place, packed=out.suffix == ".gz", made_by=SLICE)
        damage = Damage()
        for text, record in copied_lines(process.file, damage):
            pid = whole_number(record.get("pid", process.pid))
            if pid is None or pid not in allowed:
                continue
            if is_metadata(record) or is_own_event(record):
                writer.add(text, record)
            elif _wanted(record, args, time, allowed[pid], process.time_unit):
                writer.add(*_clipped(text, record, allowed[pid]))
                kept += 1
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
        writer.close()
        if not kept:
            place.unlink()
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
    for _, record in copied_lines(file, Damage()):
        if record.get("cat") != "data" or record.get("name") != "collate" or record.get("pid") != pid:
            continue
        args = record.get("args")
        batch = whole_number(args.get("batch")) if isinstance(args, dict) else None
        ts, dur = whole_number(record.get("ts")), whole_number(record.get("dur") or 0)
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
    ts, dur = whole_number(record.get("ts")), whole_number(record.get("dur"))
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
        for _, record in copied_lines(process.file, Damage()):
            args = record.get("args")
            step = whole_number(args.get("step")) if isinstance(args, dict) else None
            ts = whole_number(record.get("ts"))
            if step is None or ts is None or not steps[0] <= step <= steps[1]:
                continue
            end = ts + max(whole_number(record.get("dur")) or 0, 0)
            low, high = out.get(process.rank, (ts, end))
            out[process.rank] = (min(low, ts), max(high, end))
    return out


def _wanted(
    record: dict[str, Any],
    args: argparse.Namespace,
    time: Window | None,
    spans: Spans | None,
    unit: tuple[int, int],
) -> bool:
    ts = whole_number(record.get("ts"))
    dur = whole_number(record.get("dur") or 0)
    if ts is None or dur is None:
        return False
    ts, dur = (value * unit[0] // unit[1] for value in (ts, dur))
    if PHASES.get(record.get("ph")) == "A":
        dur = interval_us(record)
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
    epoch = whole_number(own.get("epoch")) if isinstance(own, dict) else None
    return epoch is not None and bool(args.epochs[0] <= epoch <= args.epochs[1])
