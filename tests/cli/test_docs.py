"""The pages about analysis: every guide runs as written, and the references match the program."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.analyze import FINDING_IDS, STAGES, analyze
from dftracer.load.arrow import schema
from dftracer.load.synthetic import training_run
from dftracer.report import document

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [
    "guide-compare.md",
    "guide-input-bound.md",
    "guide-trace-training.md",
    "guide-workers.md",
    "guide-cluster.md",
    "guide-collect.md",
    "api-analysis.md",
    "guide-link-to-chakra.md",
]
_BLOCK = re.compile(r"^```(\w+)(?: file=(\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_runs_as_it_is_written(guide: str, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("python", ""), ("dftracer", "-m dftracer.cli ")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module}"$@"\n')
        (tools / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    env["PATH"] = f"{tools}{os.pathsep}{env['PATH']}"
    work = tmp_path / "work"
    work.mkdir()
    blocks = _BLOCK.findall((DOCS / guide).read_text(encoding="utf-8"))
    assert blocks
    for kind, file, text in blocks:
        if file:
            (work / file).write_text(text)
            continue
        if kind == "python":
            (work / "block.py").write_text(text)
        command = ["bash", "-ec", text] if kind == "bash" else [sys.executable, "block.py"]
        ran = subprocess.run(command, cwd=work, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{text}\n{ran.stdout}\n{ran.stderr}"


def test_the_reference_of_the_command_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == generator.page(), (
        "run: python docs/generate_cli.py"
    )


def test_every_column_of_events_is_documented() -> None:
    text = (DOCS / "api-analysis.md").read_text(encoding="utf-8")
    assert [c for c in schema().names if f"`{c}`" not in text] == []


def test_every_key_of_the_report_is_documented(tmp_path: Path) -> None:
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    told = document(analyze(training_run(tmp_path, events=3000).directory))
    keys = {
        *told,
        *told["trace"],
        *told["ledger"],
        *told["findings"][0],
        *told["names"][0],
        *told["files"][0],
    }
    keys |= {*told["files"][0], *told["workers"][0], *told["ledger"]["steps"][0], *STAGES, *FINDING_IDS}
    missing = sorted(k for k in keys if not re.search(rf"\b{k}\b", text))
    assert missing == []
