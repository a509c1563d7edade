"""A Python without the interpreter lock: nothing switches it on again, and threads record at the same time.

Such a Python has to have the package installed: `DFTRACER_TEST_FREE_THREADED` names it, or it runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.process import clean_environment

PROGRAM = Path(__file__).parent.parent / "support" / "free_threaded_program.py"


@pytest.fixture
def free_threaded() -> str:
    if named := os.environ.get("DFTRACER_TEST_FREE_THREADED"):
        return named
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("needs a free-threaded Python with the package: name it in DFTRACER_TEST_FREE_THREADED")
    return sys.executable


def test_threads_record_at_once_without_the_interpreter_lock(free_threaded: str, tmp_path: Path) -> None:
    environment = clean_environment() | {
        "DFTRACER_ENABLE": "1",
        "DFTRACER_RING_SIZE": str(16 << 20),
    }
    environment.pop("PYTHON_GIL", None)
    done = subprocess.run(
        [free_threaded, "-W", "error", PROGRAM, tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"
    assert "global interpreter lock" not in done.stderr
