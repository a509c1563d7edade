"""`python -m bench.view [--events N] [--browser]`: the first look, the first picture, any zoom, memory.

The server is the real command in a process of its own; pictures are asked for over HTTP as the page does, of
all rows at twice the width of a 1280 pixel window. With --browser, Chromium opens the page, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from dftracer.testing.synthetic import training_run

WIDTH = 2160
ZOOMS = 200


class Server:
    """The command, and questions to it."""

    def __init__(self, trace: Path, cache: Path) -> None:
        self.began = time.perf_counter()
        command = [sys.executable, "-m", "dftracer.cli", "view", str(trace), "--no-open", "-q"]
        env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.base, _, self.query = self.url.partition("?")

    def ask(self, path: str, **query: Any) -> bytes:
        asked = "&".join([self.query, *(f"{k}={v}" for k, v in query.items())])
        with urllib.request.urlopen(f"{self.base}api/{path}?{asked}") as answer:
            body: bytes = answer.read()
        return body

    def wait(self, what: str) -> float:
        """Seconds from the start of the command until something is there."""
        while not json.loads(self.ask("state"))["runs"][0][what]:
            time.sleep(0.01)
        return time.perf_counter() - self.began

    @property
    def rss_mb(self) -> tuple[float, float]:
        """Memory of its own, and with the pages of the index that happen to be in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return tuple(int(fields[k].split()[0]) / 1024 for k in ("RssAnon", "VmRSS"))  # type: ignore[return-value]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def first_picture(trace: Path, cache: Path) -> tuple[Server, float]:
    server = Server(trace, cache)
    server.wait("ready")
    about, rows = everything(server)
    server.ask("picture", t0=0, t1=about["length"], w=WIDTH, rows=rows)
    return server, time.perf_counter() - server.began


def everything(server: Server) -> tuple[dict[str, Any], str]:
    """The run as far as it was read, and its rows."""
    about = json.loads(server.ask("run"))
    return about, ",".join(str(r) for lane in about["lanes"] for r in lane["rows"])


def zooms(server: Server, about: dict[str, Any], rows: str) -> list[float]:
    """Milliseconds of pictures at random places and widths, from the whole run down to a microsecond."""
    choose = random.Random(1)
    out = []
    for _ in range(ZOOMS):
        span = max(1000, about["length"] * 10 ** -choose.uniform(0, 6))
        t0 = choose.uniform(0, about["length"] - span)
        began = time.perf_counter()
        server.ask("picture", t0=int(t0), t1=int(t0 + span), w=WIDTH, rows=rows)
        out.append(1e3 * (time.perf_counter() - began))
    return sorted(out)


def in_browser(server: Server) -> dict[str, float]:
    """What a person waits for: the page with its first picture, and each zoom until it is painted."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where asked for

    browser_path = next(b for b in map(shutil.which, ("chromium", "google-chrome")) if b)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        began = time.perf_counter()
        page.goto(server.url)
        page.wait_for_selector("html[data-ready]")
        page.wait_for_function("() => dftracerView.panes[0].sheet")
        opened = time.perf_counter() - began
        for _ in range(25):
            page.keyboard.press("w")
            page.wait_for_timeout(120)
        times = sorted(page.evaluate("dftracerView.timings"))
        frames = page.evaluate(FRAMES)
        browser.close()
    return {
        "page_s": opened,
        "zoom_p50_ms": statistics.median(times),
        "zoom_max_ms": times[-1],
        "frame_p50_ms": statistics.median(frames),
        "frame_max_ms": max(frames),
    }


# The time that drawing one frame takes while the view moves, asked of the page itself.
FRAMES = """() => new Promise((done) => {
  const {view, panes} = dftracerView, out = [];
  view.whole();
  let left = 120;
  const frame = () => {
    view.look(view.t0 + view.span * 0.004, view.t1 + view.span * 0.004);
    const began = performance.now();
    for (const p of panes) { p.draw(); p.context.getImageData(0, 0, 1, 1); }
    out.push(performance.now() - began);
    if (--left) requestAnimationFrame(frame); else done(out);
  };
  requestAnimationFrame(frame);
})"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.view", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--browser", action="store_true")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; pictures {WIDTH} pixels wide, of all rows")
    for events in args.events:
        with tempfile.TemporaryDirectory(prefix="bench-view-") as folder:
            made = training_run(Path(folder) / "run", events=events, ranks=4)
            cache = Path(folder) / "cache"
            server, first = first_picture(made.directory, cache)
            whole = server.wait("whole")
            stepped = server.wait("steps")
            server.end()
            kept = sum(f.stat().st_size for f in cache.rglob("*") if f.is_file())
            again = []
            for _ in range(3):
                server, seconds = first_picture(made.directory, cache)
                again.append(seconds)
                if len(again) < 3:
                    server.end()
            server.wait("whole")
            about, rows = everything(server)
            times = zooms(server, about, rows)
            own, mapped = server.rss_mb
            print(
                f"{made.events} events, {rows.count(',') + 1} rows: first picture after {first:.1f} s,"
                f" all of it indexed after {whole:.1f} s, steps after {stepped:.1f} s,"
                f" index {kept / 1e6:.0f} MB ({kept / made.events:.0f} B/event)\n"
                f"  indexed before: first picture {min(again):.2f} s after the command began"
                f" (worst of 3: {max(again):.2f} s)\n"
                f"  {len(times)} zooms: p50 {times[len(times) // 2]:.1f} ms, p99 {times[-3]:.1f} ms,"
                f" max {times[-1]:.1f} ms\n"
                f"  memory of the server: {own:.0f} MB, {mapped:.0f} MB with mapped pages of the index",
                flush=True,
            )
            if args.browser:
                measured = in_browser(server)
                print("  in Chromium: " + ", ".join(f"{k} {v:.2f}" for k, v in measured.items()), flush=True)
            server.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
