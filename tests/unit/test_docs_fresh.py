"""Generated documentation is as its generator writes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_fresh() -> None:
    """The tables of docs/settings.md and docs/format.md agree with the code."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_page_of_findings_is_fresh() -> None:
    """docs/findings.md agrees with the catalogue and the thresholds."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate_findings.py"), "--check"],
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
