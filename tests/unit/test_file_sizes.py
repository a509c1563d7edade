"""A file is one idea: none of the product's is longer than 500 lines."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 500


def test_no_long_files() -> None:
    sources = [
        p
        for folder in ("src", "native")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in {".py", ".cpp", ".hpp", ".js"} and "third_party" not in p.parts
    ]
    assert len(sources) > 200
    long = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources}
    assert {name: lines for name, lines in long.items() if lines > MOST} == {}
