"""The code blocks of the documentation, and how a reader would run them.

A block is run unless the line before it says why not: `<!-- not run: needs a GPU -->`. All blocks of a page
share one directory and are run in their order, each in a process of its own:

- `python`: a program; with `title="train.py"` a file that later blocks use.
- `sh`: commands; what they export holds for the blocks below.
- `console`: commands behind `$ `, and what they print. A line `...` stands for any lines.

Other blocks (`text`, `json`, …) are not run. Where a page has no
`train.py` of its own, ours stands for the reader's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from support.process import clean_environment

__all__ = ["ROOT", "Block", "Page", "blocks_of", "run_page"]

ROOT = Path(__file__).resolve().parents[2]
RUNNABLE = ("python", "sh", "bash", "console")
LIMIT_S = 240
READERS_PROGRAM = Path(__file__).with_name("train.py")

_FENCE = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)(?P<ticks>```+) ?(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
_EXPORT = re.compile(r"^export (\w+)=(\S*)", re.MULTILINE)
# A report says so instead of some of the advice that a page shows.
_BUSY = "The machine was busy with something else"
_OF_THE_COMMAND = ("dftracer", "next:")
_NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?: \d{3})*")
_UNIT = re.compile(r"(?<=0) ?(?:ns|us|ms|s|min|%|B|[kKMG]i?B|MB/s)(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block as the page prints it."""

    page: str
    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None

    @property
    def runnable(self) -> bool:
        return self.language in RUNNABLE and self.not_run is None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    """Where the blocks of a page run."""

    folder: Path
    environment: dict[str, str]


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a page."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        info, indent = match["info"], match["indent"]
        title = re.search(r'title="([^"]+)"', info)
        body = re.sub(rf"^{indent}", "", match["text"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("ticks")) + 1
        language = info.split(" ")[0]
        found.append(Block(path.name, line, language, title and title[1], body, match["reason"]))
    return found


def run_page(path: Path, folder: Path) -> None:
    """Run the blocks of a page as a reader would, from top to bottom."""
    environment = clean_environment()
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["NO_COLOR"] = "1"
    environment["OMP_NUM_THREADS"] = (
        "1"  # threads that spin for each other on a busy machine are not what is shown
    )
    page = Page(folder, environment)
    shutil.copy(READERS_PROGRAM, folder / "train.py")
    for block in blocks_of(path):
        if not block.runnable:
            continue
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            _run_console(block, page)
        else:
            _run_text(block, page)
        environment.update(_EXPORT.findall(block.text) if block.language in ("sh", "bash") else ())


def _run_text(block: Block, page: Page) -> None:
    if block.language == "python":
        (page.folder / "block.py").write_text(block.text, encoding="utf-8")
        _run(block, ["python", "block.py"], page)
    else:
        _run(block, ["bash", "-ec", block.text], page)


def _run(block: Block, command: list[str], page: Page) -> str:
    done = subprocess.run(
        command,
        cwd=page.folder,
        env=page.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block} ended with {done.returncode}:\n{block.text}\n{done.stdout}"
    return done.stdout


def _run_console(block: Block, page: Page) -> None:
    parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block}: output before the first command"
    for part in parts[1:]:
        lines = part.splitlines()
        end = next((i for i, line in enumerate(lines) if not line.endswith("\\")), 0) + 1
        printed = _run(block, ["bash", "-c", "\n".join(lines[:end])], page)
        shown = "\n".join(lines[end:])
        if shown.strip():
            assert _fits(shown, printed), f"{block}: shown\n{shown}\nprinted\n{printed}"


def _fits(shown: str, printed: str) -> bool:
    if _BUSY in printed and _BUSY not in shown:
        there = {_plain(line) for line in printed.splitlines()}
        return all(_plain(line) in there for line in shown.splitlines() if line.startswith(_OF_THE_COMMAND))
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else _line_pattern(line) for line in shown.strip().splitlines()
    )
    lines = printed.strip().splitlines()
    return re.fullmatch(pattern, "".join(f"{_plain(line)}\n" for line in lines)) is not None


def _line_pattern(line: str) -> str:
    """A line that ends with an ellipsis is the beginning of one."""
    begins = line.endswith("…")
    return f"{re.escape(_plain(line.removesuffix('…')))}{'.*' if begins else ''}\n"


def _plain(line: str) -> str:
    """A line without what differs from run to run: numbers, units, bars, ids, widths."""
    line = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b|\b[0-9a-f]{16}\b", "ID", line)
    line = re.sub(r"[█▏▎▍▌▋▊▉◀─━]+", " ", line)
    line = _UNIT.sub("", _NUMBER.sub("0", line)).replace("under 0", "0")
    return " ".join(line.split())
