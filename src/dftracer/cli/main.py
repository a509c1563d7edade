"""Finding the verbs, reading the command line, and turning errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from dftracer import __version__
from dftracer._terminal import fit_streams, shown_output
from dftracer.cli import commands

TYPE_CHECKING = False  # `typing` takes long to load, and `run` is not to keep its program waiting
if TYPE_CHECKING:
    from typing import NoReturn, Protocol

    class Verb(Protocol):
        """The interface of a module in `dftracer.cli.commands`.

        `OUTPUT`, if any, is the default of -o, and `OUTPUT_IS` what it is.
        """

        HELP: str
        EXAMPLE: str

        def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...
        def run(self, args: argparse.Namespace) -> int: ...


__all__ = [
    "EXIT_BAD_INPUT",
    "EXIT_MISSING_EXTRA",
    "EXIT_OK",
    "EXIT_OUT_OF_MEMORY",
    "EXIT_PROBLEMS",
    "CommandError",
    "build_parser",
    "main",
]

EXIT_OK = 0
EXIT_PROBLEMS = 1  # the command worked; what it looked at has problems
EXIT_BAD_INPUT = 2  # usage, a missing file, an output that exists
EXIT_MISSING_EXTRA = 3  # a package of an extra is not installed
EXIT_OUT_OF_MEMORY = 4
_EXIT_BUG = 70
_EXIT_INTERRUPTED = 130

_GROUPS = {
    "record": ("run", "collect"),
    "look": ("report", "view", "top", "compare", "check"),
    "job": ("runs", "goodput", "fleet", "postmortem", "trigger", "ship"),
    "files": ("info", "merge", "slice", "export", "repair", "validate", "query"),
    "set up": ("doctor", "completion", "clean"),
}
_EPILOG = """\
exit codes: 0 done, 1 done and problems were found, 2 bad usage or input, 3 a package is missing,
4 out of memory, 70 a bug in dftracer, 130 interrupted;
`dftracer run` passes the program's own code through.
"""


# Arguments of verbs that name traces; and the verbs that need no events, only who wrote them.
_INPUTS = ("paths", "run", "runs", "target", "directory")
_READ_HEADS = frozenset({"info", "runs"})

_OUT_OF_MEMORY = "out of memory: read less of the trace (--time, --ranks), or give the command more memory"


class CommandError(Exception):
    """Something the user can fix; the text says how."""


def verb_names() -> list[str]:
    """All verbs: any module in the package is a verb."""
    import pkgutil

    return sorted(m.name for m in pkgutil.iter_modules(commands.__path__) if not m.name.startswith("_"))


def _is_verb(word: str) -> bool:
    return word.isalpha() and any((Path(p) / f"{word}.py").is_file() for p in commands.__path__)


def load_verb(name: str) -> Verb:
    """The module of a verb."""
    module: Verb = importlib.import_module(f"dftracer.cli.commands.{name}")
    return module


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")


def _common(verb: Verb) -> _Parser:
    """The options that mean the same everywhere."""
    p = _Parser(add_help=False)
    g = p.add_argument_group("common options")
    kind, default = getattr(verb, "OUTPUT_IS", "FILE"), getattr(verb, "OUTPUT", "the terminal")
    g.add_argument("-o", "--output", metavar=kind, help=f"where to write (default: {default})")
    g.add_argument("-f", "--force", action="store_true", help="overwrite existing output")
    g.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes")
    g.add_argument("-v", "--verbose", action="store_true", help="say more")
    g.add_argument("--json", action="store_true", help="machine-readable output")
    return p


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The command line: of all verbs, or of one, so that the others need not be loaded."""
    parser = _Parser(
        prog="dftracer",
        usage=None if only else "dftracer [-h] [--version] VERB ...",
        description="Trace a training job and see where its time goes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dftracer {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser, help=argparse.SUPPRESS)
    names = [only] if only else verb_names()
    if not only:
        parser.description = f"{parser.description}\n\n{_grouped(names)}"
    for name in names:
        verb = load_verb(name)
        sub = verbs.add_parser(
            name,
            parents=[_common(verb)],
            description=textwrap.fill(verb.HELP, shutil.get_terminal_size().columns - 2),
            epilog=_examples(verb.EXAMPLE),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
        _tell_defaults(sub)
        sub.set_defaults(run_verb=verb.run, refuse=sub.error)
    return parser


def _grouped(names: Sequence[str]) -> str:
    """The verbs by what they are for."""
    placed = {name for group in _GROUPS.values() for name in group}
    others = tuple(n for n in names if n not in placed)
    room = max(40, shutil.get_terminal_size().columns - 2)
    lines = []
    for title, group in _GROUPS.items():
        members = [n for n in (*group, *(others if title == "files" else ())) if n in names]
        lines.append(f"{title}:")
        for name in members:
            text = textwrap.wrap(load_verb(name).HELP, room - 14)
            lines += [f"  {name:<12}{text[0]}", *(" " * 14 + more for more in text[1:])]
    return "\n".join(lines)


def _examples(text: str) -> str:
    first, *more = text.splitlines()
    return "\n".join([f"example: {first}", *(f"         {line}" for line in more)])


def _tell_defaults(parser: argparse.ArgumentParser) -> None:
    """Make every option state its default."""
    for action in parser._actions:
        if not action.option_strings or action.help is argparse.SUPPRESS or "default" in (action.help or ""):
            continue
        if isinstance(action, argparse._HelpAction):
            continue
        value = action.default
        switch = {True: "on", False: "off"}.get(value) if isinstance(value, bool) else None
        words = switch or ("none" if value in (None, "", []) else value)
        action.help = f"{action.help or ''} (default: {str(words).replace('%', '%%')})".strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    fit_streams()
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words and _is_verb(words[0]) else None)
    args, unknown = parser.parse_known_args(argv)
    args.words = words  # argparse drops the -- that separates two groups of runs
    if hasattr(args, "paths") and not any(word.startswith("-") for word in unknown):
        args.paths = [*args.paths, *unknown]  # argparse takes no more paths after an option that follows some
        unknown = []
    if unknown:  # by the verb's own parser, whose usage and help are those that tell more
        getattr(args, "refuse", parser.error)(f"unrecognized arguments: {' '.join(unknown)}")
    if args.verb is None:
        parser.print_help()
        return EXIT_BAD_INPUT
    with shown_output():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    try:
        _bring_here(args)
        code: int = args.run_verb(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:  # `dftracer ... | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as e:
        text, code = _explained(e)
        if args.verbose and code in (EXIT_MISSING_EXTRA, _EXIT_BUG):
            raise
        return _say(args, text, code)


def _bring_here(args: argparse.Namespace) -> None:
    """Where a trace is named by a URL, copy what the verb needs of it."""
    if "://" in (getattr(args, "output", None) or "") and args.verb != "run":
        raise CommandError(f"-o {args.output}: write to this machine, then `dftracer ship DIR URL`")
    for name in _INPUTS:
        given = getattr(args, name, None)
        if given and "://" in str(given):
            from dftracer.load.files import NoTraces, here

            try:
                heads = args.verb in _READ_HEADS and not getattr(args, "html", None)
                setattr(args, name, here(given, heads))
            except NoTraces as e:
                raise CommandError(str(e)) from None


def _explained(e: Exception) -> tuple[str, int]:
    """A sentence for the user, and the exit code."""
    # DuckDB's and Arrow's own errors are recognised by name.
    if (
        isinstance(e, MemoryError)
        or "OutOfMemory" in type(e).__name__
        or (isinstance(e, OSError) and e.errno == errno.ENOMEM)
    ):
        return _OUT_OF_MEMORY, EXIT_OUT_OF_MEMORY
    if isinstance(e, CommandError):
        return str(e), EXIT_BAD_INPUT
    if isinstance(e, ImportError):
        return _import_explained(e), EXIT_MISSING_EXTRA
    if isinstance(e, OSError):
        where = f"{os.fsdecode(e.filename)}: " if isinstance(e.filename, (str, bytes)) else ""
        return f"{where}{e.strerror or e}", EXIT_BAD_INPUT
    told = f"{type(e).__name__}: {e}"
    return f"this is a bug in dftracer, please report it ({told}); -v shows where", _EXIT_BUG


def _import_explained(e: ImportError) -> str:
    if type(e).__name__ == "MissingExtra":
        return str(e)
    if isinstance(e, ModuleNotFoundError) and e.name is not None:
        from dftracer._packages import advice, install_name

        missing = install_name(e.name)
        return f"{missing} is not installed: {advice(missing)}"
    return f"a package cannot be loaded: {e}; `dftracer doctor` shows more"


def _say(args: argparse.Namespace, text: str, code: int) -> int:
    one_line = " ".join(text.split())
    print(f"dftracer {args.verb}: {one_line}", file=sys.stderr)
    return code
