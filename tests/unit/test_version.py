"""One version, stated in pyproject.toml, above that of the distributions whose import name we take."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import dftracer
from support.process import clean_environment

ROOT = Path(__file__).parents[2]


def test_one_source() -> None:
    """The module, the installed metadata and pyproject.toml say the same."""
    stated = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert stated is not None
    assert dftracer.__version__ == importlib.metadata.version("pydftracer") == stated.group(1)


def test_annotating_does_not_look_for_it() -> None:
    """Neither importlib.metadata nor the file with the version is read by a program that only annotates."""
    code = "import sys, dftracer.python; print([m for m in sys.modules if m in sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", code, "importlib.metadata", "dftracer._version"],
        env=clean_environment(DFTRACER_ENABLE="0"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def _wheel(house: Path, version: str) -> None:
    info = f"pydftracer-{version}.dist-info"
    with zipfile.ZipFile(house / f"pydftracer-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: pydftracer\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_wins_in_a_wheel_house(tmp_path: Path) -> None:
    """Where the last public 2.x lies beside ours, pip takes ours."""
    for version in ("2.0.6", "2.99.0", dftracer.__version__):
        _wheel(tmp_path, version)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-index", "--find-links", str(tmp_path)]
    done = subprocess.run(
        [*pip, "-d", str(tmp_path / "taken"), "pydftracer"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "taken").iterdir()] == [
        f"pydftracer-{dftracer.__version__}-py3-none-any.whl"
    ]
