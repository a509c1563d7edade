"""What makes the page easy to read, in a real browser: each thing that a reader missed once."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dftracer.analyze import Analysis, analyze
from dftracer.report import html_page, markdown, print_report
from dftracer.report.contents import COLOURS
from dftracer.report.device import DEVICE_COLOURS
from dftracer.testing.synthetic import Process

MS = 1000
LONG = "/lustre/project/with/a/very/long/way/to/the/data/of/imagenet-21k/train/shard-000"
HOSTILE = "</script><script>document.title='broken'</script>"


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """20 steps of automatic tracing: 71 ms of preprocessing in a worker each; the first takes much longer."""
    folder = tmp_path_factory.mktemp("reading")
    record = {
        "value": "run-17",
        "start": 1_760_000_000_000_000,
        "command": f"python train.py --name {HOSTILE}",
        "host": "node7",
        "version": "3.0.0",
        "python": "3.11.2",
    }
    main = Process(100, rank=0, world_size=1, run=record)
    worker = Process(101, ppid=100, run=record)
    t = 0
    for i in range(20):
        wait = 900 * MS if i == 0 else 71 * MS
        main.step(i + 1, t, wait, 20 * MS, epoch=0, step=i, auto=1)
        main.span("compute", "forward", t + wait, 12 * MS, auto=1)
        main.span("compute", "backward", t + wait + 12 * MS, 8 * MS, auto=1)
        worker.span("data", "item", t, wait - MS, auto=1)
        worker.span("data", "preprocess", t + 600, wait - 2 * MS, auto=1)
        worker.io("open", t + 10, 40, f"{LONG}{i:02d}.tar", ret=4)
        worker.io("read", t + 60, 200, f"{LONG}{i:02d}.tar", ret=5000, count=5000)
        worker.io("read", t + 270, 20, f"{LONG}{i:02d}.tar", ret=0, count=5000)
        worker.span("user", HOSTILE, t + 30 * MS, 5, tid=555)
        t += wait + 20 * MS
    for p in (main, worker):
        p.write(folder)
    return analyze(folder)


@pytest.fixture(scope="module")
def page_file(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(html_page(analysis), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    noise: list[str] = []
    tab.on("console", lambda m: noise.append(m.text) if m.type in ("error", "warning") else None)
    tab.on("pageerror", lambda e: noise.append(str(e)))
    tab.on("request", lambda r: noise.append(r.url) if not r.url.startswith(("file:", "data:")) else None)
    # Canvases are pictures: what they were told to write is kept for the tests.
    tab.add_init_script(
        "window.drawn = {}; const draw = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {"
        " (window.drawn[this.canvas.id] ||= []).push(text); return draw.call(this, text, ...at); };"
    )
    tab.goto(page_file.as_uri())
    tab.wait_for_selector("html[data-ready]", timeout=20_000)
    yield tab
    assert noise == []
    tab.close()


def _drawn(page: Any, canvas: str) -> list[str]:
    return list(page.evaluate("(id) => window.drawn[id] || []", canvas))


def test_the_run_says_who_it_is(page: Any) -> None:
    output = page.inner_text("#run")
    for part in ("node7", "2025-10-09 08:53:20 UTC", "dftracer 3.0.0, Python 3.11.2", "run-17", HOSTILE):
        assert part in output
    top = page.locator("#run").bounding_box()["y"]
    assert top < page.locator("#verdict").bounding_box()["y"]
    assert page.title() == "dftracer report"


def test_advice_is_open(page: Any) -> None:
    cards = page.locator(".finding")
    assert cards.count() >= 2
    for i in range(cards.count()):
        assert cards.nth(i).locator("p").first.is_visible()
        assert not cards.nth(i).locator(".ev").is_visible()  # the evidence is folded


def test_bars_have_numbers(page: Any) -> None:
    texts = page.locator("#ledger .stack span").all_inner_texts()
    assert re.fullmatch(r"fetch wait \d+ %", texts[0])
    assert any(re.fullmatch(r"(forward )?\d+ %", t) for t in texts[1:])


def test_a_clipped_step_is_marked(page: Any) -> None:
    assert page.inner_text("#clipped") == (
        "1 bar is longer than the axis: clipped, and marked with ▲ and the time."
    )
    assert "920 ms" in _drawn(page, "steps")
    page.check("#relative")
    assert page.locator("#clipped").is_hidden()


def test_tables_work_by_keyboard(page: Any) -> None:
    for table, column in (("#names", "count"), ("#files", "reads")):
        region = page.locator(f"{table} [role=region]")
        assert region.get_attribute("tabindex") == "0"
        assert region.get_attribute("aria-label")
        button = page.get_by_role("region", name=region.get_attribute("aria-label")).get_by_role(
            "button", name=column, exact=True
        )
        button.focus()
        page.keyboard.press("Enter")
        head = page.locator(f"{table} th[aria-sort]")
        assert (head.count(), head.get_attribute("aria-sort")) == (1, "descending")
        # The focus stays, so that the next press turns the order around.
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
    region = page.locator("#names [role=region]")
    region.focus()
    assert page.evaluate("document.activeElement.getAttribute('role')") == "region"


def test_axis_labels_differ(page: Any) -> None:
    for canvas, first in (("steps", 4), ("io", 4)):
        labels = _drawn(page, canvas)[:first]
        assert len(set(labels)) == first, labels
    box = page.locator("#time").bounding_box()
    page.locator("#time").scroll_into_view_if_needed()
    box = page.locator("#time").bounding_box()
    page.evaluate("window.drawn.time = []")
    page.mouse.move(box["x"] + 600, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 606, box["y"] + 8, steps=2)
    page.mouse.up()
    times = [t for t in _drawn(page, "time") if re.fullmatch(r"[\d.]+ (s|ms|µs)", t)][-7:]
    assert len(set(times)) == 7, times


def test_axis_labels_say_where_they_stand(page: Any) -> None:
    times = [t for t in _drawn(page, "time") if re.fullmatch(r"[\d.]+ s", t)][:7]
    span = page.evaluate("JSON.parse(document.getElementById('data').textContent).trace.span_s")
    for i, text in enumerate(times):
        assert float(text.removesuffix(" s")) == pytest.approx(span * i / 6, abs=span / 6 / 20)


def test_lanes_have_names(page: Any) -> None:
    lanes = _drawn(page, "time")
    assert "rank 0" in lanes
    assert "rank 0 loader worker 0" in lanes
    assert "rank 0 loader worker 0, thread 555" in lanes


def test_the_end_of_a_long_path_is_shown(page: Any) -> None:
    for scope in (".files .row", "#files tbody tr"):
        tail = page.locator(f"{scope} .path .tail").first
        assert tail.inner_text().endswith(".tar")
        box, cell = tail.bounding_box(), page.locator(f"{scope} .path").first.bounding_box()
        assert box["x"] + box["width"] <= cell["x"] + cell["width"] + 1
        assert page.locator(f"{scope} .path").first.get_attribute("title").startswith(LONG)


def test_evidence_is_in_words_and_units(page: Any, analysis: Analysis) -> None:
    page.evaluate("document.querySelectorAll('.proof').forEach((d) => { d.open = true; })")
    found = page.inner_text("#findings")
    assert re.search(r"preprocess [\d.]+ s\b", found), found
    assert "stages s" not in found
    starts = page.evaluate(
        "[...document.querySelectorAll('.ev td')].map((d) => d.getBoundingClientRect().left)"
    )
    assert len({s for s in starts if s}) == 1  # one column for all that are open
    out = io.StringIO()
    print_report(analysis, Console(file=out, width=100))
    for text in (" ".join(out.getvalue().split()), markdown(analysis)):
        assert re.search(r"preprocess [\d.]+ s\b", text)
        assert not re.search(r"\d\.\d{6}", text)


def test_one_colour_has_one_meaning(page: Any) -> None:
    same = {"input": "fetch_wait", "comm": "comm", "checkpoint": "checkpoint", "unknown": "unexplained"}
    for name, colour in DEVICE_COLOURS.items():
        assert [s for s, c in COLOURS.items() if c == colour] == ([same[name]] if name in same else [])
    stages = {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in COLOURS.values()}
    for selector in (".finding", "#severity button", "h1", ".brand"):
        for kind in ("borderLeftColor", "color"):
            css = page.evaluate(
                "([s, k]) => getComputedStyle(document.querySelector(s))[k]", [selector, kind]
            )
            assert tuple(map(int, re.findall(r"\d+", css)[:3])) not in stages, (selector, kind)
    assert "red" not in page.inner_text("#s-files").lower().replace("shared", "")
    assert "reading" in page.inner_text("#s-files")


def test_sizes_are_ranges(page: Any) -> None:
    labels = page.locator("#sizes .lab").all_inner_texts()
    assert labels == ["read 0 B", "read 4 to 8 KiB"]


def test_stages_that_cannot_exist_are_not_shown_as_missing(page: Any, analysis: Analysis) -> None:
    legend = page.inner_text("#legend")
    assert "not seen" not in legend  # one rank: there is nothing to communicate
    out = io.StringIO()
    print_report(analysis, Console(file=out, width=100))
    assert "not seen" not in out.getvalue()
    assert "not seen" not in markdown(analysis)


def test_a_narrow_window_needs_no_sideways_scrolling(browser: Any, page_file: Path) -> None:
    tab = browser.new_page(viewport={"width": 400, "height": 800})
    tab.goto(page_file.as_uri())
    tab.wait_for_selector("html[data-ready]")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.locator("nav").bounding_box()["height"] < 50, "one line, so that the bars are above the fold"
    tab.close()
