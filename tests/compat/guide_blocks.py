"""The code blocks of the original AI guide; our record of its calls where it is not at hand."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "CALLS",
    "NAMES",
    "SEEDS",
    "Block",
    "as_python",
    "plain_text_rest",
    "recorded_blocks",
    "rst_blocks",
]

ROOT = Path(__file__).resolve().parents[2]
CALLS = ROOT / "tests" / "compat" / "documented_calls.md"
SEEDS = ROOT.parent / "shared" / "seeds"

# In the order in which both guides show them.
NAMES = [
    "enable",
    "setup",
    "data-item",
    "dataloader",
    "preprocess",
    "device",
    "compute",
    "start-stop",
    "comm",
    "checkpoint",
    "training",
    "metadata",
    "custom",
    "disable",
    "decorator",
    "decorator-args",
    "context",
    "context-args",
    "iterable",
    "constructor",
    "update",
    "force",
    "hook",
    "derive",
    "streaming",
    "streaming-events",
    "streaming-records",
    "init",
    "init-event",
    "caveat-follows",
    "caveat-fixed",
]


@dataclass(frozen=True, slots=True)
class Block:
    """One block as the guide prints it."""

    name: str
    language: str
    text: str


def rst_blocks(path: Path) -> list[Block]:
    """Every `.. code-block::` of a reStructuredText file, dedented."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(lines):
        directive = re.fullmatch(r"\.\. code-block:: (\w+)", lines[at])
        at += 1
        if directive is None:
            continue
        body: list[str] = []
        while at < len(lines) and (not lines[at] or lines[at].startswith(" ")):
            body.append(lines[at])
            at += 1
        found.append((directive[1], textwrap.dedent("\n".join(body)).strip("\n") + "\n"))
    assert len(found) == len(NAMES), f"{path} has {len(found)} code blocks, {len(NAMES)} are known"
    return [Block(name, *rest) for name, rest in zip(NAMES, found, strict=True)]


def recorded_blocks() -> list[Block]:
    """Every named fence of our record."""
    text = CALLS.read_text(encoding="utf-8")
    fences = re.findall(r"<!-- block: ([\w-]+) -->\n```(\w+)\n(.*?)^```$", text, re.S | re.M)
    assert text.count("\n```") == 2 * len(fences), "a fence without a name"
    return [Block(*fence) for fence in fences]


def plain_text_rest(path: Path, blocks: list[Block]) -> str:
    """The plain-text edition less the blocks, which it must hold literally and in order."""
    text = path.read_text(encoding="utf-8")
    rest, at = [], 0
    for block in blocks:
        found = text.find(block.text, at)
        assert found >= 0, f"block {block.name} differs in {path.name}"
        rest.append(text[at:found])
        at = found + len(block.text)
    return "".join([*rest, text[at:]])


def as_python(block: Block) -> str:
    """The block as a program.

    The one text that is not Python is the `...` in `def __init__(self, ...)`: it stands for
    "any further parameters", which Python spells `*_, **__`. Nothing else is replaced.
    """
    source = block.text.replace("(self, ...)", "(self, *_, **__)")
    ast.parse(source)
    return source
