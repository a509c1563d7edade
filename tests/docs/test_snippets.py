"""Every code block of the documentation can be pasted and runs as shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.snippets import ROOT, RUNNABLE, blocks_of, run_page

# Pages whose blocks other tests run, and look at the events they leave.
ELSEWHERE = {
    "guide-ai.md": "tests/compat/test_guide_ai.py",
    "guide-dynamo.md": "tests/dynamo/test_guide.py",
    "guide-profiler.md": "tests/torch/test_guide.py",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_HERE = [p for p in PAGES if p.name not in ELSEWHERE and any(b.runnable for b in blocks_of(p))]


@pytest.mark.parametrize("page", RUN_HERE, ids=lambda page: page.name)
def test_blocks_run_as_shown(page: Path, tmp_path: Path) -> None:
    """From top to bottom, in one directory."""
    run_page(page, tmp_path)


def test_files_of_other_pages_are_run_by_their_tests() -> None:
    assert [name for name, test in ELSEWHERE.items() if name not in (ROOT / test).read_text("utf-8")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A language, a file that something uses, and a reason wherever a program is not run."""
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- not run:") == sum(b.not_run is not None for b in blocks_of(page))
    for block in blocks_of(page):
        assert block.language, f"{block}: no language"
        assert block.language in (*RUNNABLE, "text", "json", "yaml", "toml"), f"{block}: {block.language}"
        assert not (block.runnable and "pip install" in block.text), f"{block}: would install packages"
        if block.title:
            assert text.count(block.title.split("/")[-1]) > 1, f"{block}: nothing uses {block.title}"
