"""The user's program, started under the recorder: what `run` and `collect` share."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dftracer import _config, _inherited
from dftracer.cli.main import CommandError
from dftracer.preload import library_path, settings_environment

__all__ = [
    "add_io",
    "add_program",
    "automatic",
    "command_of",
    "environment",
    "preload_library",
    "run_of",
    "wait_for",
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
    env = {**os.environ, **settings_environment(_config.load_settings())}
    env.update(_inherited.run_environment(run or run_of(str(directory.resolve() / "trace")), stems_file))
    prefix = str(directory.resolve() / "trace")
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


def run_of(stem: str) -> str:
    """The run that a program started from here belongs to; `{run}` in the stem stands for it."""
    from dftracer import _core

    return _core.identify_run(stem)


@contextlib.contextmanager
def automatic(env: dict[str, str], on: bool, tell: bool) -> Iterator[None]:
    """Record steps without annotations; the first process that trains says so."""
    if not on:
        env.pop("DFTRACER_AUTO", None)
        yield
        return
    env.setdefault("DFTRACER_AUTO", "torch")
    with tempfile.TemporaryDirectory(prefix="dftracer-") as place:
        if tell:
            env["DFTRACER_AUTO_MARK"] = str(Path(place) / "told")
        yield


def preload_library() -> str | None:
    """The library that traces I/O from the first instruction, if this build has one."""
    path = library_path()
    return str(path) if path.is_file() else None


def wait_for(command: list[str], env: dict[str, str]) -> int:
    """Run it to the end, and return its exit code as a shell would."""
    child = subprocess.Popen(command, env=env)
    # Ctrl-C goes to the whole group: the program decides, we wait for it. TERM sent only to us is passed on.
    old = {s: signal.signal(s, lambda n, _: child.send_signal(n)) for s in (signal.SIGTERM, signal.SIGHUP)}
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
    finally:
        signal.signal(signal.SIGINT, ignored)
        for s, handler in old.items():
            signal.signal(s, handler)
    return code if code >= 0 else 128 - code
