"""A hook of MkDocs: pages that mkdocs.yml does not name find their place in the navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def _named(entries: list[Any]) -> set[str]:
    pages: set[str] = set()
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        pages |= _named(value) if isinstance(value, list) else {value}
    return pages


def _section(nav: list[Any], title: str) -> list[Any]:
    return next(entry[title] for entry in nav if isinstance(entry, dict) and title in entry)


def _decision(page: Path) -> dict[str, str]:
    title = page.read_text(encoding="utf-8").splitlines()[0]
    return {f"{page.name[:4]} {re.sub(r'^# *([0-9]+[.:] *)?', '', title)}": f"decisions/{page.name}"}


def on_config(config: Any) -> Any:
    """Add guides that are not listed to the guides, and every decision to the project's pages."""
    docs = Path(config["docs_dir"])
    named = _named(config["nav"])
    guides = [p.name for p in sorted(docs.glob("guide-*.md")) if p.name not in named]
    _section(config["nav"], "Guides").extend(guides)
    decisions = [_decision(p) for p in sorted((docs / "decisions").glob("*.md"))]
    _section(config["nav"], "Project").append({"Decisions": decisions})
    return config
