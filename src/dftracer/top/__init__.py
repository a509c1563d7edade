"""TOP: the last seconds of a run on a terminal, printed once, or renewed every second until a key ends it."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dftracer._console import safe_console
from dftracer._packages import need
from dftracer._text import Column, bytes_text, counted, plural, print_table, seconds_text, shortened
from dftracer.report.contents import COLOURS
from dftracer.report.snapshot import RankRow, Snapshot

if TYPE_CHECKING:
    from rich.console import Console

# --- A snapshot on a terminal


_RANKS = (
    Column("rank", right=True),
    Column("pid", right=True, drop=1),
    Column("state", whole=True),
    Column("step", right=True, drop=2),
    Column("steps/s", right=True),
    Column("median", right=True),
    Column("wait", right=True),
    Column("device", right=True, drop=3),
    Column("last steps", whole=True, drop=4),
)
_FILES = (
    Column("hottest files", lead=True, tail=True),
    Column("calls", right=True, drop=1),
    Column("read", right=True),
    Column("written", right=True),
    Column("time", right=True),
)
_MAX_RANKS = 32
_SILENT_S = 5.0
_BAR = 24


def print_snapshot(snapshot: Snapshot, con: Console | None = None, hint: str = "") -> None:
    """The whole snapshot, as wide as the console."""
    con = con or safe_console()
    text = need("rich.text").Text
    states = ", ".join(f"{n} {state}" for state, n in sorted(snapshot.processes.items()))
    title = text("dftracer top", style="bold")
    title.append(f"  {_moment(snapshot.time_us)}  ·  last {snapshot.seconds:.0f} s  ·  ", style="not bold")
    title.append(f"{plural(sum(snapshot.processes.values()), 'process', 'processes')}: {states}")
    con.print(title)
    if hint:  # at the top: a small terminal cuts off what is below
        con.print(text(hint, style="dim"))
    if snapshot.command:
        con.print(text(shortened(snapshot.command, con.width - 1), style="dim"))
    con.print(text(_rates(snapshot)))
    for what, words in snapshot.machine:
        line = text(f"{what}  ", style="dim")
        line.append(words, style="not dim")
        con.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=False)
    if snapshot.events is None:
        con.print(text("the traces are gone; this is from the step rows", style="dim"))
    if snapshot.dropped or snapshot.refusing:
        con.print(text(_losses(snapshot), style="bold red"))
    if snapshot.ranks:
        rows = [_rank(row, min(_BAR, con.width - 42)) for row in snapshot.ranks[:_MAX_RANKS]]
        kept = [i for i, c in enumerate(_RANKS) if not _is_empty(c.name, [row[i] for row in rows])]
        columns = [_RANKS[i] for i in kept]
        print_table(
            con, plural(len(snapshot.ranks), "rank"), columns, [[row[i] for i in kept] for row in rows]
        )
        con.print(_legend(snapshot, text))
    else:
        con.print(text("no rank has completed a step in this time", style="dim"))
    if snapshot.files:
        print_table(con, "Input and output", _FILES, [_file(row) for row in snapshot.files])
    if snapshot.verdict:
        con.print()
        con.print(text(snapshot.verdict, style="bold"))


def snapshot_text(snapshot: Snapshot, width: int, colour: bool = True, hint: str = "") -> Any:
    """The snapshot as one rich Text, for a live display."""
    out = io.StringIO()
    con = safe_console(
        file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    print_snapshot(snapshot, con, hint)
    return need("rich.text").Text.from_ansi(out.getvalue())


def _moment(us: int) -> str:
    try:
        return datetime.fromtimestamp(us / 1e6).astimezone().strftime("%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a damaged record: no calendar goes that far
        return "?"


def _rates(snapshot: Snapshot) -> str:
    samples = (
        "samples/s not annotated"
        if snapshot.samples_per_s is None
        else f"{snapshot.samples_per_s:.1f} samples/s"
    )
    parts = [
        f"{snapshot.steps_per_s:.2f} steps/s",
        samples,
        f"read {bytes_text(snapshot.read_bytes_per_s)}/s",
        f"written {bytes_text(snapshot.write_bytes_per_s)}/s",
    ]
    if snapshot.io_calls_per_s is not None:
        parts.append(f"{snapshot.io_calls_per_s:.0f} calls/s")
    if snapshot.events is not None:
        parts.append(counted(snapshot.events, "event"))
    if snapshot.dropped is not None:
        parts.append(f"{plural(snapshot.dropped, 'event')} dropped")
    return "  ·  ".join(parts)


def _losses(snapshot: Snapshot) -> str:
    losses = []
    if snapshot.dropped:
        losses.append(f"{plural(snapshot.dropped, 'event')} dropped so far: this trace has gaps")
    if snapshot.refusing:
        losses.append(f"the disk rejects writes to {', '.join(snapshot.refusing)}")
    return "; ".join(losses)


def _is_empty(name: str, cells: list[Any]) -> bool:
    """A column without data: the program does not number its steps, or has no device."""
    return name in ("step", "device") and all(cell == "-" for cell in cells)


def _rank(row: RankRow, room: int) -> list[Any]:
    text = need("rich.text").Text
    bar = text()
    for stage, share in row.stages.items():
        bar.append("█" * round(room * share), style=COLOURS[stage])
    state = row.state
    if row.silent_s >= _SILENT_S and row.state == "running":
        state += f", silent {seconds_text(row.silent_s)}"
    return [
        str(row.rank),
        str(row.pid),
        state,
        "-" if row.last_step is None else str(row.last_step),
        f"{row.steps_per_s:.2f}",
        "-" if row.step_s is None else seconds_text(row.step_s),
        "-" if row.loader_wait is None else f"{100 * row.loader_wait:.0f} %",
        "-" if row.device_busy is None else f"{100 * row.device_busy:.0f} %",
        bar,
    ]


def _legend(snapshot: Snapshot, text: Any) -> Any:
    """Which colour means which stage, with its share of the slowest rank's last steps."""
    line = text()
    most = max(snapshot.ranks, key=lambda r: r.step_s or 0.0)
    for stage, share in most.stages.items():
        if share >= 0.005:
            line.append("█ ", style=COLOURS[stage])
            line.append(f"{stage.replace('_', ' ')} {100 * share:.0f} %   ")
    return line


def _file(row: dict[str, Any]) -> list[str]:
    return [
        row["path"],
        str(row["ops"]),
        bytes_text(row["read_bytes"]),
        bytes_text(row["write_bytes"]),
        seconds_text(row["time_s"]),
    ]


# --- The live screen: one snapshot per second, and a few keys


_HINT = "q quits, p pauses"
_PAUSED = "paused: p resumes, q quits"


def run_screen(take: Callable[[], Snapshot], interval: float) -> None:
    """Show snapshots until `q` or Ctrl-C."""
    with contextlib.suppress(OSError):  # not every system lets it
        os.nice(19)  # the job comes first
    console = safe_console()
    live = need("rich.live")
    paused = False
    with _keys() as key, live.Live(console=console, screen=True, auto_refresh=False) as screen:
        snapshot = take()
        while True:
            hint = _PAUSED if paused else _HINT
            screen.update(snapshot_text(snapshot, console.width, hint=hint), refresh=True)
            pressed = key(interval)
            if pressed in ("q", "\x03", "\x1b"):
                return
            if pressed == "p":
                paused = not paused
            elif not paused:
                snapshot = take()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key up to a timeout; '' if none was pressed."""
    if not sys.stdin.isatty():

        def sleep(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return os.read(descriptor, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
