"""The page of a fleet in a browser: no errors, no overflow, and the heat map can be zoomed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.fleet import make

from dftracer.analyze.fleet import read_fleet
from dftracer.report.fleet import fleet_page


def _until(page: Any, script: str, right: Callable[[Any], bool]) -> Any:
    """What the script gives once it is right; the page's policy forbids what playwright's waiting needs."""
    until = time.monotonic() + 60
    while not right(found := page.evaluate(script)):
        assert time.monotonic() < until, script
        page.wait_for_timeout(50)
    return found


def _use(page: Any) -> None:
    picture = "document.getElementById('heat').toDataURL()"
    # It is drawn once its cells are unpacked.
    _until(page, "document.getElementById('heat').style.height", bool)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    whole = page.evaluate(picture)
    page.click("#in")
    _until(page, picture, lambda found: found != whole)
    page.click("#all")
    _until(page, picture, lambda found: found == whole)
    page.click("[data-step]")
    _until(page, picture, lambda found: found != whole)
    page.locator("#heat").hover()
    result = _until(page, "document.getElementById('tip').textContent", bool)
    assert "rank" in result
    assert "step" in result


def test_the_heat_map_can_be_zoomed(browser: Any, tmp_path: Path) -> None:
    make(tmp_path / "rows", 512, 60)
    page_file = tmp_path / "fleet.html"
    page_file.write_text(fleet_page(read_fleet(tmp_path / "rows"), "Fleet"), encoding="utf-8")
    wrong: list[str] = []
    for width in (1280, 400):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda m: wrong.append(m.text) if m.type in {"error", "warning"} else None)
        page.on("pageerror", lambda e: wrong.append(str(e)))
        page.goto(page_file.as_uri())
        _use(page)
    assert wrong == []
