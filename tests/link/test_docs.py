"""The pages about linking say what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from dftracer.link.edges import EDGE_TYPES
from dftracer.link.tables import COLUMNS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_column_is_documented() -> None:
    text = (DOCS / "linked-tables.md").read_text(encoding="utf-8")
    assert [f"| `{n}` | {t} | {m} |" for n, t, m in COLUMNS if f"| `{n}` | {t} | {m} |" not in text] == []


def test_every_edge_type_is_documented() -> None:
    text = (DOCS / "guide-link-to-chakra.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \| (?:an?|the|device)", text, re.MULTILINE) == list(EDGE_TYPES)
