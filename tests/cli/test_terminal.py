"""Names in a trace are whatever a program made them: no terminal and no browser obeys them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer._console import escape_controls
from dftracer.testing.synthetic import Process, training_run
from support.process import clean_environment

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31mred\x7f\u202e"
OBEYED = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil") / f"run {EVIL}"
    directory = training_run(folder, events=2_000, ranks=1, workers=1, steps_per_epoch=5).directory
    odd = Process(9999)
    odd.span(f"cat {EVIL}", f"name {EVIL}", 0, 50_000_000)
    odd.io("read", 10, 60_000_000, f"/data/{EVIL}", ret=10)
    odd.write(directory)
    return Path(directory)


def _on_a_terminal(*arguments: str) -> str:
    """What the command sends to a terminal."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dftracer.cli", *arguments],
        env=clean_environment(TERM="xterm-256color", COLUMNS="300", PYTHONIOENCODING="utf-8"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    output = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(master)
    process.wait(timeout=60)
    return output.decode("utf-8").replace("\r\n", "\n")


@pytest.mark.parametrize(
    "verb",
    [
        ["report"],
        ["report", "--md"],
        ["info", "-v"],
        ["validate"],
        ["query", "select * from events where name like 'name%'"],
        ["query", "select * from events where name like 'name%'", "--csv"],
    ],
    ids=lambda v: " ".join(v[:1] + v[2:]),
)
def test_no_verb_sends_control_characters(verb: list[str], run: Path) -> None:
    output = _on_a_terminal(verb[0], str(run), *verb[1:], "-q")
    assert "Traceback" not in output
    found = OBEYED.search(output)
    assert found is None, output[max(0, found.start() - 80) : found.end() + 80]


def test_errors_neither(run: Path) -> None:
    output = _on_a_terminal("info", str(run / f"nothing {EVIL}"))
    assert "nothing \\x1b]0;owned" in output
    assert OBEYED.search(output) is None


def test_json_stays_json(run: Path) -> None:
    output = _on_a_terminal("report", str(run), "--json", "-q")
    assert OBEYED.search(output) is None
    document = json.loads(output)
    assert any(EVIL in json.dumps(v, ensure_ascii=False) or "owned" in str(v) for v in document.values())


def test_our_own_colours_and_progress_are_left_alone(run: Path) -> None:
    output = _on_a_terminal("report", str(run))
    assert "\x1b[" in output
    assert "\\x1b[2K" not in output
    assert "\\x0d" not in output


def test_what_is_escaped() -> None:
    assert escape_controls("a\tb\n") == "a\tb\n"
    assert escape_controls("\x1b[2J\x7f\x9b") == "\\x1b[2J\\u007f\\u009b"
    assert escape_controls("größer 日本 🚀") == "größer 日本 🚀"
