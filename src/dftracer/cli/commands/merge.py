"""`dftracer merge`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dftracer._text import plural
from dftracer.cli.copying import Damage, copied_lines, input_files
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.outputs import appearing, check_output, identity
from dftracer.cli.showing import print_json
from dftracer.cli.trace_arguments import add_paths, take_newest
from dftracer.format.files import SUFFIXES
from dftracer.format.writer import TraceWriter, maker_of

HELP = "Merge many trace files into one; exit code 1 if some were damaged."
EXAMPLE = "dftracer merge traces/ -o all.pfw.gz"
OUTPUT = "merged.pfw.gz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser, newest=True)


def run(args: argparse.Namespace) -> int:
    take_newest(args)
    out = Path(args.output or "merged.pfw.gz")
    if not out.name.endswith(SUFFIXES):
        raise CommandError(f"{out} must end in .pfw or .pfw.gz")
    files, _ = input_files(args.paths)
    files = _without_earlier(files, out, args.paths)
    check_output(out, files, force=args.force)
    damage = Damage()
    with (
        appearing(out) as place,
        TraceWriter(place, packed=out.suffix == ".gz", made_by="dftracer merge") as writer,
    ):
        for file in files:
            for text, record in copied_lines(file, damage):
                writer.add(text, record)
        if damage:
            writer.add_damage(damage.words(), damage.as_json())
    if args.json:
        told = {"file": str(out), "files": len(files), "records": writer.records, "left_out": damage.lines}
        print_json({**told, "damaged_members": damage.members})
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
