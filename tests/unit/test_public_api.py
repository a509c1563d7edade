"""The public surface is frozen: what a user may import is in a checked-in list, and nothing else."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
FILE = Path(__file__).parent / "public_api.json"
FROZEN: dict[str, Any] = json.loads(FILE.read_text())

SCRIPT = Path(__file__).parent / "public_surface.py"


def _surface(enable: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=clean_environment(DFTRACER_ENABLE=enable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    surface: dict[str, Any] = json.loads(done.stdout)
    return surface


@pytest.fixture(scope="module", params=["1", "0"], ids=["on", "off"])
def surface(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What there is, with tracing on and with tracing off."""
    return _surface(request.param)


@pytest.mark.parametrize("kind", ["modules", "members", "signatures"])
def test_frozen(kind: str, surface: dict[str, Any]) -> None:
    """Modules with their `__all__`, classes with their members, parameters with their defaults."""
    found, frozen = surface[kind], FROZEN[kind]
    wrong = [n for n in sorted({*found, *frozen}) if found.get(n) != frozen.get(n)]
    assert not wrong, (
        f"{', '.join(wrong)}: the public surface changed. If that is meant, say so in CHANGELOG.md and run"
        f" `python {SCRIPT.relative_to(Path(__file__).parents[2])} > {FILE.name}`:"
        f" { {n: (frozen.get(n), found.get(n)) for n in wrong} }"
    )


IMPORT = re.compile(r"^\s*from (dftracer[\w.]*) import ([\w, ]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_import_only_what_is_public(page: Path) -> None:
    """What the documentation and the examples import is frozen too."""
    for module, names in IMPORT.findall(page.read_text()):
        if module.startswith("dftracer.cli"):
            continue
        for name in filter(None, (n.strip().split(" as ")[0] for n in names.split(","))):
            submodule = f"{module}.{name}" in FROZEN["modules"]
            assert submodule or name in FROZEN["modules"].get(module, []), f"{module}.{name}"


def test_package_has_type_information() -> None:
    """Users' type checkers see the types."""
    package = Path(str(importlib.import_module("dftracer").__path__[0]))
    assert (package / "py.typed").is_file()
    assert (package / "_core.pyi").is_file()
