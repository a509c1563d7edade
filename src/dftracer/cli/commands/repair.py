"""`dftracer repair`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dftracer.cli.common import print_json
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.rings import add_ring_arguments, look_after_rings
from dftracer.cli.textfile import LineWriter, read_lines

HELP = "Make clean copies of cut or half-written traces: whole records only, properly closed."
EXAMPLE = "dftracer repair traces/ -o repaired/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="trace files or directories")
    add_ring_arguments(parser)
    parser.add_argument("--in-place", action="store_true", help="replace the files themselves")


def run(args: argparse.Namespace) -> int:
    if args.rings:
        return look_after_rings(args)
    if not args.paths:
        raise CommandError("say which traces: PATH, or --rings for what killed processes have left")
    return _repair(args)


def _repair(args: argparse.Namespace) -> int:
    from dftracer.load.files import NoTraces, find_files, recover_left_behind

    try:
        files = find_files(args.paths)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if not args.in_place and not args.output:
        raise CommandError("say where the clean copies go: -o DIRECTORY, or --in-place")
    recovered = recover_left_behind(files)
    target = None if args.in_place else Path(args.output)
    if target is not None:
        target.mkdir(parents=True, exist_ok=True)
    done = []
    for file in files:
        out = file.with_name(f".{file.name}.repair") if target is None else target / file.name
        if target is not None and out.exists() and not args.force:
            raise CommandError(f"{out} exists; use -f to overwrite it")
        bad = 0
        # The copy is named like the original while it is written, so that the ending decides the kind.
        temporary = out.with_name(
            "." + file.name.removesuffix(".gz").removesuffix(".pfw") + ".tmp.pfw" + _gz(file)
        )
        writer = LineWriter(temporary)
        for text, record in read_lines(file):
            if record is None:
                bad += 1
            else:
                ts = record.get("ts")
                writer.add(text, ts if isinstance(ts, int) else None)
        writer.close()
        final = file if target is None else out
        temporary.replace(final)
        done.append({"file": str(file), "to": str(final), "records": writer.records, "left_out": bad})
    if args.json:
        print_json({"recovered": recovered, "files": done})
    elif not args.quiet:
        for d in done:
            print(
                f"{d['to']}: {d['records']} records"
                + (f", {d['left_out']} broken lines left out" if d["left_out"] else "")
            )
    return EXIT_OK


def _gz(file: Path) -> str:
    return ".gz" if file.suffix == ".gz" else ""
