"""Python programs of a guide: of the original where it lies beside the repository, and of our own."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

__all__ = ["original_blocks", "own_blocks"]

ROOT = Path(__file__).resolve().parents[2]


def own_blocks(guide: str) -> list[str]:
    """Every Python fence of `docs/<guide>`."""
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)


def original_blocks(number: str) -> list[str]:
    """Every Python block of the original guide, or none where it is not at hand."""
    paths = sorted((ROOT.parent / "shared" / "seeds").glob(f"{number}_*.txt"))
    if not paths:
        return []
    found: list[str] = []
    lines = paths[0].read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.strip() == ".. code-block:: python":
            body: list[str] = []
            for following in lines[at + 1 :]:
                if following and not following.startswith(" "):
                    break
                body.append(following)
            found.append(textwrap.dedent("\n".join(body)).strip() + "\n")
    return found
