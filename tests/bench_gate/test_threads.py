"""What `python -m bench.threads` exits with: two threads that annotate are held against an empty context manager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import threads

ROOT = Path(__file__).resolve().parents[2]
EMPTY = "empty Python context manager, one for each thread"
NODE = "`with` a node, one for each thread"


def test_less_growth_than_an_empty_manager_is_a_failure() -> None:
    assert threads.complaint({EMPTY: 1.9, NODE: 1.8}, locked=False) == ""
    assert "0.895" in threads.complaint({EMPTY: 1.9, NODE: 1.7}, locked=False)
    assert threads.complaint({EMPTY: 1.0, NODE: 0.5}, locked=True) == "", "only one thread runs at a time"


def test_the_exit_code_says_so() -> None:
    program = (
        "import sys; from bench import threads; threads._ROUNDS = 1;"
        "threads.complaint = lambda growth, locked: 'too slow' if len(growth) == 3 else '';"
        "sys.exit(threads.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith("too slow\n")
