"""`dftracer postmortem`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError
from dftracer.cli.outputs import appearing, check_output
from dftracer.cli.showing import print_json
from dftracer.cli.trace_arguments import newest_folders

HELP = "Say why a job hangs, or what it died of: which rank first, where, and what the others did."
EXAMPLE = """\
dftracer postmortem traces/
dftracer postmortem                       # the job that is recording now, or the newest run
dftracer postmortem traces/ --json
dftracer postmortem traces/ --html hang.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="the directory of a run's traces (default: where this user's programs are recording,"
        " otherwise the newest run under traces/ or in the current directory)",
    )
    parser.add_argument("--html", metavar="FILE", help="write a page")


def run(args: argparse.Namespace) -> int:
    directory = _directory(args.directory)
    for name in (args.html, args.output):
        if name:
            check_output(Path(name), [], force=args.force)
    from dftracer.format.files import NoTraces
    from dftracer.postmortem import gather, judge
    from dftracer.postmortem.show import html_page, lines

    try:
        evidence = gather(directory)
    except NoTraces as problem:
        raise CommandError(str(problem)) from None
    if not evidence.ranks:
        raise CommandError(f"{directory}: no process there trains, joins a process group or failed")
    verdict = judge(evidence)
    if args.html:
        _write(Path(args.html), html_page(verdict))
    told = verdict.to_json()
    if args.output:
        as_json = args.json or args.output.endswith(".json")
        text = json.dumps(told, indent=1, ensure_ascii=False) if as_json else "\n".join(lines(verdict))
        _write(Path(args.output), f"{text}\n")
    elif args.json:
        print_json(told)
    elif not args.quiet:
        print("\n".join(lines(verdict)))
    return EXIT_OK if verdict.fine else EXIT_PROBLEMS


def _write(path: Path, text: str) -> None:
    with (
        appearing(path) as place,
        place.open("w", encoding="utf-8", errors="backslashreplace") as out,
    ):
        out.write(text)


def _directory(given: str | None) -> Path:
    if given is not None:
        path = Path(given)
        if not path.exists():
            raise CommandError(f"{given} does not exist")
        if not path.is_dir():
            raise CommandError(f"{given} is not a directory; give the one that the traces are in")
        return path
    from dftracer.live import running_directories

    found = running_directories()[:1] or newest_folders()[:1]
    return found[0] if found else Path()
