"""`dftracer slice`."""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path
from typing import Any

from dftracer.cli.common import add_filters, add_paths, filters, open_trace, print_json
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.textfile import LineWriter, read_lines

HELP = "Cut a part out of a trace: some steps, ranks, a span of time, some categories."
EXAMPLE = "dftracer slice traces/ --steps 100:120 --ranks 0 -o part/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    add_filters(parser)


def run(args: argparse.Namespace) -> int:
    target = Path(args.output or "slice")
    if target.exists() and any(target.iterdir()) and not args.force:
        raise CommandError(f"{target} is not empty; use -f to write into it, or -o for another directory")
    wanted = filters(args)
    steps = wanted["steps"]
    trace = open_trace(args, steps=None)
    windows = _windows(trace, steps) if steps is not None else {}
    target.mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    for process in trace.processes:
        if not trace.filter.wants(process):
            continue
        allowed = _allowed(trace, process, wanted, windows if steps is not None else None)
        if not allowed:
            continue
        out = target / process.file.name
        writer, kept = LineWriter(out), 0
        for text, record in read_lines(process.file):
            if record is None or record.get("pid", process.pid) not in allowed:
                continue
            window = allowed[record.get("pid", process.pid)]
            if record.get("ph") in ("M", 4) or (
                record.get("cat") == "dftracer" and record["name"] in ("start", "end")
            ):
                writer.add(text)
            elif _wanted(record, trace.filter, window):
                writer.add(text, int(record["ts"]))
                kept += 1
        writer.close()
        if kept:
            done.append({"file": str(out), "events": kept})
        else:
            out.unlink()
    if args.json:
        print_json({"directory": str(target), "files": done})
    elif not args.quiet:
        print(f"{target}: {sum(d['events'] for d in done)} events in {len(done)} files")
    return EXIT_OK


def _allowed(
    trace: Any, process: Any, wanted: dict[str, Any], windows: dict[int | None, tuple[int, int]] | None
) -> dict[int, tuple[int, int] | None]:
    """The processes of a file to keep, each with the time of its rank's steps where steps were asked for."""
    from dftracer.load.trace import Filter, scan_file

    if not process.alone:  # its further processes are met on the way
        deque(scan_file(process, Filter(), trace.threads, trace.chunk_text), 0)
    return {
        pid: None if windows is None else windows[rank]
        for pid, rank in process.ranks().items()
        if (windows is None or rank in windows)
        and (wanted["ranks"] is None or rank in wanted["ranks"])
        and (wanted["pids"] is None or pid in wanted["pids"])
    }


def _windows(trace: Any, steps: tuple[int, int]) -> dict[int | None, tuple[int, int]]:
    """Per rank the time of the asked steps: by their label, else by their position."""
    from dftracer.analyze import analyze

    out: dict[int | None, tuple[int, int]] = {}
    for rank in analyze(trace.select(cats=None, names=None)).job.ranks:
        table = rank.main.steps
        inside = (table.step >= steps[0]) & (table.step <= steps[1])
        if not inside.any():
            inside[:] = False
            inside[steps[0] : steps[1] + 1] = True
        if inside.any():
            out[rank.number] = (int(table.start[inside].min()), int(table.end[inside].max()))
    if not out:
        raise CommandError(f"no step in {steps[0]}:{steps[1]}; `dftracer report --json` lists the steps")
    return out


def _wanted(  # noqa: PLR0911 - each filter is one refusal
    record: dict[str, Any], f: Any, window: tuple[int, int] | None
) -> bool:
    try:
        ts, end = int(record["ts"]), int(record["ts"]) + int(record.get("dur") or 0)
    except (KeyError, TypeError, ValueError):
        return False
    for span in (f.time, window):
        if span is not None and (end < span[0] or ts > span[1]):
            return False
    if f.cats is not None and record.get("cat") not in f.cats:
        return False
    if f.names is not None and record.get("name") not in f.names:
        return False
    if f.epochs is not None:
        try:
            return bool(f.epochs[0] <= int(record["args"]["epoch"]) <= f.epochs[1])
        except (KeyError, TypeError, ValueError):
            return False
    return True
