"""`dftracer completion`."""

from __future__ import annotations

import argparse

from dftracer.cli.main import EXIT_OK, build_parser

HELP = "Print the completion script of a shell."
EXAMPLE = 'eval "$(dftracer completion bash)"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _options() -> dict[str, list[str]]:
    parser = build_parser()
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: sorted(o for a in sub._actions for o in a.option_strings if o.startswith("--"))
        for name, sub in verbs.choices.items()
    }


def run(args: argparse.Namespace) -> int:
    verbs = _options()
    if args.shell == "fish":
        print(f"complete -c dftracer -n __fish_use_subcommand -a '{' '.join(verbs)}'")
        for verb, options in verbs.items():
            for o in options:
                print(
                    f"complete -c dftracer -n '__fish_seen_subcommand_from {verb}' -l {o.removeprefix('--')}"
                )
        return EXIT_OK
    cases = "\n".join(f"    {verb}) words='{' '.join(options)}' ;;" for verb, options in verbs.items())
    if args.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(f"""_dftracer() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} words=
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(verbs)} --help --version' -- "$cur"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $cur in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _dftracer dftracer""")
    return EXIT_OK
