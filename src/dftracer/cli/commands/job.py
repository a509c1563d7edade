"""A job and its attempts: `dftracer runs`, `goodput`, `fleet`, `postmortem`, `trigger` and `ship`."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dftracer._text import plural, seconds_text
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError, Verb
from dftracer.cli.outputs import (
    appearing,
    check_output,
    print_json,
    print_lines,
    progress,
    write_page,
    write_text,
)
from dftracer.cli.trace_arguments import add_search_roots, recording_now, search_roots, span
from dftracer.format.trace_names import NoTraces

if TYPE_CHECKING:
    from dftracer.analyze.history import RunRow


class Runs(Verb):
    help = "List runs, newest first: what ran, how fast it was, how it ended."
    example = """\
dftracer runs
dftracer runs traces/ --name resnet50
dftracer runs traces/ --json
dftracer runs traces/ --html runs.html"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_search_roots(parser)
        parser.add_argument("--name", metavar="NAME", help="only runs of this name (default: all)")
        parser.add_argument(
            "--html",
            metavar="FILE",
            help="write a page with the trend of each figure over the runs of one name, and a report of each"
            " run into FILE-reports/",
        )

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.analyze.history import list_runs

        paths = search_roots(args)
        if args.html:
            check_output(Path(args.html), [], force=args.force)
        try:
            with progress(args, "runs", counted=True) as tick:
                rows = list_runs(paths, tick)
        except NoTraces as e:
            raise CommandError(str(e)) from None
        if args.name is not None:
            names = sorted({row.name for row in rows if row.name})
            rows = [row for row in rows if row.name == args.name]
            if not rows:
                known = f"; known names: {', '.join(names)}" if names else "; no run has a name"
                raise CommandError(f"no run is called {args.name!r}{known}")
        if args.json:
            print_json([row.to_json() for row in rows])
        elif not (args.quiet and args.html):
            from dftracer.report.jobs import RUN_COLUMNS, run_texts

            print_lines(RUN_COLUMNS, [run_texts(row) for row in rows])
        if args.html:
            _write_runs_page(args, rows, paths)
        return EXIT_OK


def _write_runs_page(args: argparse.Namespace, rows: list[RunRow], paths: list[str]) -> None:
    from dftracer.report.jobs import runs_page

    page = Path(args.html)
    with progress(args, "reports", counted=True) as tick:
        reports = _write_reports(rows, page.with_name(f"{page.stem}-reports"), tick)
    write_page(args, runs_page(rows, f"Runs in {', '.join(paths)}", reports), plural(len(rows), "run"))


def _write_reports(rows: list[RunRow], folder: Path, tick: object) -> dict[str, str]:
    """A report of each run, unless an earlier page has left it; by path and id of the run."""
    from dftracer.analyze import analyze
    from dftracer.report import html_page

    folder.mkdir(exist_ok=True)
    out = {}
    for done, row in enumerate(rows):
        stamps = "".join(f"{f}:{Path(f).stat().st_size}:{Path(f).stat().st_mtime_ns};" for f in row.files)
        file = folder / f"{hashlib.sha256(stamps.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.html"
        try:
            if not file.exists():
                page = html_page(analyze(row.files, run="all"), f"dftracer: {row.path}")
                write_text(file, page, errors="replace")
            out[f"{row.path}/{row.run or ''}"] = f"{folder.name}/{file.name}"
        except NoTraces:  # killed before it recorded anything
            pass
        if callable(tick):
            tick(done + 1, len(rows))
    return out


class Goodput(Verb):
    help = "Show how much of a job's time, across restarts, went into new steps, and where the rest went."
    example = """\
dftracer goodput traces/
dftracer goodput traces/ --name llama-7b
dftracer goodput traces/ --json
dftracer goodput traces/ --html goodput.html"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_search_roots(parser, "where the traces of the job's attempts are")
        parser.add_argument(
            "--name",
            metavar="NAME",
            help="treat the runs of this name as the attempts"
            " (default: the newest run, and those it continues)",
        )
        parser.add_argument(
            "--html", metavar="FILE", help="write a page with the parts and the steps over time"
        )

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.analyze.goodput import goodput
        from dftracer.report.jobs import (
            ATTEMPT_COLUMNS,
            PART_COLUMNS,
            attempt_texts,
            goodput_page,
            goodput_sentence,
            part_texts,
        )

        paths = search_roots(args)
        if args.html:
            check_output(Path(args.html), [], force=args.force)
        try:
            with progress(args, "runs", counted=True) as tick:
                found = goodput(paths, args.name, tick)
        except NoTraces as e:
            raise CommandError(str(e)) from None
        if args.json:
            print_json(found.to_json())
        elif not (args.quiet and args.html):
            print(goodput_sentence(found))
            print()
            print_lines(PART_COLUMNS, part_texts(found))
            print()
            print_lines(ATTEMPT_COLUMNS, [attempt_texts(i + 1, a) for i, a in enumerate(found.attempts)])
        if any(a.main is not None and a.main.from_rows for a in found.attempts) and not args.quiet:
            note = "some traces are gone; their figures come from step rows"
            print(f"dftracer goodput: {note}", file=sys.stderr)
        if found.left_out and not args.quiet and args.name is None:
            others = f"{plural(len(found.left_out), 'other run')} in the same directory"
            are_not = "is not an attempt" if len(found.left_out) == 1 else "are not attempts"
            note = f"{others} {are_not} of this job; select runs with --name"
            print(f"dftracer goodput: {note}", file=sys.stderr)
        if args.html:
            write_page(args, goodput_page(found, "Goodput"), goodput_sentence(found))
        return EXIT_OK


class Fleet(Verb):
    help = "Find the slow ranks, groups of ranks and steps among thousands, from step rows alone."
    example = """\
dftracer fleet traces/
dftracer fleet traces/ --html fleet.html
dftracer fleet s3://bucket/job --json
dftracer fleet traces/ --dask tcp://scheduler:8786"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_search_roots(parser, "where the step rows (*.rows) are")
        parser.add_argument("--run", metavar="ID", help="which run (default: the newest)")
        parser.add_argument("--steps", type=span, metavar="FROM:TO", help="only these steps (default: all)")
        parser.add_argument(
            "--dask",
            metavar="ADDRESS",
            help="read on a Dask cluster, tcp://host:port or 'local' (default: in this process)",
        )
        parser.add_argument(
            "--html", metavar="FILE", help="write a page with a heat map of all ranks and steps"
        )

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.analyze.fleet import read_fleet
        from dftracer.report.fleet import (
            GROUP_COLUMNS,
            RANK_COLUMNS,
            STEP_COLUMNS,
            fleet_lines,
            fleet_page,
            short_ranks,
        )

        paths = search_roots(args)
        if args.html:
            check_output(Path(args.html), [], force=args.force)
        try:
            with progress(args, "files", counted=True) as tick:
                fleet = read_fleet(paths, args.dask, args.run, args.steps, tick)
        except NoTraces as e:
            raise CommandError(str(e)) from None
        lines = fleet_lines(fleet)
        if args.json:
            print_json(fleet.to_json())
        elif not (args.quiet and args.html):
            print("\n".join(lines))
            groups = [
                (short_ranks(g.ranks), g.host or "", g.stage, seconds_text(g.seconds))
                for g in fleet.slow_groups
            ]
            ranks = [(str(r.rank), r.stage, seconds_text(r.seconds)) for r in fleet.slow_ranks]
            steps = [(str(s.step), seconds_text(s.seconds)) for s in fleet.slow_steps]
            for columns, rows in ((GROUP_COLUMNS, groups), (RANK_COLUMNS, ranks), (STEP_COLUMNS, steps)):
                if rows:
                    print()
                    print_lines(columns, rows)
        if len(fleet.runs) > 1 and args.run is None and not args.quiet:
            print(
                f"dftracer fleet: run {fleet.runs[0]}, the newest; also there: {', '.join(fleet.runs[1:4])}",
                file=sys.stderr,
            )
        if args.html:
            write_page(args, fleet_page(fleet, "Fleet"), lines[0])
        return EXIT_OK


class Postmortem(Verb):
    help = "Say why a job hangs or died: which rank was first, where, and what the others were doing."
    example = """\
dftracer postmortem traces/
dftracer postmortem                       # the job that is recording now, or the newest run
dftracer postmortem traces/ --json
dftracer postmortem traces/ --html hang.html"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            nargs="?",
            metavar="DIR",
            help="the directory of a run's traces (default: where this user's programs are recording,"
            " otherwise the newest run under traces/ or in the current directory)",
        )
        parser.add_argument("--html", metavar="FILE", help="write a page")

    def run(self, args: argparse.Namespace) -> int:
        directory = _directory(args.directory)
        for name in (args.html, args.output):
            if name:
                check_output(Path(name), [], force=args.force)
        from dftracer.postmortem import gather, judge
        from dftracer.postmortem.show import html_page, lines

        try:
            evidence = gather(directory)
        except NoTraces as problem:
            raise CommandError(str(problem)) from None
        if not evidence.ranks:
            raise CommandError(f"{directory}: no process there trained, joined a process group or failed")
        verdict = judge(evidence)
        if args.html:
            write_text(Path(args.html), html_page(verdict))
        answer = verdict.to_json()
        if args.output:
            as_json = args.json or args.output.endswith(".json")
            text = json.dumps(answer, indent=1, ensure_ascii=False) if as_json else "\n".join(lines(verdict))
            write_text(Path(args.output), f"{text}\n")
        elif args.json:
            print_json(answer)
        elif not args.quiet:
            print("\n".join(lines(verdict)))
        return EXIT_OK if verdict.fine else EXIT_PROBLEMS


def _directory(given: str | None) -> Path:
    if given is None:
        return recording_now()
    path = Path(given)
    if not path.exists():
        raise CommandError(f"{given} does not exist")
    if not path.is_dir():
        raise CommandError(f"{given} is not a directory; give the directory that contains the traces")
    return path


# A process looks for the file once a second; the busiest may be late.
_NOTICE_S = 3.0
_TRIGGER_FILE = "dftracer.trigger"


class Trigger(Verb):
    help = (
        "Make all ranks of a running --blackbox job keep the detail of the same steps;"
        " exit code 1 if none is running there."
    )
    example = """\
dftracer trigger traces/20260102-030405
dftracer trigger traces/20260102-030405 --steps 20"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "directory",
            nargs="?",
            metavar="DIR",
            help="the directory of the run's traces (default: where this user's programs are recording,"
            " otherwise the newest run under traces/ or in the current directory)",
        )
        parser.add_argument("--steps", type=int, default=5, metavar="N", help="how many steps to keep")

    def run(self, args: argparse.Namespace) -> int:
        if args.steps < 1:
            raise CommandError("--steps must be at least 1")
        folder = _directory(args.directory)
        running, all_kept = _running_in(folder)
        folders = sorted({file.parent for file in running.values()})
        first = _next_step(folder) if folders else 0
        for each in folders:
            _write_trigger(each / _TRIGGER_FILE, first, args.steps)
        if args.json:
            print_json(
                {
                    "processes": len(running),
                    "first_step": first if folders else None,
                    "steps": args.steps,
                    "folders": [str(each) for each in folders],
                    "all_kept": all_kept,
                }
            )
        elif not folders:
            kept = "; a run without --blackbox keeps everything" if all_kept else ""
            print(f"dftracer trigger: no running process uses --blackbox in {folder}{kept}", file=sys.stderr)
        elif not args.quiet:
            who = plural(len(running), "process", "processes")
            print(f"{who} will keep the detail of steps {first} to {first + args.steps - 1}.")
        return EXIT_OK if folders else EXIT_PROBLEMS


def _running_in(folder: Path) -> tuple[dict[tuple[str, int], Path], int]:
    """A file of each running black box; how many other processes are recorded, which keep everything."""
    from dftracer.format.trace_names import find_files
    from dftracer.load.process import is_live, peek

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
    """A step that no rank will have begun when the last one notices the request; 0 if there were none."""
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


def _write_trigger(path: Path, first: int, steps: int) -> None:
    number = time.time_ns() & ((1 << 62) - 1)
    try:
        with appearing(path) as temporary:
            temporary.write_text(f"dftracer-trigger {number} {first} {steps}\n")
            os.chmod(temporary, 0o644)
    except OSError as e:
        raise CommandError(f"{path}: {e.strerror or e}") from None


class Ship(Verb):
    help = "Send traces to a store (s3://, gs:// ...) and delete them here once it has confirmed them."
    example = """\
dftracer ship traces/20260115-174012-3fa2b1c4 s3://bucket/job
dftracer ship --keep traces/ s3://bucket/job"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="DIR", help="a directory with traces")
        parser.add_argument("url", metavar="URL", help="where to send them, e.g. s3://bucket/job")
        parser.add_argument("--keep", action="store_true", help="keep the local files")

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.cli.shipping import Shipper
        from dftracer.load.remote import is_url

        folder = _directory(args.folder)
        if not is_url(args.url):
            raise CommandError(f"{args.url} is not a URL like s3://bucket/job")
        shipper = Shipper(folder, args.url)
        try:
            shipper.open()
        except NoTraces as e:
            raise CommandError(str(e)) from None
        problem = shipper.finish(args.keep)
        if args.json:
            print_json(
                {
                    "url": shipper.url,
                    "files": shipper.sent,
                    "bytes": shipper.sent_bytes,
                    "failures": shipper.failures,
                    "left": [str(path) for path in shipper.left],
                }
            )
        elif not args.quiet:
            print(shipper.summary(problem))
        return EXIT_PROBLEMS if shipper.left else EXIT_OK
