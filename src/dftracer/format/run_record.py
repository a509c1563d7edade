"""Which run a file belongs to, by the record near its start that says so; and how the run's program ended,
where only the one who started it knows.
"""

from __future__ import annotations

import gzip
import json
import signal
import zlib
from pathlib import Path
from typing import Any

__all__ = ["note_failure", "noted_failure", "run_of_file", "signal_name"]

_HEAD_LINES = 16  # it is the second record
_SHELL_SIGNALS = 128  # a shell's exit code for a program that a signal ended, plus the signal


def run_of_file(path: Path) -> str | None:
    """The run that a trace file names, if it does."""
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as file:
            for _ in range(_HEAD_LINES):
                line = file.readline(1 << 20)
                if b'"name":"run","cat":"dftracer"' in line:
                    return str(json.loads(line)["args"]["value"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError):
        return None
    return None


def note_failure(directory: Path, run: str, code: int) -> None:
    """Write down, beside its traces, the exit code that the program of a run failed with.

    A signal is its negative number, or what a shell makes of it.
    """
    sent = (
        signal_name(-code if code < 0 else code - _SHELL_SIGNALS) if not 0 <= code <= _SHELL_SIGNALS else None
    )
    told = {"run": run, "exit_code": None if sent else code, "signal": sent}
    try:
        (directory / _failure_file(run)).write_text(json.dumps(told) + "\n", encoding="utf-8")
    except OSError:  # a full disk: the traces have been written, and the program's own code is what counts
        return


def noted_failure(directory: Path, run: str) -> dict[str, Any] | None:
    """What `note_failure` wrote, if it did."""
    try:
        told = json.loads((directory / _failure_file(run)).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and told.get("run") == run else None


def signal_name(number: int) -> str | None:
    """`SIGKILL` for 9; None if there is no such signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _failure_file(run: str) -> str:
    return f"ended-{run}.json"
