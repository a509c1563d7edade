"""The device's part of the HTML report, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dftracer.analyze import analyze
from dftracer.report import html_page, markdown

CASE = Path(__file__).parents[1] / "data" / "h200" / "cases" / "input"


def test_bars_idle_over_time_and_kernels_are_shown(browser: Any, tmp_path: Path) -> None:
    analysis = analyze(CASE)
    file = tmp_path / "report.html"
    file.write_text(html_page(analysis), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    noise: list[str] = []
    page.on("pageerror", lambda e: noise.append(str(e)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=20_000)
    row = page.locator("#ledger .row.device")
    assert row.count() == 1
    assert "99 % idle" in row.inner_text()
    assert page.locator("#ledger .row").nth(1).get_attribute("class") == "row device"
    assert "1 profiler window" in page.locator("#device-about").inner_text()
    marked = [k for k in page.locator("#device-legend .key").all_inner_texts() if "◀" in k]
    assert marked == ["idle: waiting for data ◀"]
    kernels = page.locator("#kernels tr")
    before = kernels.count()
    page.fill("#kernel-filter", "aten::addmm")
    assert 1 < kernels.count() < before
    assert page.evaluate("document.getElementById('device-time').width") > 100
    page.locator("#theme").click()
    assert page.locator("#ledger .row.device").count() == 1
    page.screenshot(path=str(tmp_path / "page.png"), full_page=True)
    assert noise == []
    text = markdown(analysis)
    assert "| **idle: waiting for data** | 0.117 | 87.6 |" in text
