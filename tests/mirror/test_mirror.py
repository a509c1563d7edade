"""A traced program is its own mirror image: what it prints, how it ends, what it writes, and what it holds.

Each program runs untraced, under `dftracer run`, `dftracer run --modules` and `dftracer collect`, in a new
directory each time, and says what it sees of itself (`programs/looking.py`). All four must say the same.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.process import clean_environment, recover

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(p.stem for p in PROGRAMS.glob("*.py") if p.stem != "looking")
# Where most went wrong before; the others are for `make test-all`.
ALWAYS = ("batches", "descriptor_games", "fork_in_step", "signal_handlers")
LAUNCHERS = {
    "untraced": [],
    "run": ["run", "-q", "-o", "TRACES", "--"],
    "run --modules": ["run", "-q", "--modules", "-o", "TRACES", "--"],
    "collect": ["collect", "-q", "-o", "TRACES", "--"],
}
# Names that random numbers are in, and how long something took.
_VARYING = re.compile(
    rb"\d{4}-\d\d-\d\d [\d:,]+|0x[0-9a-f]+|(?<=[:\[])\d{3,}(?=\])|socket:|pipe:"
    rb"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
# Files with times in them: that they are there is compared, not what is in them.
_DATED = ("own.json", ".pt2")


@dataclass
class Run:
    """What is left of a program that has ended."""

    code: int
    output: list[str]
    complained: str
    files: dict[str, str]


def run(name: str, how: str, place: Path) -> Run:
    work, traces = place / "work", place / "traces"
    work.mkdir(parents=True)
    launcher = [w.replace("TRACES", str(traces)) for w in LAUNCHERS[how]]
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    if launcher:
        command = [sys.executable, "-m", "dftracer.cli", *launcher, *command]
    env = clean_environment(
        PYTHONPATH="",
        PYTHONHASHSEED="0",
        PYTHONDONTWRITEBYTECODE="1",
        OMP_NUM_THREADS="1",
        HOME=str(place),
        TORCHINDUCTOR_CACHE_DIR=str(place / "cache"),
    )
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, timeout=300, check=False)
    text = _VARYING.sub(b"", done.stdout.replace(os.fsencode(work), b"WORK"))
    files = {}
    for file in sorted(p for p in work.rglob("*") if p.is_file()):
        dated = file.name.endswith(_DATED)
        content = "" if dated else hashlib.sha256(file.read_bytes()).hexdigest()
        files[str(file.relative_to(work))] = content
    # A program that a signal ended is told by its launcher as 128 + its number.
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Run(code, text.decode().splitlines(), done.stderr.decode()[-3000:], files)


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.mirror) for n in NAMES]
)
def test_a_traced_program_is_its_own_mirror_image(name: str, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        runs = dict(
            zip(LAUNCHERS, pool.map(lambda how: run(name, how, tmp_path / how), LAUNCHERS), strict=True)
        )
    alone = runs.pop("untraced")
    assert alone.output, alone.complained
    for how, traced in runs.items():
        difference = "\n".join(
            line[:2000]
            for line in difflib.unified_diff(alone.output, traced.output, "untraced", how, "", "", 0)
        )
        assert not difference, difference + traced.complained
        assert traced.code == alone.code, (how, traced.complained)
        assert traced.files == alone.files, how
        recover(tmp_path / how / "traces")  # of a program that a signal ended, as every reader does
        assert any((tmp_path / how / "traces").rglob("*")), "nothing was recorded"
