"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.process import PRELUDE, Run, run_program


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Run]:
    """Run a program text with tracing on; nothing is set up for it."""

    def run(source: str, **options: Any) -> Run:
        return run_program(tmp_path, source, **options)

    return run


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Run]:
    """Run a program text after `initialize_log`, with `ai`, `dft_fn`, `dftracer` and `log` at hand."""

    def run(source: str, **options: Any) -> Run:
        return run_program(tmp_path, source, prelude=PRELUDE, **options)

    return run
