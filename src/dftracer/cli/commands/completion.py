"""`dftracer completion`."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from dftracer.cli.main import EXIT_OK, Verb, build_parser


class Completion(Verb):
    help = "Print the completion script for a shell."
    example = """\
eval "$(dftracer completion bash)"
dftracer completion fish > ~/.config/fish/completions/dftracer.fish"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")

    def run(self, args: argparse.Namespace) -> int:
        verbs = _verb_options()
        if args.shell == "fish":
            print("\n".join(_fish(verbs)))
            return EXIT_OK
        if args.shell == "zsh":
            print("autoload -U +X bashcompinit && bashcompinit")
        print(_bash(verbs))
        return EXIT_OK


def _fish(verbs: dict[str, list[_Option]]) -> list[str]:
    lines = [f"complete -c dftracer -f -n __fish_use_subcommand -a '{' '.join(verbs)}'"]
    for verb, options in verbs.items():
        here = f"complete -c dftracer -n '__fish_seen_subcommand_from {verb}'"
        for option in options:
            if not option.names:
                if option.values:
                    lines.append(f"{here} -f -a '{' '.join(option.values)}'")
                continue
            names = " ".join(
                f"-l {n.removeprefix('--')}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names
            )
            takes = "" if not option.takes else " -r"
            if option.takes in ("words", "value"):
                takes = " -x"
            values = f" -a '{' '.join(option.values)}'" if option.values else ""
            lines.append(f"{here} {names}{takes}{values}")
    return lines


def _bash(verbs: dict[str, list[_Option]]) -> str:
    words = "\n".join(
        f"    {verb}) words='{' '.join(n for o in options for n in o.names)}' ;;"
        for verb, options in verbs.items()
    )
    values = []
    for verb, options in verbs.items():
        for option in options:
            if option.names and option.takes:
                made = {"words": f"-W '{' '.join(option.values)}'", "files": "-f", "folders": "-d"}
                how = made.get(option.takes, "-W ''")
                values.append(f'    {"|".join(f"{verb}:{n}" for n in option.names)}) how="{how}" ;;')
            elif not option.names and option.values:
                values.append(f"    {verb}:) how=\"-W '{' '.join(option.values)}'\" ;;")
    listed = "\n".join(values)
    return f"""_dftracer() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} before= words= how= word
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(verbs)} --help --version' -- "$cur"))
    return
  fi
  for word in "${{COMP_WORDS[@]:2:COMP_CWORD-2}}"; do
    if [ "$word" = -- ]; then
      COMPREPLY=($(compgen -c -- "$cur") $(compgen -f -- "$cur"))
      return
    fi
  done
  before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$cur" = = ]; then
    cur=
  elif [ "$before" = = ]; then
    before=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  case $before in -*) ;; *) before= ;; esac
  case ${{COMP_WORDS[1]}}:$before in
{listed}
  esac
  if [ -n "$how" ]; then
    eval "COMPREPLY=(\\$(compgen $how -- \\"\\$cur\\"))"
    return
  fi
  case ${{COMP_WORDS[1]}} in
{words}
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _dftracer dftracer"""


# --- What can be completed: the options of every verb, and the values they take

_FILES = {"FILE", "PATH", "RUN", "TOML", "TRACE"}
_FOLDERS = {"DIR", "DIRS", "DIRECTORY", "DIR|URL"}
# Duplicated here and compared with the recorder's by a test: importing the recorder would begin a session.
_CATEGORIES = ("compute", "data", "dataloader", "comm", "device", "checkpoint", "pipeline", "other")
_VALUES = {
    "--cat": (*_CATEGORIES, "POSIX", "STDIO"),
    "--name": (
        "forward",
        "backward",
        "step",
        "item",
        "preprocess",
        "fetch",
        "transfer",
        "all_reduce",
        "capture",
        "restart",
        "epoch",
        "train",
        "evaluate",
        "test",
        "open",
        "read",
        "write",
        "close",
    ),
    "--dask": ("local",),
    "--run": ("all",),
    "--traces": ("pfw", "et", "kineto", "nsys", "pfw,et,kineto", "pfw,nsys"),
    "--plugins": ("comms", "memory", "nvml", "comms,memory"),
}


class _Option(NamedTuple):
    """An option with its names (none: the verb's arguments), and what follows it."""

    names: tuple[str, ...]
    takes: str  # "" nothing, "words" some of `values`, "files", "folders", "value" anything else
    values: tuple[str, ...] = ()


def _verb_options() -> dict[str, list[_Option]]:
    """All options by verb, read from the parsers themselves."""
    parser = build_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {name: [_option(a) for a in sub._actions] for name, sub in verbs.choices.items()}


def _option(action: argparse.Action) -> _Option:
    names = tuple(sorted(action.option_strings, key=len, reverse=True))
    if action.nargs == 0:
        return _Option(names, "")
    values = tuple(map(str, action.choices)) if action.choices else _known(action)
    if values:
        return _Option(names, "words", values)
    kind = str(action.metavar or "")
    return _Option(names, "files" if kind in _FILES else "folders" if kind in _FOLDERS else "value")


def _known(action: argparse.Action) -> tuple[str, ...]:
    """Suggested values of options that also accept others."""
    return next((_VALUES[name] for name in action.option_strings if name in _VALUES), ())
