"""`dftracer trigger`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from dftracer._text import plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.outputs import appearing
from dftracer.cli.showing import print_json
from dftracer.load.files import NoTraces

HELP = (
    "Have all ranks of a running job that is recorded as a black box keep the detail of the same steps;"
    " exit code 1 if none is running there."
)
EXAMPLE = """\
dftracer trigger traces/20260102-030405
dftracer trigger traces/20260102-030405 --steps 20"""

# A process looks for the file once a second; the busiest may be late.
_NOTICE_S = 3.0
_NAME = "dftracer.trigger"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the directory of the run's traces")
    parser.add_argument("--steps", type=int, default=5, metavar="N", help="how many steps to keep")


def run(args: argparse.Namespace) -> int:
    folder = Path(args.directory)
    if args.steps < 1:
        raise CommandError("--steps must be at least 1")
    if not folder.is_dir():
        raise CommandError(f"{folder}: no such directory")
    running, all_kept = _running_in(folder)
    folders = sorted({file.parent for file in running.values()})
    first = _next_step(folder) if folders else 0
    for each in folders:
        _write(each / _NAME, first, args.steps)
    if args.json:
        told = {"processes": len(running), "first_step": first if folders else None, "steps": args.steps}
        print_json({**told, "folders": [str(each) for each in folders], "all_kept": all_kept})
    elif not folders:
        kept = "; a run without --blackbox keeps everything" if all_kept else ""
        print(f"dftracer trigger: no process records a black box in {folder}{kept}", file=sys.stderr)
    elif not args.quiet:
        who = plural(len(running), "process", "processes")
        print(f"{who} will keep the detail of steps {first} to {first + args.steps - 1}.")
    return EXIT_OK if folders else EXIT_PROBLEMS


def _running_in(folder: Path) -> tuple[dict[tuple[str, int], Path], int]:
    """A file of each running black box; how many other processes are recorded, which keep everything."""
    from dftracer.cli.live import is_live
    from dftracer.format.files import find_files
    from dftracer.load.process import peek

    found: dict[tuple[str, int], Path] = {}
    others = set()
    try:
        files = find_files([folder])
    except NoTraces:
        return {}, 0
    for file in files:
        try:
            info = peek(file)
        except (OSError, ValueError):
            continue  # a part that has just gone
        if is_live(info):
            if info.facts.get("mode") == "blackbox":
                found[info.key] = file
            else:
                others.add(info.key)
    return found, len(others)


def _next_step(folder: Path) -> int:
    """A step that no rank will have begun when the last one notices; 0 if there were none."""
    import numpy as np

    from dftracer.load.rows import read_row_files

    try:
        files = [f for f in read_row_files([folder]) if len(f.steps)]
    except NoTraces:
        files = []
    if not files:
        return 0
    # A program need not number its steps.
    latest = max(int(f.column("step")[-1]) if f.column("step")[-1] >= 0 else len(f.steps) - 1 for f in files)
    usual = min(float(np.median(f.column("wall_us")[-32:])) for f in files) / 1e6
    return latest + 2 + int(_NOTICE_S / max(usual, 1e-4))


def _write(path: Path, first: int, steps: int) -> None:
    number = time.time_ns() & ((1 << 62) - 1)
    try:
        with appearing(path) as place:
            place.write_text(f"dftracer-trigger {number} {first} {steps}\n")
            os.chmod(place, 0o644)
    except OSError as e:
        raise CommandError(f"{path}: {e.strerror or e}") from None
