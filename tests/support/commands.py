"""Commands that read traces, run in the process of the test: starting one takes longer than most of them."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dftracer.cli import main

from .process import clean_environment

__all__ = ["dftracer", "json_of"]


@contextlib.contextmanager
def _as_a_program(cwd: Path | None, settings: dict[str, str]) -> Iterator[None]:
    """What belongs to a process is as it was afterwards."""
    environment, threshold = dict(os.environ), gc.get_threshold()
    os.environ.clear()
    os.environ.update(clean_environment(**settings))
    try:
        with contextlib.chdir(cwd or Path.cwd()):
            yield
    finally:
        gc.set_threshold(*threshold)
        os.environ.clear()
        os.environ.update(environment)


def dftracer(
    *words: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`dftracer WORDS`, its output no terminal's. What starts programs or servers needs a process of its own."""
    printed = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, "utf-8", write_through=True) for each in printed)
    command = [str(word) for word in words]
    with _as_a_program(cwd, env or {}), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: Any = main(command)
        except SystemExit as e:
            code = e.code
    stdout, stderr = (each.getvalue().decode() for each in printed)
    return subprocess.CompletedProcess(command, int(code or 0), stdout, stderr)


def json_of(*words: object, cwd: Path | None = None) -> Any:
    """What `dftracer WORDS --json` answers."""
    done = dftracer(*words, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
