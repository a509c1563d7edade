"""Jobs that hang or die, for real: torchrun, gloo, three ranks, a watch with little patience."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.process import clean_environment

PROGRAM = Path(__file__).with_name("hanging_job.py")
ODD = Path(__file__).with_name("odd_job.py")
RANKS = 3
PATIENCE_S = 240  # for a busy machine

ANNOTATED = Path(__file__).with_name("annotated_job.py")

__all__ = ["ANNOTATED", "ODD", "PROGRAM", "Job", "line_of"]


def line_of(case: str, program: Path = PROGRAM) -> int | None:
    """The line that is to blame."""
    lines = program.read_text().splitlines()
    return next((n for n, text in enumerate(lines, 1) if text.endswith(f"# here {case}")), None)


class Job:
    """`dftracer run -- torchrun ... hanging_job.py CASE`, in a folder of its own.

    Or a program that is annotated by hand, with two ranks, without `dftracer run`.
    """

    def __init__(
        self,
        folder: Path,
        case: str,
        hang_s: int = 5,
        program: Path = PROGRAM,
        cgroup: Path | None = None,
        restarts: int = 0,
    ) -> None:
        self.folder, self.traces, self.program = folder, folder / "traces", program
        by_hand = program == ANNOTATED
        recorder = [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(self.traces), "--"]
        recording = {"DFTRACER_ENABLE": "1", "DFTRACER_LOG_FILE": str(self.traces / "t")}
        os.mkfifo(folder / "pipe")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        # A job that is restarted at a port of its own finds the addresses of its first try there.
        meeting = (
            ["--standalone", "--max-restarts", str(restarts)] if restarts else ["--master-port", str(port)]
        )
        self._log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [
                *(() if by_hand else recorder),
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nproc-per-node", str(2 if by_hand else RANKS)),
                *(*meeting, "--log-dir", str(folder / "elastic"), str(program), case),
            ],
            cwd=folder,
            env=clean_environment(
                OMP_NUM_THREADS="1", DFTRACER_HANG_S=str(hang_s), **(recording if by_hand else {})
            ),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if cgroup is not None:  # before it has started anything
            (cgroup / "cgroup.procs").write_text(str(self.process.pid))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def hang_files(self) -> set[int]:
        return {int(p.stem.partition("_")[2]) for p in self.traces.glob("hang_?.json")}

    def wait(self, until: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline, f"{what}:\n{self.log[-3000:]}"
            time.sleep(0.2)

    def processes(self) -> Iterator[tuple[int, str, bytes]]:
        """Those that work in its folder: pid, the kernel's letter, command line."""
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    stat = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                    command = Path(entry.path, "cmdline").read_bytes()
                    cwd = os.readlink(f"{entry.path}/cwd")
                except OSError:
                    continue
                if cwd == str(self.folder):
                    yield int(entry.name), stat[0].decode(), command

    def states(self) -> dict[int, str]:
        """Of its ranks, by pid: the kernel's letter."""
        name = os.fsencode(self.program.name)
        return {p: s for p, s, c in self.processes() if name in c and b"torch.distributed" not in c}

    def judged(self, *more: str) -> tuple[int, dict[str, Any]]:
        """Exit code and answer of `dftracer postmortem --json`."""
        done = subprocess.run(
            [sys.executable, "-m", "dftracer.cli", "postmortem", str(self.traces), "--json", *more],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode in (0, 1, 2), done.stderr
        answer: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return done.returncode, answer

    def end(self) -> None:
        """Kill all that is left of it."""
        for pid, _, command in list(self.processes()):
            try:
                if b"torch.distributed" not in command:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()
