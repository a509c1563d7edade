"""Every program of docs/guide-ai.md runs by itself and records the events it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from docs.snippets import ROOT, Block, blocks_of
from support.process import clean_environment
from support.trace import read_directory

BLOCKS = blocks_of(ROOT / "docs" / "guide-ai.md")
PROGRAMS = [b for b in BLOCKS if b.language == "python"]
SAYS = [b for b in PROGRAMS if "# recorded: " in b.text]


def _said(block: Block) -> dict[tuple[str, ...], int]:
    parts = [part.split() for part in block.text.rpartition("# recorded: ")[2].strip().split(", ")]
    return {tuple(name.split("/", 1)): int(number) for number, name in parts}


def _traced(block: Block, folder: Path) -> Path:
    """Under `dftracer run`, as the page says."""
    program = folder / "block.py"
    program.write_text(block.text)
    command = [
        sys.executable,
        "-m",
        "dftracer.cli",
        "run",
        "-q",
        "--no-auto",
        "--no-io",
        "-o",
        "traces",
        "--",
    ]
    environment = clean_environment()
    done = subprocess.run(
        [*command, sys.executable, "block.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), block.text
    return folder / "traces"


@pytest.mark.parametrize("block", SAYS, ids=str)
def test_a_block_records_what_it_says(block: Block, tmp_path: Path) -> None:
    trace = read_directory(_traced(block, tmp_path))
    assert Counter((e.cat, e.name) for e in trace.events) == _said(block)


@pytest.mark.parametrize("block", [b for b in PROGRAMS if b not in SAYS], ids=str)
def test_the_block_that_names_its_trace(block: Block, tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(block.text)
    subprocess.run([sys.executable, "block.py"], cwd=tmp_path, env=clean_environment(), check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ai_trace.pfw.gz", "block.py"]
    assert [e.name for e in read_directory(tmp_path).events] == ["forward"]


def test_the_commands_that_count_events(tmp_path: Path) -> None:
    """The first block of the page, on the program below it that is simplest."""
    commands = next(b for b in BLOCKS if b.language == "sh")
    (tmp_path / "block.py").write_text(SAYS[0].text)
    environment = clean_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", commands.text],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "compute,forward,1" in done.stdout


def test_blocks_run_with_tracing_off(tmp_path: Path) -> None:
    """All of them in one process: nothing is written, nothing is said."""
    text = "\n".join(f"exec({block.text!r}, {{'__name__': '__main__'}})" for block in SAYS)
    (tmp_path / "all.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "all.py"], cwd=tmp_path, env=clean_environment(), capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")
    assert [p.name for p in tmp_path.iterdir()] == ["all.py"]


def test_records_look_as_printed(tmp_path: Path) -> None:
    """Written records have the keys of the printed ones, in their order, and the kinds of their values."""
    program = next(b for b in SAYS if "start(metadata=True)" in b.text)
    trace = read_directory(_traced(program, tmp_path))
    printed = [json.loads(line) for b in BLOCKS if b.language == "json" for line in _lines(b.text)]
    assert len(printed) == 3
    for model in printed:
        name = model["args"].get("name")
        written = next(r for r in trace.records if r.name == model["name"] and r.args.get("name") == name)
        assert list(written.raw) == list(model)
        assert list(written.args) == list(model["args"])
        for key, value in [*model.items(), *model["args"].items()]:
            found = written.args[key] if key in model["args"] and key != "name" else written.raw[key]
            assert type(found) is type(value), key


def _lines(text: str) -> list[str]:
    return re.sub(r"\n ", "", text).splitlines()
