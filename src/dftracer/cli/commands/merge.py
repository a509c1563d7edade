"""`dftracer merge`."""

from __future__ import annotations

import argparse

from dftracer.cli.common import add_paths, output_path, print_json
from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.textfile import LineWriter, read_lines

HELP = "Put many trace files into one."
EXAMPLE = "dftracer merge traces/ -o all.pfw.gz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)


def run(args: argparse.Namespace) -> int:
    from dftracer.load.files import NoTraces, find_files, recover_left_behind

    try:
        files = find_files(args.paths)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    recover_left_behind(files)
    out = output_path(args, "merged.pfw.gz")
    if not out.name.endswith((".pfw", ".pfw.gz")):
        raise CommandError(f"{out} must end in .pfw or .pfw.gz")
    files = [f for f in files if f.resolve() != out.resolve()]
    writer, bad = LineWriter(out), 0
    for file in files:
        for text, record in read_lines(file):
            if record is None:
                bad += 1
                continue
            ts = record.get("ts")
            writer.add(text, ts if isinstance(ts, int) else None)
    writer.close()
    if args.json:
        print_json({"file": str(out), "files": len(files), "records": writer.records, "left_out": bad})
    elif not args.quiet:
        print(
            f"{out}: {writer.records} records of {len(files)} files"
            + (f", {bad} broken lines left out" if bad else "")
        )
    return EXIT_OK
