"""`dftracer repair`."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.cli.copying import Damage, copied_lines, input_files
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.outputs import OutputNames, appearing, check_folder, check_output
from dftracer.cli.rings import add_ring_arguments, recover_rings
from dftracer.cli.showing import print_json
from dftracer.format.writer import TraceWriter

HELP = (
    "Make clean copies of truncated or damaged traces: complete records only, properly closed; exit code 1 if"
    " anything could not be copied."
)
EXAMPLE = """\
dftracer repair traces/ -o repaired/
dftracer repair --rings"""
OUTPUT = "none: required unless --in-place is given"
OUTPUT_IS = "DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="trace files or directories")
    add_ring_arguments(parser)
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="replace the files themselves; a damaged file is kept as NAME.original",
    )


def run(args: argparse.Namespace) -> int:
    if args.rings:
        return recover_rings(args)
    if not args.paths:
        raise CommandError("no traces given: name a PATH, or use --rings for what killed processes have left")
    if not args.in_place and not args.output:
        raise CommandError("no place for the clean copies given: use -o DIRECTORY, or --in-place")
    target = None if args.in_place else Path(args.output)
    files, recovered = input_files(args.paths, target)
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
        with appearing(out) as place:
            records, damage = _clean_copy(file, place)
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
    from dftracer.cli.live import is_finished, is_live
    from dftracer.load.heads import read_through

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
        with appearing(file) as place:
            records, damage = _clean_copy(file, place, signed=False)
            # A process that is still writing, not visible from here, continues with the kept file.
            kept = _keep(file) if damage or not is_finished(info) else None
        result = _result(file, file, records, damage)
        done.append({**result, "kept": str(kept)} if kept else result)
    return done, left


def _clean_copy(file: Path, place: Path, signed: bool = True) -> tuple[int, Damage]:
    """Records written, and what of the file is missing from the copy, which says so itself."""
    damage = Damage()
    with TraceWriter(
        place, packed=file.suffix == ".gz", made_by="dftracer repair" if signed else None
    ) as writer:
        for text, record in copied_lines(file, damage):
            writer.add(text, record)
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
    return writer.records, damage


def _keep(file: Path) -> Path:
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
