"""The command line: its verbs, its options, and how errors become sentences and exit codes."""

from __future__ import annotations

import errno
import os
import sys

from dftracer._console import fit_streams, shown_output

# `run` must not keep its program waiting: what takes long to load (`typing`, `argparse`, and `re`, `enum`,
# `functools` below it) is loaded where it is used.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, NoReturn

EXIT_OK = 0
EXIT_PROBLEMS = 1  # the command worked; what it looked at has problems
EXIT_BAD_INPUT = 2  # usage, a missing file, an output that exists
EXIT_MISSING_EXTRA = 3  # a package of an extra is not installed
EXIT_OUT_OF_MEMORY = 4
_EXIT_BUG = 70
_EXIT_INTERRUPTED = 130

# The verbs by what they are for, each with its module in `dftracer.cli.commands`.
_GROUPS = {
    "record": {"run": "run", "collect": "collect"},
    "inspect": {"report": "look", "view": "look", "top": "look", "compare": "compare", "check": "compare"},
    "job": dict.fromkeys(("runs", "goodput", "fleet", "postmortem", "trigger", "ship"), "job"),
    "files": {
        "info": "files",
        "merge": "copies",
        "slice": "copies",
        "export": "export",
        "repair": "copies",
        "validate": "files",
        "query": "files",
        "link": "files",
    },
    "setup": {"doctor": "doctor", "completion": "completion", "clean": "clean"},
}
_MODULES = {verb: module for group in _GROUPS.values() for verb, module in group.items()}
# What each exit code means, and more of it in docs/cli.md.
EXIT_CODES = (
    (EXIT_OK, "done", ""),
    (EXIT_PROBLEMS, "done, but problems were found", " (`validate`, `doctor`, `check` …)"),
    (EXIT_BAD_INPUT, "bad usage or input", " (no such file, no trace in it, an output that exists)"),
    (EXIT_MISSING_EXTRA, "a package is missing", ": the message names the extra to install"),
    (EXIT_OUT_OF_MEMORY, "out of memory", ""),
    (_EXIT_BUG, "a bug in dftracer", ""),
    (_EXIT_INTERRUPTED, "interrupted", ""),
)


def _epilog() -> str:
    codes = "".join(f"  {code:>3}  {meaning}\n" for code, meaning, _ in EXIT_CODES)
    return f"exit codes:\n{codes}`dftracer run` passes on the exit code of the program.\n"


# The arguments that name traces, and the verbs that need only the head of each file.
_INPUTS = ("paths", "run", "runs", "target", "directory")
_READ_HEADS = frozenset({"info", "runs"})

_OUT_OF_MEMORY = "out of memory: read less of the trace (--time, --ranks), or give the command more memory"


class CommandError(Exception):
    """Something the user can fix; the text says how."""


class Verb:
    """One verb of the command line: `dftracer info` is the class `Info` in its module."""

    help: str
    example: str
    output = "the terminal"  # the default of -o
    output_is = "FILE"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the verb's own arguments."""

    def run(self, args: argparse.Namespace) -> int:
        """Do it; returns the exit code."""
        raise NotImplementedError


def verb_names() -> list[str]:
    """All verbs."""
    return sorted(_MODULES)


def load_verb(name: str) -> Verb:
    """A verb by its name; only its own module is loaded."""
    module = __import__(f"dftracer.cli.commands.{_MODULES[name]}", fromlist=["*"])
    verb: Verb = getattr(module, name.capitalize())()
    return verb


# --- The words of a command, without argparse where nothing about them needs it


class _PlainParser:
    """Stands for the parser of a verb that ends with a program: takes whole options, each word as it is."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._options: dict[str, tuple[str, str]] = {}  # what an option sets, and how

    def add_argument_group(self, title: str) -> _PlainParser:
        return self

    def add_argument(self, *names: str, **how: Any) -> None:
        dest = how.get("dest") or names[-1].lstrip("-").replace("-", "_")
        action = how.get("action", "store")
        self.values[dest] = how.get("default", False if action == "store_true" else None)
        for name in names:
            self._options[name] = dest, action

    def take(self, words: Sequence[str]) -> bool:
        """Whether the words were understood: what is not plain (a mistake, `--help`) is left to argparse."""
        rest = iter(enumerate(words))
        for i, word in rest:
            if word == "--" or not word.startswith("-"):
                self.values["program"] = list(words[i:])
                return bool(word)
            dest, action = self._options.get(word, ("", ""))
            if action == "store_true":
                self.values[dest] = True
                continue
            _, value = next(rest, (0, "-"))
            if action not in ("store", "append") or not value or value.startswith("-"):
                return False
            self.values[dest] = value if action == "store" else [*self.values[dest], value]
        return False


class _PlainNamespace:
    """What argparse's namespace is to a verb."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)


def _plain_run(words: Sequence[str]) -> Any:
    """The arguments of `dftracer run`, which a program waits for; None if argparse has to look at them."""
    verb, plain = load_verb("run"), _PlainParser()
    _add_common(verb, plain)
    verb.add_arguments(plain)  # type: ignore[arg-type]
    return (
        _PlainNamespace({**plain.values, "verb": "run", "run_verb": verb.run})
        if plain.take(words[1:])
        else None
    )


# --- The words of a command, and its help, by argparse


def _parser_class() -> type[argparse.ArgumentParser]:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            self.print_usage(sys.stderr)
            self.exit(EXIT_BAD_INPUT, f"{self.prog}: {message}\nTry '{self.prog} --help'.\n")

    return Parser


def _add_common(verb: Verb, parser: Any) -> None:
    """The options that mean the same everywhere."""
    g = parser.add_argument_group("common options")
    g.add_argument("-o", "--output", metavar=verb.output_is, help=f"where to write (default: {verb.output})")
    g.add_argument("-f", "--force", action="store_true", help="overwrite existing output")
    g.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes")
    g.add_argument("-v", "--verbose", action="store_true", help="print more")
    g.add_argument("--json", action="store_true", help="machine-readable output")


def build_parser(only: str | None = None, *, names_only: bool = False) -> argparse.ArgumentParser:
    """The command line: of all verbs, or of one, so that the others need not be loaded.

    `names_only`: just enough for a list of all verbs.
    """
    import argparse
    import shutil
    import textwrap

    from dftracer import __version__

    parser_class = _parser_class()
    parser = parser_class(
        prog="dftracer",
        usage=None if only else "dftracer [-h] [--version] VERB ...",
        description="Trace a training job and see where its time goes.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dftracer {__version__}")
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", parser_class=parser_class, help=argparse.SUPPRESS
    )
    names = [only] if only else verb_names()
    if not only:
        parser.description = f"{parser.description}\n\n{_grouped()}"
    for name in [] if names_only else names:
        verb, common = load_verb(name), parser_class(add_help=False)
        _add_common(verb, common)
        sub = verbs.add_parser(
            name,
            parents=[common],
            description=textwrap.fill(verb.help, shutil.get_terminal_size().columns - 2),
            epilog=_examples(verb.example),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
        _state_defaults(sub)
        sub.set_defaults(run_verb=verb.run, refuse=sub.error)
    return parser


def _grouped() -> str:
    """The verbs by what they are for."""
    import shutil
    import textwrap

    room = max(40, shutil.get_terminal_size().columns - 2)
    lines = []
    for title, group in _GROUPS.items():
        lines.append(f"{title}:")
        for name in group:
            text = textwrap.wrap(load_verb(name).help, room - 14)
            lines += [f"  {name:<12}{text[0]}", *(" " * 14 + more for more in text[1:])]
    return "\n".join(lines)


def _examples(text: str) -> str:
    first, *more = text.splitlines()
    return "\n".join([f"example: {first}", *(f"         {line}" for line in more)])


def _state_defaults(parser: argparse.ArgumentParser) -> None:
    """Make every option state its default."""
    import argparse

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
    first = words[0] if words else "--help"
    args = _plain_run(words) if first == "run" else None
    if args is None:
        args = _parsed(argv, words, first)
    if args is None:
        return EXIT_BAD_INPUT
    with shown_output():
        return _run(args)


def _parsed(argv: Sequence[str] | None, words: Sequence[str], first: str) -> argparse.Namespace | None:
    parser = build_parser(first if first in _MODULES else None, names_only=first in {"-h", "--help"})
    args, unknown = parser.parse_known_args(argv)
    args.words = words  # argparse drops the -- that separates two groups of runs
    if hasattr(args, "paths") and not any(word.startswith("-") for word in unknown):
        args.paths = [*args.paths, *unknown]  # argparse takes no more paths after an option that follows some
        unknown = []
    if unknown:  # refused by the verb's own parser, whose usage is the useful one
        getattr(args, "refuse", parser.error)(f"unrecognized arguments: {' '.join(unknown)}")
    if args.verb is None:
        parser.print_help()
        return None
    return args


def _run(args: argparse.Namespace) -> int:
    try:
        _fetch_inputs(args)
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
        return _print_error(args, text, code)


def _fetch_inputs(args: argparse.Namespace) -> None:
    """Where a trace is named by a URL, copy what the verb needs of it."""
    if "://" in (getattr(args, "output", None) or "") and args.verb != "run":
        raise CommandError(f"-o {args.output}: write to this machine, then `dftracer ship DIR URL`")
    for name in _INPUTS:
        given = getattr(args, name, None)
        if given and "://" in str(given):
            from dftracer.format.trace_names import NoTraces
            from dftracer.load.find import here

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
    error = f"{type(e).__name__}: {e}"
    return f"this is a bug in dftracer, please report it ({error}); -v shows where", _EXIT_BUG


def _import_explained(e: ImportError) -> str:
    from dftracer._packages import MissingExtra, not_installed

    if isinstance(e, MissingExtra):
        return str(e)
    if isinstance(e, ModuleNotFoundError) and e.name is not None:
        return not_installed(e.name)
    return f"a package cannot be loaded: {e}; `dftracer doctor` shows more"


def _print_error(args: argparse.Namespace, text: str, code: int) -> int:
    one_line = " ".join(text.split())
    print(f"dftracer {args.verb}: {one_line}", file=sys.stderr)
    return code
