"""Makes the pictures of the README: a demo run's report in a real browser, light and dark.

python docs/screenshots.py [REPORT.html]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from dftracer.analyze import analyze
from dftracer.load.synthetic import Process
from dftracer.report import html_page

IMAGES = Path(__file__).parent / "images"
MS = 1000


def example(directory: Path) -> Path:
    """Four ranks with two workers each; rank 2 is slow, one file is slow, and there are checkpoints."""
    for rank in range(4):
        main = Process(100 * (rank + 1), rank=rank, world_size=4)
        workers = [Process(main.pid + 1 + w, ppid=main.pid) for w in range(2)]
        t = 0
        for i in range(120):
            epoch = i // 40
            file = f"/data/train/shard-{(i * 7 + rank) % 24:03d}.tar"
            load = (
                (9 if epoch == 0 else 6) * MS
                + (i * 37 % 11) * 150
                + (12 * MS if file.endswith("005.tar") else 0)
            )
            wait = max(400, load - 5 * MS)
            forward = (5 if rank == 2 else 3) * MS + i * 13 % 7 * 60
            body = forward + 8 * MS + (0 if rank == 2 else 2 * MS)
            main.step(i + 1, t, wait, body, epoch=epoch, step=i)
            main.span("device", "transfer", t + wait, 500)
            main.span("compute", "forward", t + wait + 500, forward)
            main.span("compute", "backward", t + wait + 500 + forward, body - forward - 1200)
            main.span("comm", "all_reduce", t + wait + forward + 4 * MS, body - forward - 5 * MS)
            main.span("compute", "step", t + wait + body - 600, 500)
            w = workers[i % 2]
            w.span("data", "item", t, load, epoch=epoch, step=i)
            w.io("open", t + 50, 200, file, ret=5)
            w.io("read", t + 300, load // 2, file, ret=1 << 20, count=1 << 20)
            w.span("data", "preprocess", t + 400 + load // 2, load // 2 - 600)
            w.span("data", "preprocess.collate", t + load, 700)
            t += wait + body
            if i % 40 == 39:
                main.span("checkpoint", "capture", t, 60 * MS)
                main.io("write", t + MS, 50 * MS, f"/ckpt/{epoch}.pt", ret=1 << 26, count=1 << 26)
                t += 60 * MS
        for p in (main, *workers):
            p.write(directory)
    page = directory / "report.html"
    page.write_text(html_page(analyze(directory)), encoding="utf-8")
    return page


def main() -> int:
    browser_path = next(b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        page_file = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else example(Path(folder))
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1200, "height": 1500}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.wait_for_selector("html[data-ready]")
            page.screenshot(path=IMAGES / f"report-{scheme}.png")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
