"""The documentation builds as a site without a warning, and its pages ask nothing of the network."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).resolve().parents[2]
REFERENCED = [
    f"dftracer.{name}" for name in ("analyze", "auto", "compare", "hooks", "link", "load", "report")
]
FETCHED = {"src", "srcset", "poster", "data", "action"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


class _Requests(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in FETCHED or (tag == "link" and name == "href"):
                self.addresses.append(value or "")


def test_every_page_is_built(site: Path) -> None:
    sources = {p.relative_to(ROOT / "docs").with_suffix("") for p in (ROOT / "docs").rglob("*.md")}
    built = {p.relative_to(site).with_suffix("") for p in site.rglob("*.html")}
    assert sources <= built


def test_no_page_asks_for_anything_outside_of_the_site(site: Path) -> None:
    outside: list[str] = []
    for page in site.rglob("*.html"):
        requests = _Requests()
        requests.feed(page.read_text(encoding="utf-8"))
        for address in requests.addresses:
            target = address.partition("#")[0].partition("?")[0]
            folder = site if target.startswith("/") else page.parent  # 404.html has absolute addresses
            if re.match(r"(\w+:)?//", address) or not (folder / target.lstrip("/")).exists():
                outside.append(f"{page.name}: {address}")
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        outside += [f"{sheet.name}: {u}" for u in re.findall(r"url\([\"']?(https?:[^)]*)", text)]
    assert outside == []


def test_the_reference_has_every_public_function_and_class(site: Path) -> None:
    ids = re.findall(r'id="([\w.]+)"', (site / "api.html").read_text(encoding="utf-8"))
    shown = {name.rpartition(".")[2] for name in ids}
    missing = []
    for name in REFERENCED:
        module = importlib.import_module(name)
        public = [n for n in module.__all__ if callable(getattr(module, n))]
        missing += [f"{name}.{n}" for n in public if n not in shown]
    assert missing == []


def test_pages_open_and_can_be_searched_from_disk(browser: Any, site: Path) -> None:
    pages = ["index.html", "api.html", "architecture.html", "decisions/0001-rings-in-a-mapped-file.html"]
    page = browser.new_page()
    asked: list[str] = []
    noise: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: noise.append(str(error)))
    for name in pages:
        page.goto((site / name).as_uri())
        page.wait_for_selector("h1")
    page.fill(".md-search__input", "DFTRACER_RING_SIZE")
    page.locator(".md-search-result__item", has_text="Settings").first.wait_for()
    assert noise == []
    assert [address for address in asked if not address.startswith(("file:", "data:", "blob:"))] == []
