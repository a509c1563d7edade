"""On a CUDA device: plain programs whose truth is known, and what the report says of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


def test_zero_cases(tmp_path: Path) -> None:
    """The table says which case is not as it should be, and in what."""
    done = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("zero_cases.py"),
            "--out",
            tmp_path,
            "--no-cost",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
