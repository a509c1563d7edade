"""The page of `dftracer view` in a real browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Late", "Tab", "frames", "route"]

_READY = "html[data-ready]"


class Tab:
    """A page; whatever it complains about or fetches elsewhere fails the test."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
        self.page.set_default_timeout(120_000)  # of a busy machine
        self.noise: list[str] = []
        host = url.partition("?")[0]
        self.page.on("console", lambda m: self._hear(m) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.noise.append(str(e)))
        self.page.on(
            "request", lambda r: None if r.url.startswith((host, "data:")) else self.noise.append(r.url)
        )
        self.page.goto(url)
        self.page.wait_for_selector(_READY, timeout=120_000)
        self.settled()

    def _hear(self, message: Any) -> None:
        if "willReadFrequently" not in message.text:  # about this test's own reading of the canvas
            self.noise.append(message.text)

    def settled(self) -> None:
        """Wait until the picture is that of the view."""
        self.page.wait_for_function(
            "() => dftracerView.panes.every((p) => !p.asking && !p.again && !p.dirty && p.sheet"
            " && Math.abs(p.sheet.about.from - (p.view.t0 - p.view.span / 2)) <= 1)",
            timeout=120_000,
        )

    def look(self) -> tuple[float, float]:
        t0, t1 = self.page.evaluate("[dftracerView.view.t0, dftracerView.view.t1]")
        return t0, t1

    def press(self, key: str) -> None:
        self.page.keyboard.press(key)
        self.settled()

    def colours(self, pane: int = 0) -> int:
        """How many different colours the timeline shows."""
        return int(
            self.page.evaluate(
                """(n) => { const c = document.querySelectorAll('.pane canvas')[n];
                const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set();
                for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
                return seen.size; }""",
                pane,
            )
        )

    def span(self, name: str, nth: int = 0) -> tuple[float, float]:
        """Where on the screen a span of that name is drawn."""
        x, y = self.page.evaluate(
            """([name, nth]) => { const p = dftracerView.panes[0], d = p.sheet.drawn;
            const found = [...d.start.keys()].filter((i) => d.names[d.name[i]] === name
              && p.x(d.start[i]) > 0 && p.x(d.start[i] + d.length[i]) < p.width)[nth];
            const box = p.canvas.getBoundingClientRect();
            return [box.left + p.x(d.start[found] + d.length[found] / 2),
              box.top + p.top + p.sheet.ys[d.row[found]] + 8]; }""",
            [name, nth],
        )
        return x, y

    def close(self) -> None:
        self.page.close()
        assert self.noise == []


class Late:
    """The first question that matches a pattern reaches the server only when the test lets it."""

    def __init__(self, tab: Tab, pattern: str) -> None:
        self.page = tab.page
        self.held: list[Any] = []
        route(self.page, pattern, self._hear)

    def _hear(self, question: Any) -> None:
        if self.held:
            question.continue_()
        else:
            self.held.append(question)

    def asked_by(self, act: Callable[[], Any]) -> None:
        act()
        deadline = time.monotonic() + 120
        while not self.held:
            assert time.monotonic() < deadline, "the page has not asked"
            self.page.wait_for_timeout(10)

    def answer(self) -> None:
        """Let it through; returns when the page has taken the answer."""
        (held,) = self.held
        with self.page.expect_event("requestfinished", lambda r: r == held.request):
            held.continue_()
        frames(self.page)


def route(page: Any, pattern: str, handler: Callable[[Any], None]) -> None:
    """`page.route`, from when the page follows it: Chromium tells it by and by, and what it asked sooner passed."""
    followed: list[Any] = []

    def hear(question: Any) -> None:
        followed.append(question)
        question.continue_()

    page.route(pattern, handler)
    page.route("**/*&followed", hear)
    while not followed:
        page.evaluate("() => fetch(`${location.pathname}${location.search}&followed`)")
    page.unroute("**/*&followed")


def frames(page: Any) -> None:
    """Let the page draw what it knows."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
