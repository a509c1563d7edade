"""`dftracer top`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dftracer.cli.main import EXIT_OK, CommandError
from dftracer.cli.showing import console, print_json
from dftracer.cli.trace_arguments import newest_folders

HELP = (
    "Watch a run: phases of the last steps per rank, rates, loader wait, device, I/O, hottest files, drops."
)
EXAMPLE = """\
dftracer top
dftracer top traces/ --last 60
dftracer top 12345
dftracer top traces/ --once --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        nargs="?",
        metavar="DIR|PID",
        help="a directory of traces, or a process id (default: where this user's programs are recording,"
        " otherwise the newest run under traces/ or in the current directory)",
    )
    parser.add_argument("--once", action="store_true", help="print one frame and exit, for scripts")
    parser.add_argument(
        "--last",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="the period the figures cover (default: 30)",
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="time between two frames (default: 1)",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0.1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 86400 seconds")
    return value


def run(args: argparse.Namespace) -> int:
    paths = _paths(args.target)
    from dftracer.format.files import NoTraces
    from dftracer.live import Recent
    from dftracer.top import print_frame, take_frame

    with Recent(paths, args.last) as recent:
        try:
            if args.once or args.json or not sys.stdout.isatty():
                frame = take_frame(recent)
                if args.json:
                    print_json(frame.to_json())
                else:
                    print_frame(frame, console())
                return EXIT_OK
            from dftracer.top.screen import run_screen

            run_screen(lambda: take_frame(recent), args.interval)
        except NoTraces as problem:
            raise CommandError(f"{', '.join(map(str, paths))}: {problem}") from None
    return EXIT_OK


def _paths(target: str | None) -> list[Path]:
    from dftracer.live import running_directories, traces_of_process

    if target is None:
        found = running_directories()[:1]
        if found:
            return found
        return newest_folders()[:1] or [Path()]
    if Path(target).exists():
        return [Path(target)]
    if target.isdigit():
        folders = traces_of_process(int(target))
        if not folders:
            raise CommandError(
                f"process {target} writes no trace that is visible here; is it running, and is it yours?"
            )
        return folders
    raise CommandError(f"{target} is neither a directory nor a process id")
