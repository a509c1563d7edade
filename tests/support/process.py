"""Run a program text in a fresh interpreter with the tracer's environment under control."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from .trace import Record, Trace, read_directory

__all__ = ["LAUNCHERS", "PRELUDE", "Run", "clean_environment", "recover", "run_program"]

PRELUDE = """\
from dftracer.python import ai, dft_fn, dftracer
log = dftracer.initialize_log(None, None, -1)
"""

# Beginnings of the names by which launchers of jobs tell a process its place: a test may itself run in a job.
LAUNCHERS = (
    "FLUX_",
    "GROUP_",
    "JSM_",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "LSB_",
    "MASTER_",
    "MPI",
    "MV2_",
    "OMPI_",
    "PALS_",
    "PMI",
    "RANK",
    "ROLE_",
    "SLURM_",
    "TORCHELASTIC_",
    "WORLD_SIZE",
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished program and the folders it could write to."""

    returncode: int
    stdout: str
    stderr: str
    cwd: Path
    trace_dir: Path

    @property
    def trace(self) -> Trace:
        """What it wrote, read strictly."""
        return read_directory(self.trace_dir)

    def one(self, name: str) -> Record:
        """The only event of this name."""
        return self.trace.one(name)

    @property
    def written(self) -> list[str]:
        """Every file below the working and the trace directory."""
        return sorted(
            str(p.relative_to(self.cwd.parent))
            for folder in (self.cwd, self.trace_dir)
            for p in folder.rglob("*")
            if p.is_file()
        )


def clean_environment(**settings: str | None) -> dict[str, str]:
    """The environment less what the tracer reads and a terminal's size, plus `settings` (None removes)."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("DFTRACER_", "COV_", "PYTEST_", *LAUNCHERS))
        and k not in {"COLUMNS", "LINES", "LD_PRELOAD"}
    }
    for key, value in settings.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env


def recover(directory: Path) -> None:
    """Complete the traces of dead processes in a directory, as every reader does first."""
    code = "import sys; from dftracer import _core; _core.recover(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(directory)], check=True, env=clean_environment())


def _default_signals() -> None:
    """A job in the background of a shell inherits these as ignored."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def run_program(
    base: Path,
    source: str,
    *,
    enable: bool = True,
    env: dict[str, str | None] | None = None,
    prelude: str = "",
    expect: int | None = 0,
    timeout: float = 120,
    argv: tuple[str, ...] = (),
    python_flags: tuple[str, ...] = (),
) -> Run:
    """Write `source` to a file below `base`, run it, check its exit status."""
    cwd, traces, scripts = base / "cwd", base / "traces", base / "scripts"
    for folder in (cwd, traces, scripts):
        folder.mkdir(parents=True, exist_ok=True)
    script = scripts / "program.py"
    script.write_text(prelude + textwrap.dedent(source), encoding="utf-8", errors="surrogatepass")
    # What the program annotates, and nothing else: I/O and counters have tests of their own.
    settings: dict[str, str | None] = {
        "DFTRACER_LOG_FILE": str(traces / "t"),
        "DFTRACER_DISABLE_IO": "1",
        "DFTRACER_COUNTER_MS": "0",
    }
    if enable:
        settings["DFTRACER_ENABLE"] = "1"
    done = subprocess.run(
        [sys.executable, *python_flags, str(script), *argv],
        cwd=cwd,
        env=clean_environment(**{**settings, **(env or {})}),
        capture_output=True,
        timeout=timeout,
        check=False,
        preexec_fn=_default_signals,
    )
    run = Run(
        done.returncode,
        done.stdout.decode("utf-8", "replace"),
        done.stderr.decode("utf-8", "replace"),
        cwd,
        traces,
    )
    if expect is not None:
        assert run.returncode == expect, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run
