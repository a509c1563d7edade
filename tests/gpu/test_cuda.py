"""On a CUDA device: kernels, copies and device times in the trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment

torch = pytest.importorskip("torch")

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)


@pytest.fixture(scope="module")
def checks() -> dict[str, Any]:
    program = Path(__file__).parent / "cuda_program.py"
    environment = clean_environment()
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "name",
    [
        "check_counts",
        "check_launches",
        "check_lanes",
        "check_times",
        "check_device_numbers",
        "check_operations",
        "check_device_time_of_graphs",
        "results equal eager",
    ],
)
def test_cuda(checks: dict[str, Any], name: str) -> None:
    assert checks[name] is True, checks[name]
