"""The user's program, started under the recorder: what `run` and `collect` share."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dftracer import _config, _inherited
from dftracer._encoding import original_environment
from dftracer.cli.main import CommandError
from dftracer.preload import library_path, settings_environment

__all__ = [
    "add_io",
    "add_program",
    "automatic",
    "command_of",
    "environment",
    "notes",
    "output_directory",
    "preload_library",
    "run_of",
    "spool",
]


def add_program(parser: argparse.ArgumentParser) -> None:
    """The program itself, as the last arguments."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the program is a Python module, as in python -m"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM ARGS",
        help="a script, a module or any program, e.g. torchrun",
    )


def add_io(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Which I/O is traced."""
    parser.add_argument(
        "--data-dir",
        metavar="DIRS",
        help="trace I/O only below these directories, separated by colons (default: everywhere)",
    )
    parser.add_argument("--no-io", action="store_true", help="do not intercept I/O calls")


def command_of(args: argparse.Namespace) -> list[str]:
    """What to start, or a clear error."""
    words = args.program[1:] if args.program[:1] == ["--"] else list(args.program)
    if not words:
        raise CommandError("give a program to run, as in: -- python train.py")
    if args.module:
        return [sys.executable, "-m", *words]
    if words[0].endswith(".py") or (Path(words[0]).is_file() and not os.access(words[0], os.X_OK)):
        if not Path(words[0]).is_file():
            raise CommandError(f"{words[0]} does not exist")
        return [sys.executable, *words]
    if shutil.which(words[0]) is None:
        raise CommandError(f"{words[0]}: no such program")
    return words


def environment(
    args: argparse.Namespace,
    directory: Path,
    library: str | None,
    run: str | None = None,
    stems_file: str | None = None,
) -> dict[str, str]:
    """The child's environment: recording on, part of one run, with interception if this build has it."""
    # Only Python programs read a settings file: its settings go into everyone's environment.
    env = {**_inherited_environment(args), **settings_environment(_config.load_settings())}
    prefix = str(directory.resolve() / "trace")
    env.update(_inherited.run_environment(run or run_of(prefix), stems_file))
    env["DFTRACER_ENABLE"] = "1"
    env["DFTRACER_LOG_FILE"] = prefix
    env[_inherited.SESSION] = prefix
    if args.data_dir:
        env["DFTRACER_DATA_DIR"] = args.data_dir
    if args.no_io:
        env["DFTRACER_DISABLE_IO"] = "1"
    startup = str(Path(__file__).parent / "startup")
    env["PYTHONPATH"] = os.pathsep.join([startup, *filter(None, [env.get("PYTHONPATH")])])
    if library is not None:
        env["DFTRACER_INIT"] = "PRELOAD"
        env["LD_PRELOAD"] = ":".join([library, *filter(None, [env.get("LD_PRELOAD")])])
    return env


def _inherited_environment(args: argparse.Namespace) -> dict[str, str]:
    env = dict(os.environ)
    given = original_environment()
    if "LC_CTYPE" not in given:  # set by Python as it started, in the C locale
        env.pop("LC_CTYPE", None)
    # A shell says here what it has started.
    ours = (sys.executable, sys.argv[0], sys.argv[0].removesuffix("-python"))
    if given.get("_") in ours and (program := shutil.which(command_of(args)[0])):
        env["_"] = program
    return env


def output_directory(given: str | None, usual: Path) -> Path:
    """Where this command writes; not below a working directory that no longer exists."""
    wanted = Path(given) if given else usual
    try:
        Path.cwd()
    except FileNotFoundError:
        if not wanted.is_absolute():
            wanted = Path(os.environ.get("TMPDIR") or "/tmp") / wanted
            print(f"dftracer: the working directory no longer exists; writing to {wanted}", file=sys.stderr)
    return wanted


def run_of(stem: str) -> str:
    """The run that a program started from here belongs to; `{run}` in the stem stands for it."""
    from dftracer import _core

    return _core.identify_run(stem)


def spool(url: str) -> str:
    """The directory in which traces wait that are meant for a store."""
    from dftracer import _core

    return _core.spool_path(url)


@contextlib.contextmanager
def notes() -> Iterator[Path]:
    """A file for what the program's processes tell this one; names that begin with it are ours as well."""
    place = os.environ.get("TMPDIR") or "/tmp"
    path = Path(place, f"dftracer-run-{os.urandom(8).hex()}")
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        yield path
    finally:
        for each in (path, _mark(path)):
            with contextlib.suppress(OSError):
                each.unlink()


def _mark(note: Path) -> Path:
    return note.with_name(note.name + "-told")


def automatic(env: dict[str, str], on: bool, note: Path | None) -> None:
    """Record steps without annotations; the first process that trains says so if there is a note."""
    if not on:
        env.pop("DFTRACER_AUTO", None)
        return
    env.setdefault("DFTRACER_AUTO", "torch")
    if note is not None:
        env["DFTRACER_AUTO_MARK"] = str(_mark(note))


def preload_library() -> str | None:
    """The library that traces I/O from the first instruction, if this build has one."""
    path = library_path()
    return str(path) if path.is_file() else None
