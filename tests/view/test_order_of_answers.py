"""Answers of the server that arrive late: what is shown belongs to what was asked for last."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing.synthetic import Process
from support.view_tab import Late, Tab, frames


def _search(page: Any, text: str) -> None:
    page.fill("#search", text)
    page.press("#search", "Enter")


def _about_this_view(page: Any, question: str) -> Callable[[Any], bool]:
    """Recognises answers to a question about what is in view now."""
    t0 = page.evaluate("Math.round(dftracerView.view.t0)")
    return lambda answer: f"/api/{question}?" in answer.url and f"&t0={t0}&" in answer.url


def test_hits_are_those_of_the_last_search(tab: Tab) -> None:
    page = tab.page
    late = Late(tab, "**/api/search?*q=gelu*")
    late.asked_by(lambda: _search(page, "gelu"))
    _search(page, "shard-0003")
    page.wait_for_function("() => document.getElementById('found').textContent.startsWith('60 events for')")
    page.wait_for_function("() => !document.getElementById('found').textContent.includes('looking through')")
    shown = page.inner_text("#found")
    late.answer()
    assert page.inner_text("#found") == shown
    assert page.evaluate("dftracerView.panes[0].hits.length") == 60


def test_the_table_lists_what_is_in_view_now(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("l")
    page.wait_for_selector("#table table")
    whole = page.inner_text("#table")
    of_whole = _about_this_view(page, "list")
    late = Late(tab, "**/api/list?*")
    late.asked_by(lambda: tab.press("w"))
    with page.expect_response(of_whole):
        page.keyboard.press("0")
    frames(page)
    late.answer()
    assert page.inner_text("#table") == whole


def test_a_range_that_was_cleared_stays_cleared(tab: Tab) -> None:
    page = tab.page
    late = Late(tab, "**/api/range?*")
    late.asked_by(lambda: page.keyboard.press("r"))
    page.keyboard.press("Escape")
    late.answer()
    assert "Drag on the time axis" in page.inner_text("#range")


def test_the_facts_of_a_range_follow_the_filters(tab: Tab) -> None:
    page = tab.page
    page.keyboard.press("r")
    page.wait_for_selector("#range table")
    assert "nvjet_tst_256x128" in page.inner_text("#range")
    page.click("#cats summary")
    page.uncheck("#cats input[value=PP]")
    page.wait_for_function(
        "() => document.querySelector('#range table')"
        " && !document.getElementById('range').textContent.includes('nvjet_tst_256x128')"
    )
    page.click("#ranks summary")
    page.uncheck("#ranks input[value='0']")
    page.wait_for_function(
        "() => document.querySelector('#range table')"
        " && !document.getElementById('range').textContent.includes('Where the time of rank 0 went')"
    )


def test_the_step_that_was_typed_last_is_shown(tab: Tab) -> None:
    page = tab.page
    late = Late(tab, "**/api/step?*step=7*")

    def show(step: int) -> None:
        page.fill("#step", str(step))
        page.press("#step", "Enter")

    late.asked_by(lambda: show(7))
    whole = tab.look()
    show(25)
    page.wait_for_function("(t) => dftracerView.view.t0 !== t", arg=whole[0])
    looked = tab.look()
    late.answer()
    assert tab.look() == looked


def test_arrows_are_those_of_the_view(tab: Tab) -> None:
    page = tab.page
    arrows = "JSON.stringify(dftracerView.panes[0].arrows.map((a) => [a.from.start, a.to.start]))"
    tab.press("]")
    page.wait_for_function("() => dftracerView.panes[0].arrows.length > 0")
    first, of_first = page.evaluate(arrows), _about_this_view(page, "flows")
    late = Late(tab, "**/api/flows?*")
    late.asked_by(lambda: tab.press("]"))
    with page.expect_response(of_first):
        tab.press("[")
    frames(page)
    assert page.evaluate(arrows) == first
    late.answer()
    assert page.evaluate(arrows) == first


def test_what_was_clicked_last_is_selected(tab: Tab) -> None:
    page = tab.page
    tab.press("]")
    selected = "JSON.stringify(dftracerView.view.selected)"
    late = Late(tab, "**/api/at?*")
    place = tab.span("collate")
    # As where events are too small to be drawn one by one: the server is asked what is there.
    page.evaluate("() => { dftracerView.panes[0].sheet.at = () => null; }")
    late.asked_by(lambda: page.mouse.click(*place))
    page.evaluate("() => { delete dftracerView.panes[0].sheet.at; }")
    page.mouse.click(*tab.span("forward"))
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'forward'")
    clicked = page.evaluate(selected)
    late.answer()
    assert page.evaluate(selected) == clicked


def test_a_click_wins_over_a_key_that_is_still_being_answered(tab: Tab) -> None:
    page = tab.page
    tab.press("]")
    late = Late(tab, "**/api/at?*")
    late.asked_by(lambda: page.keyboard.press("ArrowRight"))
    page.mouse.click(*tab.span("collate"))
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'collate'")
    clicked = page.evaluate("JSON.stringify(dftracerView.view.selected)")
    late.answer()
    assert page.evaluate("JSON.stringify(dftracerView.view.selected)") == clicked


def test_keys_go_on_from_the_event_that_is_selected(tab: Tab) -> None:
    page = tab.page
    tab.press("]")
    selected = "dftracerView.view.selected.span"

    def click(name: str) -> None:
        tab.settled()
        page.mouse.click(*tab.span(name))

    click("forward")
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'forward'")
    span = page.evaluate(selected)
    page.keyboard.press("ArrowRight")
    page.wait_for_function(f"(s) => {selected} !== s", arg=span)
    following = page.evaluate(selected)
    click("collate")
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'collate'")
    late = Late(tab, f"**/api/event?*span={span}*")
    late.asked_by(lambda: click("forward"))
    page.keyboard.press("ArrowRight")  # the details of what was clicked are not there yet
    page.wait_for_function(f"(s) => {selected} === s", arg=following)
    late.answer()
    page.wait_for_function("(s) => dftracerView.panes[0].details.span === s", arg=following)


@pytest.fixture
def long_run(browser: Any, start: Callable[..., Any], tmp_path: Path) -> Any:
    process = Process(70, rank=0)
    at = 0
    for step in range(200):
        at = process.step(step, at, 1000, 2000)
    process.write(tmp_path)
    opened = Tab(browser, start(tmp_path).ready(steps=True).url)
    opened.page.wait_for_function(
        "() => document.getElementById('step-about').textContent.startsWith('200 steps')"
    )
    yield opened
    opened.close()


def test_the_page_of_steps_that_was_asked_for_last_is_listed(long_run: Tab) -> None:
    page = long_run.page
    page.click("#tab-steps")
    late = Late(long_run, "**/api/steps?*offset=60*")
    late.asked_by(lambda: page.click("#steps button:text-is('later')"))
    page.click("#steps button:text-is('later')")
    page.wait_for_function(
        "() => document.getElementById('steps').textContent.includes('121 to 180 are listed')"
    )
    late.answer()
    assert "121 to 180 are listed" in page.inner_text("#steps")


def test_numbers_of_two_readings_never_meet(browser: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """A followed job is read again: until the page has heard of it, what it asks is about what it shows."""
    shown = tmp_path / "shown"
    shown.mkdir()

    def write(pid: int, name: str, last: int) -> None:
        process = Process(pid, rank=0)
        at = 0
        for step in range(last):
            at = process.step(step, at, 1000, 2000)
            process.span("app", f"{name} {step}", at - 1500, 400)
        made = process.write(tmp_path)
        made.rename(shown / made.name)  # whole, or not there

    write(70, "old", 5)
    server = start(shown, "--follow").ready(steps=True)
    tab = Tab(browser, server.url)
    page = tab.page
    _search(page, "old 3")
    page.wait_for_function("() => document.getElementById('found').textContent.startsWith('1 event for')")
    page.wait_for_function("() => dftracerView.panes[0].about.steps")
    late = Late(tab, "**/api/state?*")  # the next is asked for when this one is answered
    late.asked_by(lambda: None)
    tab.settled()
    reading = server.json("run", run=0)["reading"]
    write(60, "new", 9)  # sorts before the process that is there, with other numbers for everything
    while server.json("run", run=0)["reading"] == reading:
        time.sleep(0.05)
    assert page.evaluate("dftracerView.panes[0].about.reading") == reading
    page.mouse.click(*tab.span("old 4"))
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'old 4'")
    late.answer()
    page.wait_for_function("(n) => dftracerView.panes[0].about.reading > n", arg=reading)
    assert page.evaluate("dftracerView.panes[0].details.name") == "old 4"
    assert "old 4" in page.inner_text("#event")
    assert server.json("event", **page.evaluate("dftracerView.view.selected"))["name"] == "old 4"
    page.wait_for_function("() => dftracerView.panes[0].hits.length === 1")
    page.locator(".pane").focus()
    page.keyboard.press("n")
    page.wait_for_function("() => dftracerView.panes[0].details?.name === 'old 3'")
    tab.close()
