"""The guide to testing annotated code runs as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide-testing.md"


def test_the_guide_runs_as_written(tmp_path: Path) -> None:
    """Every block, in a process of its own, without any setting."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        command = [sys.executable, "-c", block]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
    assert list(tmp_path.iterdir()) == []
