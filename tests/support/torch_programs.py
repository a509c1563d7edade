"""Programs are run in processes of their own, as users run them; tests read the trace they leave."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Events = list[dict[str, Any]]
RunProgram = Callable[..., "Run"]

__all__ = ["Events", "Run", "RunProgram", "program_runner"]


class Run:
    """What a program left behind."""

    def __init__(self, directory: Path, process: subprocess.CompletedProcess[str]) -> None:
        self.directory = directory
        self.stdout = process.stdout
        self.stderr = process.stderr

    @property
    def records(self) -> Events:
        found: Events = []
        for path in sorted(self.directory.glob("*.pfw*")):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for line in data.decode().splitlines():
                if line not in ("[", "]", ""):
                    found.append(json.loads(line))
        return found

    @property
    def events(self) -> Events:
        return [record for record in self.records if record["ph"] == "X"]

    def of(self, category: str) -> Events:
        return [event for event in self.events if event["cat"] == category]

    @property
    def result(self) -> Any:
        """What the program printed last, as JSON."""
        return json.loads(self.stdout.strip().splitlines()[-1])


def program_runner(tmp_path_factory: pytest.TempPathFactory) -> RunProgram:
    """Runs program texts in fresh directories, with tracing on unless told otherwise."""

    def run(code: str, *, enable: bool = True, env: dict[str, str] | None = None, check: bool = True) -> Run:
        directory = tmp_path_factory.mktemp("program")
        program = directory / "program.py"
        program.write_text(textwrap.dedent(code))
        process = subprocess.run(
            [sys.executable, str(program)],
            cwd=directory,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")},
                "DFTRACER_ENABLE": "1" if enable else "0",
                "DFTRACER_DISABLE_IO": "1",
                "OMP_NUM_THREADS": "1",
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert not check or process.returncode == 0, process.stderr[-4000:]
        return Run(directory, process)

    return run
