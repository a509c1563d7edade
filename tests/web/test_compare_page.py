"""The page of a comparison in a real browser: it says what changed, fetches nothing and runs no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.compare import compare_all, html_page
from support.noisy_runs import noisy_run

HOSTILE = "</title><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_the_page_of_a_comparison(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    runs = [
        noisy_run(1, 200, "independent", name=HOSTILE),
        noisy_run(2, 200, "independent", name="same"),
        noisy_run(3, 200, "independent", {"forward": 1.3}, name="slow"),
        noisy_run(4, 200, "independent", {"forward": 9}, name="much slower"),
    ]
    file = tmp_path / "compare.html"
    file.write_text(html_page(compare_all(runs), f"dftracer: {HOSTILE}"), encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    noise: list[str] = []
    tab.on("console", lambda m: noise.append(m.text))
    tab.on("request", lambda r: noise.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    tab.goto(file.as_uri())
    assert tab.inner_text("h1").startswith("No difference: ")
    assert tab.locator("h2").first.inner_text().startswith("C is slower by ")
    marked = tab.locator("tr.marked td:first-child").all_inner_texts()
    assert marked == ["forward", "step"] * 2
    # What lies beyond the axis is an arrow at its end, not a dot.
    shapes = tab.locator("circle.slower, path.slower")
    drawn = shapes.evaluate_all("(all) => all.map((e) => e.tagName)")
    assert drawn == ["circle", "circle", "path", "circle"]
    assert tab.locator("svg[aria-label]").count() >= 14
    assert tab.title() == f"dftracer: {HOSTILE}"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.screenshot(path=tmp_path / "compare.png", full_page=True)
    assert noise == []
