"""Instructions for an event that is read, and for one that is reported, counted by callgrind over all threads.

    python -m bench.analyze.instructions

Two traces of different lengths: their difference drops what does not grow with them. What is imported and
made once has been before counting begins.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.instructions import ROOT, Unavailable, begin_counting, find_valgrind

__all__ = ["WORK", "count"]

_EVENTS = (10_000, 30_000)
_WARM_UP = 2_000


def _read(directory: Path) -> None:
    from dftracer.load._scan import Scanner  # noqa: PLC0415

    for file in directory.glob("*.pfw.gz"):
        for _ in Scanner(file, 1, 8 << 20):
            pass


def _report(directory: Path) -> None:
    from dftracer.cli.main import main  # noqa: PLC0415

    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["report", str(directory), "--json", "-q"]) == 0


WORK = {"read": _read, "report": _report}


def _program(work: Callable[[Path], None], folder: Path) -> None:
    """Runs under callgrind: what is counted lies between two calls of `getloadavg`."""
    work(folder / str(_WARM_UP))
    begin_counting()
    for events in _EVENTS:
        os.getloadavg()
        work(folder / str(events))
    os.getloadavg()


def count(python: Path, work: str) -> float:
    """One process does this work on traces of two lengths."""
    valgrind = find_valgrind()
    from dftracer.testing.synthetic import training_run  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        folder = Path(name)
        made = [training_run(folder / str(events), events=events).events for events in (_WARM_UP, *_EVENTS)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        one_thread = {"POLARS_MAX_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)}
        dumps = ["--dump-before=getloadavg", f"--callgrind-out-file={folder / 'callgrind'}"]
        command = [valgrind, "--quiet", "--tool=callgrind", "--instr-atstart=no", "--fair-sched=try", *dumps]
        command += [str(python), "-m", "bench.analyze.instructions", work, name]
        done = subprocess.run(
            command,
            env=clean | one_thread,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
        totals = []
        for section in (2, 3):  # what came before the first call was not counted
            dump = folder / f"callgrind.{section}"
            total = (
                re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
                if dump.is_file()
                else None
            )
            if total is None:
                raise Unavailable("callgrind wrote no dump for a section: getloadavg was not recognised")
            totals.append(int(total[1]))
    return (totals[1] - totals[0]) / (made[2] - made[1])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _program(WORK[sys.argv[1]], Path(sys.argv[2]))
    else:
        for work in WORK:
            sys.stdout.write(f"{count(Path(sys.executable), work):.0f} instructions to {work} an event\n")
