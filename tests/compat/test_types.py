"""Decorators and loops keep the types of what they are given, for both type checkers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "typed_program.py"
WRONG = """
from dftracer.python import ai, dft_fn

@dft_fn("c").log
def double(x: int) -> int:
    return 2 * x

double("text")
for item in ai.dataloader.fetch.iter([1]):
    item.upper()
"""


def _mypy(path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    # What torch's own sources look like to mypy is not the question, and takes half a minute.
    config = folder / "mypy.ini"
    config.write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(config)]
    cache = ["--cache-dir", str(folder / "cache")]
    whole = [*command, *cache, str(path)]
    return subprocess.run(whole, cwd=folder, capture_output=True, text=True, check=False)


def test_mypy_strict(tmp_path: Path) -> None:
    """No error in a right program, both errors of a wrong one."""
    done = _mypy(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    result = _mypy(wrong, tmp_path).stdout
    assert "wrong.py:8: error" in result
    assert "wrong.py:10: error" in result


def test_pyright(tmp_path: Path) -> None:
    """The same with pyright, where it can be run (it needs Node.js)."""
    if shutil.which("node") is None:
        pytest.skip("no Node.js on this machine")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    done = subprocess.run([*command, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        pytest.skip("pyright cannot be started here")
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    result = subprocess.run([*command, str(wrong)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "wrong.py:8:" in result.stdout
    assert "wrong.py:10:" in result.stdout
