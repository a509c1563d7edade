"""The HTML report in a real browser: opened from disk, nothing fetched, nothing on the console, alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.report import html_page
from dftracer.testing.synthetic import Process, training_run


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    run = training_run(folder / "run", events=20_000, ranks=3, workers=2, steps_per_epoch=20)
    odd = Process(9999)  # what could break out of the page
    odd.span("user", "</script><script>document.title='broken'</script>", 0, 5)
    odd.io("read", 10, 5, "/data/<b>\"'&</script>", ret=10)
    odd.write(run.directory)
    late = Process(9998, end=None)  # a second finding
    late.span("user", "late", 0, 5)
    late.write(run.directory)
    file = folder / "report.html"
    file.write_text(html_page(analyze(run.directory), "a <title>"), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1200, "height": 900})
    noise: list[str] = []
    # The one exception is about this test's own reading of the canvas.
    mine = "willReadFrequently"
    tab.on(
        "console",
        lambda m: noise.append(m.text) if m.type in ("error", "warning") and mine not in m.text else None,
    )
    tab.on("pageerror", lambda e: noise.append(str(e)))
    tab.on("request", lambda r: noise.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    tab.goto(page_file.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=20_000)
    yield tab
    tab.close()
    assert noise == []


def _painted(page: Any, canvas: str) -> int:
    """How many different colours a canvas shows."""
    script = """(id) => { const c = document.getElementById(id);
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
        for (let i = 0; i < d.length; i += 16) seen.add(d[i] + ',' + d[i+1] + ',' + d[i+2] + ',' + d[i+3]);
        return seen.size; }"""
    return int(page.evaluate(script, canvas))


def test_everything_is_drawn(page: Any) -> None:
    assert page.inner_text("#verdict").startswith("The largest part of the step cannot be seen: 44 %")
    bars = page.locator("#account-bars .stack")
    assert bars.count() == page.locator("#ledger .stack").count()
    assert bars.first.bounding_box()["y"] < 720  # above the fold, before the findings
    assert bars.first.bounding_box()["y"] < page.locator("#findings").bounding_box()["y"]
    marked = [t for t in page.locator("#account-legend span").all_inner_texts() if "◀" in t]
    assert len(marked) == 1
    assert marked[0].startswith("unexplained ")
    assert " of each 8.6 ms step" in page.inner_text("#why")
    assert page.inner_text("#try").startswith("Try: ")
    assert "◀" in page.inner_text("#legend")
    assert page.locator("section:visible").count() == 10
    for canvas in ("steps", "time", "io"):
        assert _painted(page, canvas) > 3, canvas
    assert page.locator("#ledger .row").count() == 3
    assert page.locator("#workers .row").count() == 6
    assert page.title() == "a <title>"


def test_the_whole_run_has_a_bar(page: Any, tmp_path: Path) -> None:
    """What lies outside of the account, and may be the verdict, is drawn to scale."""
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        p.span("compute", "forward", t + 1000, 9000)
        t = p.step(i + 1, t, 1000, 9000, step=i)
    p.span("pipeline", "evaluate", t, 600_000)
    p.write(tmp_path)
    file = tmp_path / "report.html"
    file.write_text(html_page(analyze(tmp_path), "evaluation"), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=20_000)
    measure = "() => [...document.querySelectorAll('#run-bar .stack span')].map(p => p.clientWidth)"
    widths = page.evaluate(measure)
    assert [w / sum(widths) for w in widths] == pytest.approx([0.25, 0.75], abs=0.01)
    assert page.locator("#run-legend span").all_inner_texts() == [
        "steps 200 ms (25.0 %)",
        "evaluation 600 ms (75.0 %) ◀",
    ]


def test_hovering_tells_the_numbers(page: Any) -> None:
    for selector, expected in (
        ("#steps", "forward"),
        ("#time", "rank"),
        ("#map", "median"),
        ("#io", "calls"),
        ("#ledger .stack span", "fetch wait"),
    ):
        target = page.locator(selector).first
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + min(box["height"] * 0.5, 10))
        assert page.locator("#tip").is_visible(), selector
        assert expected in page.inner_text("#tip"), selector


def test_filters_and_toggles_work(page: Any) -> None:
    page.fill("#name-filter", "preprocess")
    assert page.locator("#names tr").count() == 3  # head, preprocess, preprocess.collate
    page.fill("#file-filter", "part-00001")
    assert page.locator("#files tr").count() == 2
    before = _painted(page, "steps")
    page.click("#legend button[data-stage=forward]")
    assert _painted(page, "steps") < before
    page.locator("#severity button").last.click()
    assert page.locator(".finding:visible").count() < page.locator(".finding").count()
    page.select_option("#rank", "2")
    page.check("#relative")
    assert _painted(page, "steps") > 2
    page.select_option("#role", "worker")
    assert _painted(page, "time") > 3


def test_dragging_zooms_the_timeline(page: Any) -> None:
    page.locator("#time").scroll_into_view_if_needed()
    shot = page.locator("#time").screenshot()
    box = page.locator("#time").bounding_box()
    y = box["y"] + 20
    page.mouse.move(box["x"] + 400, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, y, steps=4)
    page.mouse.up()
    assert page.locator("#time").screenshot() != shot
    page.click("#zoomout")
    page.mouse.move(5, 5)
    assert page.locator("#time").screenshot() == shot


def test_light_and_dark(page: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light
    page.emulate_media(color_scheme="dark")
    assert _painted(page, "steps") > 3


def test_the_page_runs_nothing_but_its_own_script(browser: Any, page_file: Path) -> None:
    """Markup that got into the page could neither run nor fetch: the policy of the page forbids it."""
    text = page_file.read_text(encoding="utf-8")
    hostile = (
        "<script>document.title='ran'</script><img src='x' onerror=\"document.title='ran'\">"
        "<style>body{display:none}</style><iframe src='https://example.org/'></iframe>"
    )
    file = page_file.with_name("hostile.html")
    file.write_text(text.replace("<main>", "<main>" + hostile, 1), encoding="utf-8")
    tab = browser.new_page()
    refused: list[str] = []
    fetched: list[str] = []
    tab.on("console", lambda m: refused.append(m.text))
    tab.on("requestfinished", lambda r: fetched.append(r.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=20_000)
    assert tab.title() == "a <title>"
    assert tab.evaluate("getComputedStyle(document.body).display") != "none"
    assert fetched in ([], [file.as_uri()])
    assert sum("Content Security Policy" in line for line in refused) >= 3
