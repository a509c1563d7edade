"""The program's own code as a flame graph, of a run on a GPU whose logging takes most of the time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.view_tab import Tab

OWN_CODE = Path(__file__).parents[1] / "data" / "h200" / "plain" / "own_code"
NAMED = "log_metrics zero_program.py:142"


def _frames(tab: Tab) -> list[tuple[str, float]]:
    """Text and width in percent, from the top."""
    drawn = tab.page.evaluate(
        "() => [...document.querySelectorAll('.flame button')].map((b) => [b.textContent, b.style.width])"
    )
    return [(text, float(width.rstrip("%"))) for text, width in drawn]


def test_own_code_is_a_flame_graph(browser: Any, start: Callable[..., Any]) -> None:
    server = start(OWN_CODE).ready(steps=True)
    tab = Tab(browser, server.url)
    tab.page.click("#tab-code")
    tab.page.wait_for_function("() => document.querySelectorAll('.flame button').length > 2")
    widths = dict(_frames(tab))
    assert widths["in view"] == 100
    assert widths[NAMED] > 80
    tab.page.click(f".flame button:has-text('{NAMED}')")
    assert _frames(tab)[0] == (NAMED, 100)
    tab.page.click(".flame .level:first-child button")
    assert dict(_frames(tab)) == widths
    # Of what is in view: none before the first step.
    first = tab.page.evaluate("() => Math.round(dftracerView.view.length / 1000)")
    tab.page.evaluate("(n) => dftracerView.view.look(0, n)", first)
    tab.page.wait_for_function("() => document.getElementById('code').textContent.startsWith('No samples')")
    tab.close()
