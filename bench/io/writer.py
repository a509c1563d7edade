"""python -m bench.io.writer: instructions for an event of the loop, in its thread and in the writer's, by callgrind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.instructions import Unavailable, find_valgrind
from bench.io.loop import build, own_library

__all__ = ["Cost", "count"]

_ROUNDS = (4_000, 16_000)
_EVENTS_A_ROUND = 3  # open, pread, close
_CALLER, _WRITER = 1, 2  # threads in the order of their start


class Cost(NamedTuple):
    """Instructions for an event."""

    call: float  # that an intercepted call takes more than one that is not
    writer: float


def _instructions(program: Path, file: Path, rounds: int, *, traced: bool) -> dict[int, int]:
    """Of each thread, in one run that loses nothing."""
    valgrind = find_valgrind()
    with tempfile.TemporaryDirectory() as folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        ours = {
            "LD_PRELOAD": own_library(),
            "DFTRACER_ENABLE": "1",
            "DFTRACER_INIT": "PRELOAD",
            "DFTRACER_DATA_DIR": str(file.parent),
            "DFTRACER_LOG_FILE": f"{folder}/t",
            "DFTRACER_MAX_STALL_US": "60000000",
            # Few tails in between, which the clock decides about: mostly full members.
            "DFTRACER_FLUSH_MS": "1000",
        }
        count_threads = ["--quiet", "--tool=callgrind", "--separate-threads=yes", "--fair-sched=try"]
        command = [valgrind, *count_threads, f"--callgrind-out-file={folder}/count"]
        command += [str(program), str(file), str(rounds), "1", "0"]
        subprocess.run(
            command, env=clean | (ours if traced else {}), check=True, capture_output=True, timeout=240
        )
        found = {}
        for dump in Path(folder).glob("count-*"):
            text = dump.read_text()
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            thread = re.search(r"^thread: (\d+)$", text[:2000], re.MULTILINE)
            if total and thread:
                found[int(thread[1])] = int(total[1])
    if _CALLER not in found or (traced and _WRITER not in found):
        raise Unavailable("callgrind wrote no dump for a thread")
    return found


def count() -> Cost:
    """The difference of two lengths drops what does not grow with them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        program, file = build(Path(folder)), Path(folder) / "data.bin"
        file.write_bytes(bytes(65536))
        bare, traced = (
            [_instructions(program, file, rounds, traced=how) for rounds in _ROUNDS] for how in (False, True)
        )

    events = _EVENTS_A_ROUND * (_ROUNDS[1] - _ROUNDS[0])

    def grown(runs: list[dict[int, int]], thread: int) -> float:
        return (runs[1][thread] - runs[0][thread]) / events

    return Cost(grown(traced, _CALLER) - grown(bare, _CALLER), grown(traced, _WRITER))


if __name__ == "__main__":
    cost = count()
    sys.stdout.write(
        f"{cost.call:.0f} instructions of a call, {cost.writer:.0f} of the writer, for an event\n"
    )
