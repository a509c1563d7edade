"""The page in a real browser: what people do with it, by mouse and by keyboard."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from dftracer.testing.synthetic import Process
from dftracer.view.server import Guard, Session, make_app
from dftracer.view.source import Source
from support.view_tab import Tab, route

HOSTILE = "</script><script>document.title='broken'</script><img src=x onerror=document.title='broken'>"


def test_it_opens_and_draws(tab: Tab) -> None:
    page = tab.page
    assert page.title() == "job: dftracer view"
    labels = page.locator(".labels button").all_inner_texts()
    assert labels[:5] == ["rank 0 stages", "rank 0", "stream 7", "stream 13 (nccl)", "loader worker 0"]
    assert tab.colours() > 8
    assert "40 steps of rank 0" in page.inner_text("#step-about")


def test_keys_zoom_and_move(tab: Tab) -> None:
    t0, t1 = tab.look()
    tab.press("w")
    closer = tab.look()
    assert closer[1] - closer[0] < t1 - t0
    tab.press("d")
    assert tab.look()[0] > closer[0]
    tab.press("a")
    assert tab.look() == pytest.approx(closer)
    tab.press("s")
    assert tab.look() == pytest.approx((t0, t1))
    tab.press("0")
    assert tab.look() == pytest.approx((t0, t1))


def test_wheel_zooms_at_the_pointer_and_drag_moves(tab: Tab) -> None:
    page = tab.page
    box = page.locator(".pane canvas").bounding_box()
    x = box["x"] + round(box["width"] * 0.25)
    under = (
        "(x) => { const p = dftracerView.panes[0]; return p.t(x - p.canvas.getBoundingClientRect().left); }"
    )
    before = page.evaluate(under, x)
    page.mouse.move(x, box["y"] + 100)
    page.mouse.wheel(0, -400)
    tab.settled()
    t0, t1 = tab.look()
    assert page.evaluate(under, x) == pytest.approx(before, rel=1e-6)
    page.mouse.down()
    page.mouse.move(x + 200, box["y"] + 100, steps=5)
    page.mouse.up()
    tab.settled()
    assert tab.look()[0] < t0
    assert tab.look()[1] - tab.look()[0] == pytest.approx(t1 - t0)


def test_search_lists_marks_and_walks(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("/")
    page.keyboard.type("shard-0003")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('found').textContent.startsWith('60 events for')")
    assert page.locator("#found tbody tr").count() == 60
    page.wait_for_function("() => !document.getElementById('found').textContent.includes('looking through')")
    # Enter has gone to the first hit.
    page.wait_for_function("() => dftracerView.panes[0].details?.path === '/data/train/shard-0003.tar'")
    first = page.evaluate("dftracerView.panes[0].details.part")
    page.keyboard.press("Escape")
    page.keyboard.press("n")  # both ranks do the same at the same time
    page.wait_for_function("(p) => dftracerView.panes[0].details.part !== p", arg=first)
    page.fill("#search", "worker_pid=4002")
    page.press("#search", "Enter")
    page.wait_for_function("() => document.getElementById('found').textContent.startsWith('13 events for')")


def test_a_click_tells_everything_about_an_event(tab: Tab) -> None:
    page = tab.page
    page.fill("#step", "7")
    page.press("#step", "Enter")
    page.wait_for_function("() => dftracerView.view.span < 2e7")
    tab.settled()
    page.mouse.click(*tab.span("flash_fwd_kernel"))
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'flash_fwd_kernel'")
    text = page.inner_text("#event")
    for expected in ("kernel", "600.0 µs", "stream 7", "correlation", "aten::scaled_dot_product_attention"):
        assert expected in text
    page.click("#event button:has-text('aten::scaled_dot_product_attention')")
    page.wait_for_function(
        "() => dftracerView.panes[0].details?.name === 'aten::scaled_dot_product_attention'"
    )
    text = page.inner_text("#event")
    assert "On the device: 1 operation" in text
    assert "forward" in text


def test_arrows_join_items_batches_and_steps(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("]")
    tab.settled()
    page.wait_for_function("() => dftracerView.panes[0].arrows.length > 0")
    kinds = page.evaluate("[...new Set(dftracerView.panes[0].arrows.map((a) => a.kind))].sort()")
    assert kinds == ["batch", "item", "launch"]
    with_arrows = page.locator(".pane canvas").screenshot()
    page.keyboard.press("g")
    page.wait_for_function("() => dftracerView.panes[0].arrows.length === 0")
    tab.settled()
    page.wait_for_timeout(100)
    assert page.locator(".pane canvas").screenshot() != with_arrows
    page.mouse.click(*tab.span("collate"))
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'collate'")
    assert "from 4 items" in page.inner_text("#event")
    assert "fetch.iter at" in page.inner_text("#event")


def test_a_range_by_mouse_and_by_key(tab: Tab) -> None:
    page = tab.page
    box = page.locator("#axis").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + 10, steps=4)
    page.mouse.up()
    page.wait_for_selector("#range table")
    text = page.inner_text("#range")
    assert "Where the time of rank 0 went" in text
    assert "/data/train/shard-0003.tar" in text
    assert page.locator("#tab-range").get_attribute("aria-selected") == "true"
    page.keyboard.press("Escape")
    assert page.evaluate("dftracerView.view.range") is None
    page.keyboard.press("r")
    page.wait_for_selector("#range table")
    assert page.inner_text("#range h2").endswith(" ms from 0, 4,484 events")


def test_filters_by_category_rank_and_step(tab: Tab) -> None:
    page = tab.page
    before = tab.colours()
    page.click("#cats summary")
    page.uncheck("#cats input[value=PP]")
    page.uncheck("#cats input[value=data]")
    page.keyboard.press("Escape")
    tab.settled()
    page.wait_for_timeout(100)
    assert tab.colours() < before
    page.click("#ranks summary")
    page.uncheck("#ranks input[value='0']")
    assert page.locator(".labels button").all_inner_texts()[0] == "rank 1 stages"
    page.check("#ranks input[value='0']")
    page.fill("#step", "25")
    page.press("#step", "Enter")
    page.wait_for_function("() => dftracerView.view.span < 3e7")
    tab.settled()
    names = page.evaluate("dftracerView.panes[0].sheet.drawn.names")
    assert "capture" in names
    assert page.evaluate("dftracerView.panes[0].sheet.drawn.start.length") < 200


def test_the_step_navigator(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("]")
    tab.settled()
    assert page.inner_text("#step-about").startswith("step ")
    page.click("#tab-steps")
    assert page.locator("#steps tbody tr").count() == 40
    page.click("#steps button:text-is('25')")
    tab.settled()
    assert page.inner_text("#step-about").startswith("step 25: 1")
    page.keyboard.press("]")
    tab.settled()
    assert page.inner_text("#step-about").startswith("step 26")
    page.select_option("#steps select", "1")
    page.wait_for_function(
        "() => document.querySelector('#steps table').getAttribute('aria-label') === 'Steps of rank 1'"
    )


def test_a_link_is_a_view(tab: Tab, browser: Any) -> None:
    page = tab.page
    for _ in range(4):
        tab.press("w")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("() => dftracerView.panes[0].details")
    page.keyboard.press("r")
    page.wait_for_selector("#range table")
    page.keyboard.press("t")
    page.wait_for_function("() => location.hash.includes('theme=dark')")
    address = page.evaluate("location.href")
    copy = Tab(browser, address)
    state = "JSON.stringify([dftracerView.view.selected, dftracerView.view.tab, dftracerView.view.range])"
    assert copy.page.evaluate(state) == page.evaluate(state)
    assert copy.look() == pytest.approx(tab.look(), abs=2)
    assert copy.page.evaluate("document.documentElement.dataset.theme") == "dark"
    bare, _, link = address.partition("#")
    again = Tab(browser, bare)
    again.page.evaluate("(link) => { location.hash = link; }", link)  # pasted into the same tab
    again.page.wait_for_function("() => dftracerView.view.tab === 'range' && dftracerView.panes[0].details")
    assert again.page.evaluate(state) == page.evaluate(state)
    again.close()
    copy.close()


def test_everything_by_keyboard(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_selector("#table table")
    assert page.locator("#table tbody tr").count() == 200
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("() => dftracerView.panes[0].details")
    page.locator(".pane").focus()
    start = page.evaluate("dftracerView.panes[0].details.span")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(s) => dftracerView.panes[0].details.span !== s", arg=start)
    assert page.inner_text("#say") != ""
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    first = page.locator(".labels button").nth(1)
    first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".labels button").nth(1).get_attribute("aria-expanded") == "false"
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, canvas:not([aria-hidden]), [role]')]
        .filter((e) => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')
          || e.textContent.trim() || e.closest('label') || ['say', 'live', 'tip'].includes(e.id)))
        .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


def test_light_and_dark_follow_the_system(browser: Any, server: Any) -> None:
    dark = Tab(browser, server.url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert dark.page.evaluate(background) == "rgb(17, 17, 19)"
    dark.press("t")
    assert dark.page.evaluate(background) == "rgb(251, 251, 252)"
    dark.close()


def test_nothing_is_cut_off_at_1280(tab: Tab) -> None:
    page = tab.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    for selector in ("header button", "header summary", "header input", "#tabs button", "#step-about"):
        for each in page.locator(selector).all():
            if each.is_visible():
                box = each.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 1280
                assert box["height"] > 10


def test_two_runs_side_by_side(browser: Any, start: Callable[..., Any], job: Path, slower_job: Path) -> None:
    server = start(job, slower_job).ready(steps=True)
    tab = Tab(browser, server.url)
    page = tab.page
    assert page.locator(".run-name").all_inner_texts() == ["A: job", "B: slower"]
    assert tab.colours(0) > 8
    assert tab.colours(1) > 8
    page.keyboard.press("r")
    page.wait_for_function("() => document.querySelectorAll('#range table').length >= 4")
    heads = page.locator("#range h2").all_inner_texts()
    assert heads[0].startswith("A: ")
    assert heads[1].startswith("B: ")
    tab.press("w")
    assert page.evaluate("dftracerView.panes.map((p) => p.sheet.about.from)[1]") == page.evaluate(
        "dftracerView.panes[0].sheet.about.from"
    )
    page.click("#tab-steps")
    assert page.locator("#steps option").all_inner_texts() == [
        f"{run}, rank {rank}" for run in "AB" for rank in (0, 1)
    ]
    medians = {}
    for i, name in ((0, "A, rank 0"), (2, "B, rank 0")):
        page.select_option("#steps select", str(i))
        page.wait_for_function(f"() => document.getElementById('step-about').textContent.includes('{name}')")
        medians[name] = page.inner_text("#step-about").partition("median ")[2]
    assert medians["A, rank 0"] != medians["B, rank 0"]
    tab.close()


def test_names_of_two_runs_are_not_cut_off_at_1280(
    browser: Any, start: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    names = ["resnet50-batch-256-baseline", "resnet50-batch-256-with-pinned-memory-and-8-workers"]
    for name in names:
        shutil.copytree(job, tmp_path / name)
    tab = Tab(browser, start(*(tmp_path / name for name in names)).ready(steps=True).url)
    whole = "(all) => all.map((e) => [e.textContent, e.scrollWidth <= e.clientWidth])"
    shown = tab.page.locator(".run-name").evaluate_all(whole)
    assert shown == [[f"{letter}: {name}", True] for letter, name in zip("AB", names, strict=True)]
    assert tab.page.inner_text("#title") == "A: 286.7 ms, B: 286.7 ms"
    tab.close()


def test_steps_are_named_after_the_rank_they_belong_to(
    browser: Any, start: Callable[..., Any], job: Path, slower_job: Path
) -> None:
    """Also while those of a rank chosen since are still on their way."""
    tab = Tab(browser, start(job, slower_job).ready(steps=True).url)
    page = tab.page
    page.click("#tab-steps")
    page.wait_for_function("() => document.getElementById('step-about').textContent.includes('A, rank 0')")
    of_a = page.inner_text("#step-about")
    held: list[Any] = []

    def hold(question: Any) -> None:
        held.append(question)

    route(page, "**/steps?*run=1*", hold)
    page.select_option("#steps select", "2")
    page.set_viewport_size({"width": 1400, "height": 700})
    page.wait_for_function("() => document.getElementById('step-strip').width > 0")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.inner_text("#step-about") == of_a
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_function("() => document.getElementById('step-about').textContent.includes('B, rank 0')")
    tab.close()


def test_markup_in_names_stays_text(browser: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    odd = Process(50, rank=0)
    arguments: dict[str, Any] = {"note": HOSTILE, "<i>key</i>": "'\"><script>1</script>"}
    odd.step(1, 0, 100, 500)  # the view opens at the first step
    odd.span("<b>cat</b>", HOSTILE, 1000, 1000, **arguments)
    odd.io("read", 2200, 300, f"/data/{HOSTILE}", ret=10)
    odd.write(tmp_path)
    tab = Tab(browser, start(tmp_path).ready(steps=True).url)
    page = tab.page
    assert page.inner_text("#step-about").startswith("1 step of rank 0")
    page.mouse.click(*tab.span(HOSTILE[:96]))
    page.wait_for_function("() => dftracerView.panes[0].details")
    assert HOSTILE in page.inner_text("#event")
    page.keyboard.press("r")
    page.wait_for_selector("#range table")
    assert HOSTILE in page.inner_text("#range")
    page.keyboard.press("l")
    page.wait_for_selector("#table table")
    page.fill("#search", "onerror")
    page.press("#search", "Enter")
    page.wait_for_selector("#found table")
    page.wait_for_timeout(300)
    assert page.locator("main script, main img, #event b, #event i").count() == 0
    assert "broken" not in page.title()
    tab.close()


def test_a_page_without_a_trace_to_read_says_why(
    browser: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "none.pfw").write_text("[\n]\n")
    server = start(tmp_path)
    page = browser.new_page()
    page.goto(server.url)
    page.wait_for_function("() => document.getElementById('title').textContent.includes('no events')")
    page.close()


def test_enter_in_the_search_goes_to_the_first_hit(tab: Tab) -> None:
    page = tab.page
    page.fill("#search", "backward")
    page.press("#search", "Enter")
    page.wait_for_function("() => dftracerView.view.selected !== null")
    page.wait_for_selector("#found tbody tr")
    first = page.evaluate("Math.min(...dftracerView.panes[0].hits.map((h) => h.start))")
    chosen = page.evaluate(
        "(() => { const s = dftracerView.view.selected;"
        " return dftracerView.panes[0].hits.find((h) => h.part === s.part && h.span === s.span)?.start; })()"
    )
    assert chosen == first


def test_this_view_is_exported_as_one_file(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    with page.expect_download() as saved:
        page.click("#export")
    saved.value.save_as(tmp_path / "view.html")
    text = (tmp_path / "view.html").read_text()
    assert 'src="data:image/png;base64,' in text
    assert "dataloader: fetch.block" in text
    assert "<script" not in text


def test_the_toolbar_fits_a_narrow_window(tab: Tab) -> None:
    page = tab.page
    page.set_viewport_size({"width": 400, "height": 800})
    for button in page.locator("header button, header summary, #search").all():
        if button.is_visible():
            box = button.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 400


def test_it_opens_at_the_first_step(browser: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.span("app", "imports", 0, 9_000_000)
    at = 9_000_000
    for step in range(20):
        at = p.step(step, at, 10_000, 90_000)
    p.write(tmp_path)
    tab = Tab(browser, start(tmp_path).ready(steps=True).url)
    tab.page.wait_for_function("() => dftracerView.view.t0 > 0")
    t0, t1 = tab.look()
    tab.close()
    assert 8.9e9 < t0 <= 9e9
    assert t1 == pytest.approx(1e3 * at, rel=1e-3)


@contextlib.contextmanager
def serving(session: Session) -> Iterator[str]:
    """The server in this process, where a test can hold its reading."""
    token = secrets.token_urlsafe(8)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
        app: Any = Guard(make_app(session, token), token, port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        session.start()
        try:
            yield f"http://127.0.0.1:{port}/?token={token}"
        finally:
            server.should_exit = True
            thread.join()
            session.stop()


class _Held(Source):
    """Reads its second process only when the test lets it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.let = threading.Event()
        super().__init__(*args, **options)

    def _part(self, unit: Any, progress: Any) -> Any:
        if self._held:
            assert self.let.wait(120)
        return super()._part(unit, progress)


def _two_ranks(folder: Path) -> None:
    for rank in range(2):
        p = Process(10 + rank, rank=rank)
        at = rank * 1_000_000
        for step in range(20 * (rank + 1)):
            at = p.step(step, at, 10_000, 90_000)
        p.write(folder)


def test_a_large_run_shows_its_first_process_while_it_reads_the_others(browser: Any, tmp_path: Path) -> None:
    _two_ranks(tmp_path)
    source = _Held([str(tmp_path)], cache=False, large=1)
    with serving(Session([source])) as url:
        tab = Tab(browser, url)
        page = tab.page
        ranks = "[...new Set(dftracerView.panes[0].about.lanes.map((l) => l.rank))]"
        assert page.evaluate(ranks) == [0]
        assert tab.colours() > 3
        assert page.evaluate("dftracerView.view.length") == pytest.approx(2e9, rel=1e-3)
        page.mouse.click(*tab.span("fetch.block"))  # what is shown can be used
        page.wait_for_function("() => dftracerView.panes[0].details?.name === 'fetch.block'")
        source.let.set()
        page.wait_for_function(f"() => {ranks}.length === 2 && dftracerView.panes[0].about.steps")
        tab.settled()
        assert page.evaluate("dftracerView.view.length") == pytest.approx(5e9, rel=1e-3)
        t0, t1 = tab.look()
        assert t0 <= 0
        assert t1 >= 5e9  # the whole was in view, and is
        assert page.evaluate("dftracerView.panes[0].details.name") == "fetch.block"
        assert page.evaluate("dftracerView.panes[0].details.rank") == 0
        tab.close()


def test_an_address_that_names_a_view_waits_for_the_whole_run(browser: Any, tmp_path: Path) -> None:
    _two_ranks(tmp_path)
    source = _Held([str(tmp_path)], cache=False, large=1)
    with serving(Session([source])) as url:
        page = browser.new_page()
        page.goto(f"{url}#t=4000000000,4500000000")
        page.wait_for_function("() => document.getElementById('title').textContent.includes('%')")
        assert page.locator("html[data-ready]").count() == 0
        source.let.set()
        page.wait_for_selector("html[data-ready]")
        assert page.evaluate("[dftracerView.view.t0, dftracerView.view.t1]") == [4e9, 4.5e9]
        page.close()
