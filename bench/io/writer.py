"""python -m bench.io.writer: instructions of the writer thread for an event of the loop, by callgrind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.instructions import Unavailable
from bench.io.loop import build, own_library

__all__ = ["count"]

_ROUNDS = (4_000, 16_000)
_EVENTS_A_ROUND = 3  # open, pread, close
_WRITER = "\nthread: 2\n"


def _instructions(program: Path, file: Path, rounds: int) -> int:
    """Of the writer thread, in one run that loses nothing."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Unavailable("valgrind is not installed")
    with tempfile.TemporaryDirectory() as folder:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        traced = {
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
        subprocess.run(command, env={**clean, **traced}, check=True, capture_output=True, timeout=240)
        for dump in Path(folder).glob("count-*"):
            text = dump.read_text()
            total = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
            if total and _WRITER in text[:2000]:
                return int(total[1])
    raise Unavailable("callgrind wrote no dump for the writer thread")


def count() -> float:
    """The difference of two lengths drops what does not grow with them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        program, file = build(Path(folder)), Path(folder) / "data.bin"
        file.write_bytes(bytes(65536))
        short, long = (_instructions(program, file, rounds) for rounds in _ROUNDS)
    return (long - short) / (_EVENTS_A_ROUND * (_ROUNDS[1] - _ROUNDS[0]))


if __name__ == "__main__":
    sys.stdout.write(f"{count():.0f} instructions of the writer for an event\n")
