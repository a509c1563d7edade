"""The user's program, started under the recorder: what `run` and `collect` share."""

from __future__ import annotations

import os
import stat
import sys
import time

from dftracer import _config, _inherited
from dftracer._console import original_environment
from dftracer.cli.main import CommandError
from dftracer.preload import library_name, settings_environment

TYPE_CHECKING = False  # the program waits: `pathlib`, `shutil` and others are loaded where it runs already
if TYPE_CHECKING:
    import argparse


def add_program(parser: argparse.ArgumentParser) -> None:
    """The program itself, as the last arguments."""
    parser.add_argument(
        "-m", dest="module", action="store_true", help="the program is a Python module, as in python -m"
    )
    parser.add_argument(
        "program",
        nargs="...",  # argparse.REMAINDER
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
    is_file = _is_file(words[0])
    if words[0].endswith(".py") or (is_file and not os.access(words[0], os.X_OK)):
        if not is_file:
            raise CommandError(f"{words[0]} does not exist")
        return [sys.executable, *words]
    if _which(words[0]) is None:
        raise CommandError(f"{words[0]}: no such program")
    return words


def _is_file(name: str) -> bool:
    """Also where it cannot be known: then the error says so."""
    try:
        return stat.S_ISREG(os.stat(name).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _which(program: str) -> str | None:
    """As shutil.which."""
    if os.path.dirname(program):
        folders = [""]
    else:
        path = os.environ.get("PATH")
        if path is None:
            path = os.confstr("CS_PATH") or os.defpath
        folders = path.split(os.pathsep) if path else []
    names = (os.path.join(folder, program) for folder in folders)
    return next((each for each in names if os.access(each, os.X_OK) and not os.path.isdir(each)), None)


def environment(
    args: argparse.Namespace,
    directory: str,
    library: str | None,
    run: str | None = None,
    stems_file: str | None = None,
) -> dict[str, str]:
    """The child's environment: recording on, part of one run, with interception if this build has it."""
    # Only Python programs read a settings file: its settings go into everyone's environment.
    env = {**_inherited_environment(args), **settings_environment(_config.load_settings())}
    prefix = os.path.join(os.path.realpath(directory), "trace")
    env.update(_inherited.run_environment(run or run_of(prefix), stems_file))
    env["DFTRACER_ENABLE"] = "1"
    env["DFTRACER_LOG_FILE"] = prefix
    env[_inherited.SESSION] = prefix
    if args.data_dir:
        env["DFTRACER_DATA_DIR"] = args.data_dir
    if args.no_io:
        env["DFTRACER_DISABLE_IO"] = "1"
    startup = os.path.join(os.path.dirname(__file__), "startup")
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
    if given.get("_") in ours and (program := _which(command_of(args)[0])):
        env["_"] = program
    return env


def output_directory(given: str | None, usual: str) -> str:
    """Where this command writes; not below a working directory that no longer exists."""
    wanted = given or usual
    try:
        os.getcwd()
    except FileNotFoundError:
        if not os.path.isabs(wanted):
            wanted = os.path.join(os.environ.get("TMPDIR") or "/tmp", wanted)
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


def naming(name: str | None, tags: list[str], ask_git: bool) -> dict[str, str]:
    """The variables that say which run this is: its name, its tags, the commit of the program.

    Whether files differ from that commit only git knows. It is a child of this process, before the program
    starts: where this process becomes the program, the program would find it among its own.
    """
    out = {}
    if name is not None:
        if not name.strip() or not name.isprintable():
            raise CommandError(f"--name {name!r}: the name must be a single line")
        out["DFTRACER_RUN_NAME"] = name.strip()
    for tag in tags:
        key, equals, _ = tag.partition("=")
        if not equals or not key.strip() or "," in tag or not tag.isprintable():
            raise CommandError(f"--tag {tag!r}: give KEY=VALUE, without a comma")
    if tags:
        before = os.environ.get("DFTRACER_RUN_TAGS")
        out["DFTRACER_RUN_TAGS"] = ",".join([*([before] if before else []), *tags])
    if "DFTRACER_RUN_GIT" not in os.environ and (git := _git_state(ask_git)):
        out["DFTRACER_RUN_GIT"] = git
    return out


_GIT_S = 1.0  # a program does not wait longer than this for git


def _git_state(ask: bool) -> str | None:
    """The commit of the working directory, `+` behind it if tracked files differ, `?` if nobody asked git."""
    try:
        top = os.getcwd()
        while not os.path.exists(os.path.join(top, ".git")):
            if top == os.path.dirname(top):
                return None
            top = os.path.dirname(top)
        commit = _commit(os.path.join(top, ".git"))
        if commit is None or not ask or _which("git") is None:
            return commit and commit + "?"
        # Nothing is written, and no helper of the user's is started.
        quiet = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false"]
        changed = _answer([*quiet, "status", "--porcelain", "--untracked-files=no"])
        return commit + ("?" if changed is None else "+" if changed else "")
    except (OSError, ValueError):
        return None


def _commit(git: str) -> str | None:
    """The commit that is checked out."""
    if (link := _text(git)) is not None:  # of a worktree, or a submodule
        git = os.path.join(os.path.dirname(git), link.removeprefix("gitdir:").strip())
    head = _text(git, "HEAD")
    if head is None or not head.startswith("ref:"):
        return head
    ref = head.removeprefix("ref:").strip()
    common = _text(git, "commondir")
    shared = git if common is None else os.path.join(git, common)
    for directory in (git, shared):
        if (commit := _text(directory, ref)) is not None:
            return commit
    lines = (_text(shared, "packed-refs") or "").splitlines()
    return next((line.split()[0] for line in lines if line.endswith(f" {ref}")), None)


def _text(*path: str) -> str | None:
    """What a file says, if there is one."""
    name = os.path.join(*path)
    if not os.path.isfile(name):
        return None
    with open(name, "rb") as file:
        return os.fsdecode(file.read()).strip()


def _answer(command: list[str]) -> str | None:
    """What a program prints; None if it fails or takes too long. (To load `subprocess` takes long.)"""
    import select

    until = time.monotonic() + _GIT_S
    reading, writing = os.pipe()
    try:
        nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        to = [(os.POSIX_SPAWN_DUP2, nowhere, 0), (os.POSIX_SPAWN_DUP2, writing, 1)]
        pid = os.posix_spawnp(
            command[0], command, os.environ, file_actions=[*to, (os.POSIX_SPAWN_DUP2, nowhere, 2)]
        )
        os.close(nowhere)
    finally:
        os.close(writing)
    out = b""
    try:
        while select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            more = os.read(reading, 1 << 16)
            if not more:
                break
            out += more
        else:
            os.kill(pid, 9)
    finally:
        os.close(reading)
        status = os.waitpid(pid, 0)[1]
    return out.decode(errors="replace") if status == 0 else None


class Notes:
    """A file for what the program's processes tell this one; names that begin with it are ours as well."""

    def __enter__(self) -> str:
        directory = os.environ.get("TMPDIR") or "/tmp"
        self._path = os.path.join(directory, f"dftracer-run-{os.urandom(8).hex()}")
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        return self._path

    def __exit__(self, *error: object) -> None:
        for each in (self._path, _mark(self._path)):
            try:
                os.unlink(each)
            except OSError:  # there is no mark unless steps were found
                continue


def _mark(note: str) -> str:
    return note + "-announced"


def automatic(env: dict[str, str], on: bool, note: str | None) -> None:
    """Record steps without annotations; the first process that trains says so if there is a note."""
    if not on:
        env.pop("DFTRACER_AUTO", None)
        return
    env.setdefault("DFTRACER_AUTO", "torch")
    if note is not None:
        env["DFTRACER_AUTO_MARK"] = _mark(note)


def preload_library() -> str | None:
    """The library that traces I/O from the first instruction, if this build has one."""
    name = library_name()
    return name if os.path.isfile(name) else None
