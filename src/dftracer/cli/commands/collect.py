"""`dftracer collect`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from dftracer._config import rank_info
from dftracer._text import plural
from dftracer.cli.launching import exec_program, exit_like, run_as_child
from dftracer.cli.main import CommandError, Verb
from dftracer.cli.program import (
    add_io,
    add_program,
    command_of,
    output_directory,
    preload_library,
)
from dftracer.cli.program import (
    environment as recorder_environment,
)


class Collect(Verb):
    help = (
        "Run a training program and collect its execution trace, Kineto trace, our trace and metrics per"
        " rank."
    )
    example = """\
dftracer collect -o out train.py --epochs 3
dftracer collect -o out -- torchrun --nproc-per-node 2 train.py
torchrun --nproc-per-node 2 -m dftracer.cli collect -o out train.py"""
    output = "collected/"
    output_is = "DIR"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        g = parser.add_argument_group("when")
        for name, what in (
            ("wait", "steps of each cycle that are not recorded (default: 1)"),
            ("warmup", "steps to warm up the profiler (default: 1)"),
            ("active", "steps to record (default: 2)"),
            ("repeat", "number of windows; 0: until the end (default: 1)"),
            ("skip-first", "steps before the first cycle (default: 0)"),
            ("et-windows", "windows with an execution trace; later ones have Kineto only (default: all)"),
        ):
            g.add_argument(f"--{name}", type=int, metavar="N", help=what)
        g.add_argument(
            "--steps",
            choices=("auto", "optimizer", "loader"),
            help="whose calls count as steps (default: auto)",
        )
        g = parser.add_argument_group("what")
        g.add_argument("--traces", metavar="LIST", help="some of pfw,et,kineto,nsys (default: pfw,et,kineto)")
        g.add_argument("--plugins", metavar="LIST", help="some of comms,memory,nvml (default: all)")
        g.add_argument("--no-compress", action="store_true", help="write .json instead of .json.gz")
        g.add_argument(
            "--threads",
            choices=("all", "main"),
            help="threads whose operators Kineto records (default: all of Python's)",
        )
        g.add_argument(
            "--memory", action="store_true", help="record memory events with Kineto (implies --threads main)"
        )
        g.add_argument("--stack", action="store_true", help="record Python stacks with Kineto")
        add_io(g)
        add_program(parser)

    def run(self, args: argparse.Namespace) -> int:
        from dftracer.collect._options import from_environment

        command = command_of(args)
        directory = Path(output_directory(args.output, "collected"))
        directory.mkdir(parents=True, exist_ok=True)
        traces = _words(args.traces) or ("pfw", "et", "kineto")
        env = environment(args, directory, traces)
        try:
            from_environment(env)
        except ValueError as error:
            raise CommandError(str(error)) from None
        if "nsys" in traces:
            command = _under_nsys(command, directory, args.repeat)
        if not args.json and (args.quiet or rank_info().rank is not None):
            exec_program(command, env)
        before = _manifests(directory)
        code = run_as_child(command, env)
        _print_result(args, directory, before)
        return exit_like(code)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(",") if part.strip())


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **{
            name: getattr(args, name)
            for name in ("wait", "warmup", "active", "repeat", "skip_first", "et_windows", "steps", "threads")
        },
        "traces": _words(args.traces),
        "plugins": _words(args.plugins),
        "compress": False if args.no_compress else None,
        "profile_memory": True if args.memory else None,
        "with_stack": True if args.stack else None,
    }


def environment(args: argparse.Namespace, directory: Path, traces: tuple[str, ...]) -> dict[str, str]:
    """The program's environment: the recorder as for `dftracer run`, and the collection's own settings."""
    from dftracer.collect._options import as_environment

    records = "pfw" in traces
    library = preload_library() if records and not args.no_io else None
    env = recorder_environment(args, str(directory), library)
    if not records:
        env["DFTRACER_ENABLE"] = "0"
    env.update(as_environment(str(directory.resolve()), _given(args)))
    return env


def _under_nsys(command: list[str], directory: Path, repeat: int | None) -> list[str]:
    from dftracer.collect._windows import find_nsys, nsys_command

    rank = str(rank_info().rank or 0)
    nsys = find_nsys()
    windows = 1 if repeat is None else repeat
    words = nsys_command(nsys or "nsys", str(directory.resolve()), rank, command, windows)
    if nsys is None:
        print(
            "dftracer collect: nsys is not on the PATH, so there is no nsys trace; the command would be: "
            f"{shlex.join(words)}",
            file=sys.stderr,
        )
        return command
    if Path(command[0]).name in ("torchrun", "accelerate", "deepspeed", "mpirun", "srun"):
        print(
            f"dftracer collect: nsys has to wrap each rank: {command[0]} ... -m dftracer.cli collect -o "
            f"{directory} --traces pfw,nsys train.py; this run has no nsys trace",
            file=sys.stderr,
        )
        return command
    return words


def _manifests(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.glob("manifest_*.json")}


def _print_result(args: argparse.Namespace, directory: Path, before: dict[Path, int]) -> None:
    """What this run produced, in a few lines or as the manifests."""
    found = []
    for path, changed in sorted(_manifests(directory).items()):
        if before.get(path) != changed:
            found.append(json.loads(path.read_text(encoding="utf-8")))
    if args.json:
        print(json.dumps({"directory": str(directory), "ranks": found}))
        return
    if args.quiet:
        return
    if not found:
        print(
            "dftracer collect: nothing was collected: no process used a torch optimizer or a DataLoader",
            file=sys.stderr,
        )
    for rank in found:
        windows = rank["windows"]
        nodes = sum(w["et_nodes"] or 0 for w in windows)
        joined = sum(w["joined"] or 0 for w in windows)
        line = f"rank {rank['rank']}: {plural(len(windows), 'window')} in {plural(rank['steps'], 'step')}"
        if nodes:
            line += f", {joined} of {plural(nodes, 'operator')} joined"
        print(f"dftracer collect: {line}", file=sys.stderr)
