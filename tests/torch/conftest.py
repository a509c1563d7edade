"""Programs run in processes of their own, as users run them; tests read the trace they leave."""

from __future__ import annotations

import pytest

from support.torch_programs import RunProgram, program_runner

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> RunProgram:
    return program_runner(tmp_path_factory)
