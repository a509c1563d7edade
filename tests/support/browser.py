"""Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["chromium"]

# The shell without a window takes half the CPU time of the browser that most machines have.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of its own; a machine without one skips."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next((found for found in map(shutil.which, _NAMES) if found), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
