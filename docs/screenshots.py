"""Makes the pictures of the documentation from real runs, in a real browser.

python docs/screenshots.py [NAME ...]      report, loop, huggingface, lightning, view; all without a name

The runs are the programs and commands of the tutorials themselves, and examples/train.py for the README; the
viewer shows the made-up job of its tests, which has a GPU.
"""

from __future__ import annotations

import html
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.ansi import AnsiDecoder
from rich.console import Console

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
IMAGES = DOCS / "images"
TERMINAL_COLUMNS = 96

sys.path.insert(0, str(ROOT / "tests"))
from docs.snippets import blocks_of  # noqa: E402 - the one reader of our code blocks
from support.view_trace import training_job  # noqa: E402

Shoot = Callable[..., None]


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}


def _run(command: str, folder: Path) -> None:
    # Through a pipe: a log file would be among the files of the run.
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    print(done.stdout, done.stderr, sep="\n")
    done.check_returncode()


def _tutorial(name: str, folder: Path) -> None:
    """Its files and its first command."""
    blocks = blocks_of(DOCS / f"tutorial-{name}.md")
    for block in blocks:
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
    command = next(b for b in blocks if b.language == "console").text.splitlines()[0]
    _run(command.removeprefix("$ "), folder)


def _terminal(command: str, folder: Path) -> str:
    """What a command prints to a terminal, as a page."""
    environment = {
        **_environment(),
        "COLUMNS": str(TERMINAL_COLUMNS),
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
    }
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, check=True
    )
    console = Console(record=True, width=TERMINAL_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    text = done.stdout.decode().partition("Files (")[0]  # paths of this machine are of no interest
    for line in AnsiDecoder().decode(f"$ {command}\n{text}"):
        console.print(line, highlight=False)
    style = "body{margin:0} pre{font:14px/1.35 monospace;padding:14px;margin:0;display:inline-block}"
    code = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    head = f"<!doctype html><meta charset=utf-8><title>{html.escape(command)}</title><style>{style}</style>"
    return head + code


def report(folder: Path, shoot: Shoot) -> None:
    """The README's: the run of `make demo`, light and dark."""
    shutil.copy(ROOT / "examples" / "train.py", folder)
    _run("dftracer run -q -o traces --html report.html -- python train.py --directory data", folder)
    _run("COLUMNS=80 dftracer report traces", folder)  # the README quotes it
    for scheme in ("light", "dark"):
        shoot(folder / "report.html", f"report-{scheme}", height=1500, scheme=scheme)


def loop(folder: Path, shoot: Shoot) -> None:
    _tutorial("loop", folder)
    shoot(folder / "before.html", "tutorial-loop", height=1000)
    page = folder / "terminal.html"
    page.write_text(_terminal("dftracer report before", folder), encoding="utf-8")
    shoot(page, "tutorial-terminal", element="pre")


def huggingface(folder: Path, shoot: Shoot) -> None:
    _tutorial("huggingface", folder)
    shoot(folder / "report.html", "tutorial-huggingface", height=1000)


def lightning(folder: Path, shoot: Shoot) -> None:
    _tutorial("lightning", folder)
    shoot(folder / "report.html", "tutorial-lightning", height=1000)


def view(folder: Path, shoot: Shoot) -> None:
    """One step with its arrows, and two runs."""
    before = training_job(folder / "before")
    after = training_job(folder / "after", seed=2, slower=1.6)
    for name, paths, scheme, keys in (
        ("view-light", [before], "light", [*"]]]]", "ArrowDown", "ArrowDown", "ArrowRight"]),
        ("view-dark", [before, after], "dark", ["w", "r"]),
    ):
        command = [
            sys.executable,
            "-m",
            "dftracer.cli",
            "view",
            *map(str, paths),
            "--no-open",
            "-q",
            "--no-cache",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        try:
            shoot(server.stdout.readline().strip(), name, height=800, scheme=scheme, keys=keys)
        finally:
            server.terminate()
            server.wait()


PICTURES = {f.__name__: f for f in (report, loop, huggingface, lightning, view)}


def main(names: list[str]) -> int:
    browser_path = next(b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b)
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])

        def shoot(
            place: Path | str,
            name: str,
            height: int = 900,
            scheme: Any = "light",
            element: str = "",
            keys: Iterable[str] = (),
        ) -> None:
            page = browser.new_page(viewport={"width": 1200, "height": height}, color_scheme=scheme)
            page.goto(place if isinstance(place, str) else place.as_uri())
            page.wait_for_selector(element or "html[data-ready]")
            for key in keys:
                page.wait_for_timeout(500)  # what a key asks for arrives
                page.keyboard.press(key)
            page.wait_for_timeout(1500 if keys else 0)
            target = page.locator(element) if element else page
            target.screenshot(path=IMAGES / f"{name}.png")

        for name in names or PICTURES:
            with tempfile.TemporaryDirectory(prefix="run-") as folder:
                PICTURES[name](Path(folder), shoot)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
