"""`dftracer completion`."""

from __future__ import annotations

import argparse

from dftracer.cli.completing import Option, verb_options
from dftracer.cli.main import EXIT_OK

HELP = "Print the completion script for a shell."
EXAMPLE = """\
eval "$(dftracer completion bash)"
dftracer completion fish > ~/.config/fish/completions/dftracer.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="which shell")


def run(args: argparse.Namespace) -> int:
    verbs = verb_options()
    if args.shell == "fish":
        print("\n".join(_fish(verbs)))
        return EXIT_OK
    if args.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(_bash(verbs))
    return EXIT_OK


def _fish(verbs: dict[str, list[Option]]) -> list[str]:
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


def _bash(verbs: dict[str, list[Option]]) -> str:
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
