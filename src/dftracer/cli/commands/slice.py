"""`dftracer slice`."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

from dftracer._units import plural
from dftracer.cli.copying import Damage, copied_lines, input_files, whole_number
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.outputs import OutputNames, appearing, check_folder, check_output
from dftracer.cli.showing import print_json
from dftracer.cli.trace_arguments import add_filters, add_paths, refuse_empty_selection, time_range
from dftracer.format.records import is_metadata, is_own_event
from dftracer.format.writer import TraceWriter
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
    add_paths(parser)
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    target = Path(args.output or "slice")
    files, _ = input_files(args.paths, target)
    check_folder(target, files)
    if target.exists() and any(target.iterdir()) and not args.force:
        raise CommandError(f"{target} is not empty; use -f to write into it, or -o for another directory")
    processes = [peek(f) for f in files]
    assign_ranks(processes)
    time = time_range(args, processes)
    windows = _windows(args, files, processes) if args.steps is not None else None
    target.mkdir(parents=True, exist_ok=True)
    names = OutputNames(files)
    outputs = {f: target / names(f) for f in files}
    done: list[dict[str, Any]] = []
    for process in processes:
        allowed = _allowed(args, process, windows)
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
    allowed: dict[int, Window | None],
    time: Window | None,
    out: Path,
) -> int:
    """Write the selected part of one file; no file is created if there are no events."""
    kept = 0
    with appearing(out) as place:
        writer = TraceWriter(place, packed=out.suffix == ".gz", made_by="dftracer slice")
        damage = Damage()
        for text, record in copied_lines(process.file, damage):
            pid = whole_number(record.get("pid", process.pid))
            if pid is None or pid not in allowed:
                continue
            if is_metadata(record) or is_own_event(record):
                writer.add(text, record)
            elif _wanted(record, args, (time, allowed[pid])):
                writer.add(text, record)
                kept += 1
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
        writer.close()
        if not kept:
            place.unlink()
    return kept


def _allowed(
    args: argparse.Namespace, process: ProcessInfo, windows: dict[int | None, Window] | None
) -> dict[int, Window | None]:
    """The processes of a file to keep, each with the time of its rank's steps if steps were requested."""
    # Other processes in the file are found along the way.
    everyone = process if process.alone else read_through(process.file)
    return {
        pid: None if windows is None else windows[rank]
        for pid, rank in everyone.ranks().items()
        if (windows is None or rank in windows)
        and (args.ranks is None or rank in args.ranks)
        and (args.pids is None or pid in args.pids)
    }


def _windows(
    args: argparse.Namespace, files: list[Path], processes: list[ProcessInfo]
) -> dict[int | None, Window]:
    """Per rank, the time of the requested steps: from the analysis, or by label if it is not installed."""
    try:
        out = _analyzed_windows(files, args.steps)
    except ImportError:
        out = _labelled_windows(processes, args.steps)
    if not out:
        low, high = args.steps
        raise CommandError(f"no step in {low}:{high}; `dftracer report --json` lists the steps")
    if all(p.rank is None for p in processes):
        # The analysis numbers programs that have no rank; their files have no number.
        out[None] = (min(first for first, _ in out.values()), max(last for _, last in out.values()))
    return out


def _analyzed_windows(files: list[Path], steps: Window) -> dict[int | None, Window]:
    from dftracer.analyze import analyze
    from dftracer.load import Trace

    out: dict[int | None, Window] = {}
    for rank in analyze(Trace(files)).job.ranks:
        table = rank.main.steps
        inside = (table.step >= steps[0]) & (table.step <= steps[1])
        if not inside.any():
            inside[:] = False
            inside[steps[0] : steps[1] + 1] = True
        if inside.any():
            out[rank.number] = (int(table.start[inside].min()), int(table.end[inside].max()))
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


def _wanted(record: dict[str, Any], args: argparse.Namespace, spans: tuple[Window | None, ...]) -> bool:
    ts = whole_number(record.get("ts"))
    dur = whole_number(record.get("dur") or 0)
    if ts is None or dur is None:
        return False
    if any(span is not None and (ts + dur < span[0] or ts > span[1]) for span in spans):
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
