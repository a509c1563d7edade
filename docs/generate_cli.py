"""Writes docs/cli.md from the parsers themselves: `python docs/generate_cli.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from dftracer.cli.main import build_parser, load_verb, verb_names

PAGE = Path(__file__).parent / "cli.md"
_HEAD = """# The command `dftracer`

Made by `docs/generate_cli.py` from the command line itself.

Options that mean the same everywhere: `-o/--output` where to write, `-f/--force` overwrite, `-q/--quiet` no
progress and no notes, `-v/--verbose` say more, `--json` machine-readable output.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | done, and what was looked at has problems (`validate`, `doctor`, `check`) |
| 2 | bad usage or input (no such file, no trace record in it, an output that exists): the message says what to do |
| 3 | a package is missing: the message names the extra to install |
| 130 | interrupted |
| other | `run` passes the program's own code on (128 + n after signal n) |

Shell completion: `eval "$(dftracer completion bash)"` (also `zsh`, `fish`).
"""
_COMMON = {"-h", "-o", "-f", "-q", "-v", "--json"}


def _what(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
    names = ", ".join(action.option_strings)
    return f"`{names}`" if action.nargs == 0 else f"`{names} {value}`"


def page() -> str:
    """The whole page."""
    parser = build_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parts = [_HEAD]
    for name in verb_names():
        verb = load_verb(name)
        examples = "\n".join(f"    {line}" for line in verb.example.splitlines())
        written = f"\n`-o` (default: {verb.output}).\n"
        parts.append(f"\n## {name}\n\n{verb.help}\n\n{examples}\n{written}")
        rows = [
            f"| {_what(a).replace('|', chr(92) + '|')} | {(a.help or '').replace(chr(37) * 2, chr(37))} |"
            for a in verbs.choices[name]._actions
            if not _COMMON.intersection(a.option_strings)
        ]
        if rows:
            parts.append("\n| argument | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
