"""`dftracer run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer.cli.program import (
    add_io,
    add_program,
    automatic,
    command_of,
    environment,
    preload_library,
    wait_for,
)

HELP = "Run a program under the tracer, with all its children; its exit code is passed through."
EXAMPLE = "dftracer run -o traces -- python train.py --epochs 3   (also: script.py, -m module, torchrun ...)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_io(parser)
    parser.add_argument(
        "--report", action="store_true", help="print the whole report when the program has ended"
    )
    parser.add_argument("--html", metavar="FILE", help="write the HTML report when the program has ended")
    parser.add_argument(
        "--no-auto", action="store_true", help="record no training steps but those annotated by hand"
    )
    parser.add_argument(
        "--modules", action="store_true", help="also record the forward of every module of the model"
    )
    add_program(parser)


def run(args: argparse.Namespace) -> int:
    command = command_of(args)
    directory = Path(args.output or "traces")
    directory.mkdir(parents=True, exist_ok=True)
    before = {f: f.stat().st_mtime_ns for f in _traces(directory)}
    library = None if args.no_io else preload_library()
    env = environment(args, directory, library)
    if args.modules:
        env["DFTRACER_AUTO_MODULES"] = "1"
    with automatic(env, on=not args.no_auto, tell=not args.quiet):
        code = wait_for(command, env)
    written = [f for f in _traces(directory) if before.get(f) != f.stat().st_mtime_ns]
    if not args.quiet:
        told = f"{len(written)} trace files in {directory}"
        if not written:
            told = "nothing was recorded: no process had an annotation (from dftracer.python import ai)"
            told += "" if library else ", and this build does not intercept I/O"
        if written and not args.report:
            _say_head(written)
        print(f"dftracer run: {told}", file=sys.stderr)
    if written and (args.report or args.html):
        _report(args, written)
    return code


def _traces(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.name.endswith((".pfw", ".pfw.gz")))


def _say_head(files: list[Path]) -> None:
    try:
        from dftracer.cli.ending import three_lines

        lines = three_lines(files)
    except ImportError:
        lines = ["for a verdict: pip install 'pydftracer[analysis]'"]
    for line in lines:
        print(line, file=sys.stderr)


def _report(args: argparse.Namespace, files: list[Path]) -> None:
    from dftracer.cli.main import main

    flags = ["--html", args.html] if args.html else []
    main(["report", *map(str, files), *flags, *(["-q"] if not args.report else [])])
