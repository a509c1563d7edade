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


@pytest.mark.parametrize(
    ("block", "noticed"),
    [
        ("```console\n$ echo took 3.25 s\ntook 17 ms\n```", False),
        ("```console\n$ seq 3; echo end\n...\nend\n```", False),
        ("```console\n$ echo something else\nsomething\n```", True),
        ("```console\n$ false\n```", True),
        ("```python\nimport no_such_module\n```", True),
        (
            "```sh\nexport A=b\n```\n\n```python\nimport os\n\nassert os.environ['A'] == 'b'\n```",
            False,
        ),
        ("<!-- not run: for a test -->\n```sh\nfalse\n```", False),
    ],
)
def test_a_block_that_does_not_do_what_it_shows_is_noticed(block: str, noticed: bool, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"# A page\n\n{block}\n")
    if noticed:
        with pytest.raises(AssertionError, match=r"page\.md:3"):
            run_page(tmp_path / "page.md", tmp_path)
    else:
        run_page(tmp_path / "page.md", tmp_path)
