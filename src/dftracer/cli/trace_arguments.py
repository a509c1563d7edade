"""Arguments that many verbs share: which trace, which of its events, and where the output goes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dftracer.cli.main import CommandError
from dftracer.cli.outputs import check_output
from dftracer.format.trace_names import NoTraces, find_rows, find_traces, is_rows_name, is_trace_name
from dftracer.load.find import find_files, recover

if TYPE_CHECKING:
    from dftracer.load.process import ProcessInfo

_FILTERS = ("ranks", "pids", "cat", "name", "steps", "epochs", "time")


def add_paths(
    parser: argparse.ArgumentParser, what: str = "trace files or directories", newest: bool = False
) -> None:
    """`newest`: without a path the newest run is meant; `take_newest` finds it."""
    if newest:
        what += " (default: the newest run under traces/ or in the current directory)"
    parser.add_argument("paths", nargs="*" if newest else "+", metavar="PATH", help=what)


def add_search_roots(parser: argparse.ArgumentParser, what: str = "where to look") -> None:
    """Paths below which runs are looked for; `search_roots` returns them."""
    what += " (default: traces/, otherwise the current directory)"
    parser.add_argument("paths", nargs="*", metavar="PATH", help=what)


def search_roots(args: argparse.Namespace) -> list[str]:
    """Where to look for runs: the given paths, all of which must exist, or the usual directory."""
    for path in args.paths:
        if "://" not in path and not Path(path).exists():
            raise CommandError(f"{path} does not exist")
    return args.paths or ["traces" if Path("traces").is_dir() else "."]


def newest_folders(rows: bool = False) -> list[Path]:
    """The directories with traces under traces/, otherwise in and right below this one, the newest first.

    With `rows`, for verbs that make do with them, also directories in which only step rows are left.
    """
    here = Path("traces")
    found = find_traces([here]) if here.is_dir() else []
    found += find_rows([here]) if rows and here.is_dir() else []
    if not found:
        near = [p for pattern in ("*", "*/*") for p in Path().glob(pattern)]
        found = [str(p) for p in near if is_trace_name(p.name) or (rows and is_rows_name(p))]
    times: dict[Path, float] = {}
    for path in map(Path, found):
        times[path.parent] = max(times.get(path.parent, 0.0), path.stat().st_mtime)
    return sorted(times, key=lambda folder: (-times[folder], folder))


def take_newest(args: argparse.Namespace, rows: bool = False) -> None:
    """Fill in the newest run if no path is given, and say which it is; `rows` as for `newest_folders`."""
    if args.paths:
        return
    folders = newest_folders(rows)
    if not folders:
        raise CommandError(
            "no path given, and no trace is under traces/ or in the current directory;"
            " record one: dftracer run -- python train.py"
        )
    args.paths = [str(folders[0])]
    if not args.quiet:
        print(f"dftracer {args.verb}: the newest run, {folders[0]}", file=sys.stderr)


def recording_now(rows: bool = False) -> Path:
    """Where this user's programs are recording, otherwise the newest run; `rows` as for `newest_folders`."""
    from dftracer.live import running_directories

    found = running_directories()[:1] or newest_folders(rows)[:1]
    return found[0] if found else Path()


def span(text: str) -> tuple[int, int]:
    """`5`, `5:9`, `5:` or `:9`, both ends included."""
    low, colon, high = text.partition(":")
    try:
        first = int(low) if low else 0
        last = int(high) if high else ((1 << 62) if colon else first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or a range like 5:9") from None
    return first, last


def _numbers(text: str) -> list[int]:
    out: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            out += range(int(low), int(high) + 1) if dash else [int(low)]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers like 0,2,5-7") from None
    return out


def add_filters(parser: argparse.ArgumentParser) -> None:
    g = parser.add_argument_group("which events")
    g.add_argument("--ranks", type=_numbers, metavar="LIST", help="ranks, e.g. 0,2,5-7 (default: all)")
    g.add_argument("--pids", type=_numbers, metavar="LIST", help="process ids (default: all)")
    g.add_argument(
        "--cat", action="append", metavar="CATEGORY", help="a category, may be repeated (default: all)"
    )
    g.add_argument(
        "--name", action="append", metavar="NAME", help="an event name, may be repeated (default: all)"
    )
    g.add_argument(
        "--steps", type=span, metavar="FROM:TO", help="values of the `step` argument (default: all)"
    )
    g.add_argument(
        "--epochs", type=span, metavar="FROM:TO", help="values of the `epoch` argument (default: all)"
    )
    g.add_argument("--time", metavar="FROM:TO", help="seconds from the start of the trace (default: all)")


def filters(args: argparse.Namespace) -> dict[str, Any]:
    """The filter arguments of `Trace`, except the time, which needs the start of the trace."""
    return {
        "ranks": args.ranks,
        "pids": args.pids,
        "cats": args.cat,
        "names": args.name,
        "steps": args.steps,
        "epochs": args.epochs,
    }


def open_trace(args: argparse.Namespace, **more: Any) -> Any:
    """The trace the arguments mean, with their filters; traces of killed processes are completed first."""
    from dftracer.load import Trace

    wanted = {**filters(args), **more} if hasattr(args, "ranks") else more
    try:
        recover(args.paths)
        trace = Trace(args.paths, **wanted)
    except NoTraces as e:
        raise CommandError(str(e)) from None
    if getattr(args, "time", None):
        trace = trace.select(time=time_range(args, trace.processes))
    return trace


def open_processes(args: argparse.Namespace) -> list[ProcessInfo]:
    """The processes that wrote the files the arguments mean: for verbs that need no extra."""
    from dftracer.load.process import processes_of

    try:
        recover(args.paths)
        return processes_of(args.paths)
    except NoTraces as e:
        raise CommandError(str(e)) from None


def refuse_filters(args: argparse.Namespace, why: str) -> None:
    """For what cannot be filtered."""
    given = [f"--{name}" for name in _FILTERS if getattr(args, name, None) is not None]
    if given:
        raise CommandError(f"{', '.join(given)}: {why}")


def refuse_empty_selection(args: argparse.Namespace, trace: Any = None) -> None:
    """Nothing passed the filters: say so, and what could be selected."""
    given = [f"--{name.replace('_', '-')}" for name in _FILTERS if getattr(args, name, None) is not None]
    if not given:
        return
    problem = f"no event matches {' and '.join(given)}"
    known = sorted({p.rank for p in trace.processes if p.rank is not None}) if trace is not None else []
    if args.ranks is not None and known:
        problem += f"; ranks: {', '.join(map(str, known))}"
    raise CommandError(f"{problem}; `dftracer report` without filters shows what there is")


def time_range(args: argparse.Namespace, processes: Iterable[ProcessInfo]) -> tuple[int, int] | None:
    """The value of `--time`, in microseconds since the epoch; None if it is not given."""
    if not args.time:
        return None
    low, _, high = args.time.partition(":")
    try:
        first, last = float(low or 0), float(high) if high else 1e12
        base = min((p.start_us for p in processes if p.start_us is not None), default=0)
        return base + int(first * 1e6), base + int(last * 1e6)
    except (ValueError, OverflowError):
        raise CommandError(f"--time {args.time}: give seconds like 1.5:3") from None


def output_path(args: argparse.Namespace, default: str | os.PathLike[str]) -> Path:
    """Where to write: not to an input, and not over an existing file unless forced."""
    inputs = []
    if hasattr(args, "paths"):
        recover(args.paths)  # it may make the first of them
        inputs = find_files(args.paths)
    return check_output(Path(args.output or default), inputs, force=args.force)
