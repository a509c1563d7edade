"""On a CUDA device: phases have their device time, and captures of graphs are left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import clean_environment

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


def test_device_events() -> None:
    program = Path(__file__).parent / "device_events_program.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert {name: result for name, result in found.items() if result is not True} == {}
