"""Real traces, recorded once: two ranks of a data-parallel training over gloo, and one window of an H200."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from support.process import clean_environment
from support.torch_programs import Task, fork_at_once

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "link" / "ddp_program.py"
_SHARED = ROOT.parent / "shared" / "data" / "h200"
_COPY = ROOT / "tests" / "data" / "h200"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def record(out: Path, *more: str) -> Path:
    """Run the program as two ranks into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    port = str(free_port())
    ranks = [
        Task(
            PROGRAM,
            out,
            clean_environment(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank)),
            [str(out), str(rank), "2", port, *more],
            f"-rank{rank}",
        )
        for rank in range(2)
    ]
    codes = fork_at_once(ranks)
    assert codes == [0, 0], [rank.output("stderr").read_text() for rank in ranks]
    return out


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, two steps in the window. Not to be changed: copy it."""
    return record(tmp_path_factory.mktemp("ddp") / "out", "--layers", "2")


@pytest.fixture
def ddp(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the recorded directory."""
    return Path(shutil.copytree(recorded, tmp_path / "out"))


@pytest.fixture(scope="session")
def h200() -> Path:
    """The pair of files recorded on an H200."""
    return _COPY if _COPY.is_dir() else _SHARED
