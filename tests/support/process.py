"""Run a program text in a fresh interpreter with the tracer's environment under control."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from .torch_programs import Task, fork_at_once
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
    forked: bool = False,
) -> Run:
    """Write `source` to a file below `base`, run it, check its exit status.

    `forked` from a process that has imported torch, which takes longer than most programs that need it.
    """
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
    environment = clean_environment(**{**settings, **(env or {})})
    if forked:
        assert not python_flags, "the process is there already"
        task = Task(script, cwd, environment, list(argv))
        code = fork_at_once([task])[0]
        printed = [task.output(stream).read_bytes() for stream in ("stdout", "stderr")]
    else:
        done = subprocess.run(
            [sys.executable, *python_flags, str(script), *argv],
            cwd=cwd,
            env=environment,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        code, printed = done.returncode, [done.stdout, done.stderr]
    out, err = (text.decode("utf-8", "replace") for text in printed)
    run = Run(code, out, err, cwd, traces)
    if expect is not None:
        assert run.returncode == expect, f"exit {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run
