"""`dftracer run`."""

from __future__ import annotations

import os
import sys

from dftracer.cli.launching import exec_program, exit_like, run_as_child
from dftracer.cli.main import Verb
from dftracer.cli.program import (
    Notes,
    add_io,
    add_program,
    automatic,
    command_of,
    environment,
    naming,
    output_directory,
    preload_library,
    run_of,
    spool,
)

TYPE_CHECKING = False  # what takes long to load is loaded where the program runs already
if TYPE_CHECKING:
    import argparse
    from pathlib import Path
    from typing import Any


class Run(Verb):
    help = "Run a program under the tracer, with all its children; its exit code is passed through."
    example = """\
dftracer run -- python train.py --epochs 3
dftracer run -o traces --report train.py
dftracer run --blackbox -- python train.py
dftracer run --name resnet50 --tag lr=0.1 --tag data=v2 -- python train.py
dftracer run -- torchrun --nproc-per-node 2 train.py
dftracer run -o s3://bucket/job -- python train.py"""
    output = "traces/RUN/"
    output_is = "DIR|URL"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_io(parser)
        parser.add_argument(
            "--report", action="store_true", help="print the full report when the program ends"
        )
        parser.add_argument("--html", metavar="FILE", help="write the HTML report when the program ends")
        parser.add_argument(
            "--no-auto", action="store_true", help="record only the training steps you annotate yourself"
        )
        parser.add_argument(
            "--keep", action="store_true", help="with -o URL: keep the local files once the store has them"
        )
        parser.add_argument(
            "--modules", action="store_true", help="also record the forward pass of every module"
        )
        parser.add_argument(
            "--blackbox",
            action="store_true",
            help="keep a row per step and a bounded amount of detail: the latest, and around anomalies",
        )
        parser.add_argument(
            "--name", metavar="NAME", help="what the run is called in `dftracer runs` and `dftracer goodput`"
        )
        parser.add_argument(
            "--tag",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="a tag of the run, may be repeated",
        )
        add_program(parser)

    def run(self, args: argparse.Namespace) -> int:
        command = command_of(args)
        url = args.output if args.output and "://" in args.output else None
        usual = os.path.join("traces" if url is None else spool(url), "{run}")
        pattern = output_directory(None if url else args.output, usual)
        run_id = run_of(os.path.join(os.path.realpath(pattern), "trace"))
        directory = pattern if args.output and not url else pattern.replace("{run}", run_id)
        library = None if args.no_io else preload_library()
        alone = args.quiet and not args.report and not args.html and url is None
        args.naming = naming(args.name, args.tag, ask_git=not alone)
        if alone:
            exec_program(command, _environment(args, directory, library, run_id, None))
        return self._run_as_child(args, command, directory, library, run_id, url)

    def _run_as_child(
        self,
        args: argparse.Namespace,
        command: list[str],
        output: str,
        library: str | None,
        run_id: str,
        url: str | None,
    ) -> int:
        """Run the program as a child, then report what was recorded."""
        import contextlib
        from pathlib import Path

        directory = Path(output)
        made = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        with Notes() as note:
            shipping = None if url is None else _Shipping(directory, url, run_id)
            code = run_as_child(command, _environment(args, output, library, run_id, note), shipping)
            written = _traces_of_run(run_id, directory, Path(note))
        if code and written:
            from dftracer.format.trace_names import note_failure

            note_failure(written[0].parent, run_id, code if code > 0 else 128 - code)
        with contextlib.suppress(OSError):  # not empty, unless the program gave its traces a name elsewhere
            for each in made:
                each.rmdir()
        if not args.quiet:
            result = _where(written)
            if not written:
                result = f"nothing was recorded: {_why_nothing(args, library)}"
            if written and not args.report:
                _print_verdict(written)
            if not written or url is None:
                print(f"dftracer run: {result}", file=sys.stderr)
            if written and url is None:
                where = written[0].parent
                print(f"next: dftracer report {where}  ·  dftracer view {where}", file=sys.stderr)
        if written and (args.report or args.html):
            _report(args, written)
        if shipping is not None:
            shipping.end(args)
        return exit_like(code)


class _Shipping:
    """Sends the traces to a store while the program runs, and the rest when it has ended."""

    def __init__(self, directory: Path, url: str, run_id: str) -> None:
        self._directory, self._url, self._run_id = directory, url, run_id
        self._shipper: Any = None
        self._thread: Any = None

    def __call__(self) -> None:
        """The program runs; only now load what it takes to talk to a store."""
        try:
            from dftracer.cli.shipping import BackgroundShipper, Shipper

            self._shipper = Shipper(self._directory, self._url, self._run_id)
            self._thread = BackgroundShipper(self._shipper)
            self._thread.start()
        except Exception as error:  # the program runs whatever happens here
            print(f"dftracer run: not shipping: {error}", file=sys.stderr)

    def end(self, args: argparse.Namespace) -> None:
        """Must not affect the program's exit code."""
        try:
            if self._shipper is None:
                return
            self._thread.stop()
            problem = self._shipper.finish(args.keep)
            line = self._shipper.summary(problem)
        except Exception as error:
            line, problem = f"not shipped: {type(error).__name__}: {error}", error
        if not problem:
            import contextlib

            with contextlib.suppress(OSError):
                for name in self._directory.glob(".dftracer-*"):
                    name.unlink()
                self._directory.rmdir()
        if problem or not args.quiet:
            print(f"dftracer run: {line}", file=sys.stderr)
            if not problem:
                print(f"next: dftracer report {self._url}  ·  dftracer view {self._url}", file=sys.stderr)


def _environment(
    args: argparse.Namespace, directory: str, library: str | None, run_id: str, note: str | None
) -> dict[str, str]:
    env = environment(args, directory, library, run_id, note)
    env.update(args.naming)
    if args.modules:
        env["DFTRACER_AUTO_MODULES"] = "1"
    if args.blackbox:
        env["DFTRACER_MODE"] = "blackbox"
    automatic(env, on=not args.no_auto, note=None if args.quiet else note)
    return env


# --- When the program has ended

_SUFFIXES = (".pfw", ".pfw.gz")


def _why_nothing(args: argparse.Namespace, library: str | None) -> str:
    """Each way to record something, and why it did not."""
    reasons = [
        "--no-auto left out PyTorch training steps" if args.no_auto else "no PyTorch training step was seen",
        "no annotation ran (from dftracer.python import ai)",
    ]
    if args.no_io:
        reasons.append("--no-io left out the I/O")
    elif library is None:
        reasons.append("this build does not intercept I/O")
    else:
        reasons.append("no I/O on traced files was seen")
    return f"{', '.join(reasons[:-1])}, and {reasons[-1]}"


def _traces_of_run(run: str, directory: Path, note: Path) -> list[Path]:
    """The files of the run: in its directory, and wherever its processes noted that they write."""
    from pathlib import Path

    from dftracer import _core
    from dftracer.format.trace_names import run_of_file

    stems = [Path(os.fsdecode(line)) for line in dict.fromkeys(note.read_bytes().splitlines())]
    found = {p for p in directory.rglob("*") if p.name.endswith(_SUFFIXES)}
    for folder in {stem.parent for stem in stems} | {directory}:
        if folder.is_dir():
            _core.recover(str(folder))  # what a killed process could not write
    for stem in stems:
        if stem.parent.is_dir():
            beside = (p for p in stem.parent.iterdir() if p.name.startswith(stem.name))
            found |= {p for p in beside if p.name.endswith(_SUFFIXES)}
    return sorted(_relative(p) for p in found if run_of_file(p) == run)


def _relative(path: Path) -> Path:
    """The path from the working directory, if it lies below it."""
    here = path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def _where(written: list[Path]) -> str:
    folders = sorted({f.parent for f in written})
    if len(written) == 1:
        return f"1 trace file: {written[0]}"
    parts = []
    for folder in folders:
        number = sum(f.parent == folder for f in written)
        parts.append(f"{number} trace {'file' if number == 1 else 'files'} in {folder}")
    return ", ".join(parts)


def _print_verdict(files: list[Path]) -> None:
    try:
        lines = _verdict_lines(files)
    except ImportError:
        from dftracer._packages import advice

        lines = [f"for a verdict: {advice('polars', 'analysis')}"]
    except Exception as error:  # the program's own exit code is what counts
        lines = [f"dftracer run: no verdict: {type(error).__name__}: {error}"]
    for line in lines:
        print(line, file=sys.stderr)


def _verdict_lines(files: list[Path]) -> list[str]:
    """How the program ended, the verdict, why, and what to try next; or why the files cannot be analysed."""
    from dftracer.analyze import analyze
    from dftracer.format.trace_names import NoTraces

    try:
        analysis = analyze([str(f) for f in files])
    except NoTraces as problem:
        return [str(problem)]
    from dftracer.report.contents import ended_words, head, training_words

    return [line for line in (ended_words(analysis), *head(analysis), *training_words(analysis)) if line]


def _report(args: argparse.Namespace, files: list[Path]) -> None:
    from dftracer.cli.main import main

    flags = ["--html", args.html] if args.html else []
    main(["report", *map(str, files), *flags, *(["-q"] if not args.report else [])])
