"""The native readers' targets: programs built with sanitizers, called with the corpus."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from fuzz.commands import CORPUS

__all__ = ["NATIVE", "run_native"]


def _items(name: str, key: str) -> list[bytes]:
    """The items of a list, as the parser gets them: all, and the first few."""
    text = (CORPUS / "collected" / name).read_bytes()
    begin = re.search(rb'"%s"\s*:\s*\[\s*' % key.encode(), text)
    assert begin is not None
    inside = text[begin.end() : text.rindex(b"]")]
    return [inside, inside[:6000]]


def _files(part: str) -> list[bytes]:
    # The first byte says in which form the text is to be read.
    return [bytes([i]) + p.read_bytes() for i, p in enumerate(sorted((CORPUS / part).iterdir()))]


NATIVE = {
    "scan": lambda: _files("traces"),
    "inflate": lambda: _files("traces"),
    "nodes": lambda: _items("torch_et_0.json", "nodes"),
    "events": lambda: _items("kineto_trace_0.json", "traceEvents"),
}


def run_native(name: str, programs: Path, seconds: int, seed: int, folder: Path) -> tuple[bool, str]:
    """Whether a target held, and what its program said."""
    seeds = []
    for number, data in enumerate(NATIVE[name]()):
        seeds.append(folder / f"{name}-{number}")
        seeds[-1].write_bytes(data)
    last = programs / f"last-{name}"
    program = programs / f"fuzz_{name}"
    words = [str(program), str(seconds), str(seed), str(last), *map(str, seeds)]
    if b"libFuzzer" in program.read_bytes():
        words = [str(program), f"-max_total_time={seconds}", f"-seed={seed}", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    output = done.stdout + done.stderr
    if done.returncode == 0:
        return True, output.strip()
    return False, f"{output}\nthe input is kept in {last}"
