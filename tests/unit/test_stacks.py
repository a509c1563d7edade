"""Stacks of threads and of children are read from outside, whatever the version of Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.process import clean_environment

PROGRAM = """\
import json, os, threading, time
from dftracer import _core

def waits(n):
    for _ in range(300):
        n += 1
    time.sleep(60)  # in a thread

def asks():
    return json.loads(_core.stacks_of(os.getpid()))  # in the main thread

def in_child():
    time.sleep(60)  # in a child

def of(seen):
    return [[frame.rpartition("/")[2] for frame in thread["frames"]] for thread in seen["threads"]]

def until(done, look):
    for _ in range(600):
        found = look()
        if done(found):
            break
        time.sleep(0.1)
    return found

pid = os.fork()
if pid == 0:
    in_child()
for n in range(3):
    threading.Thread(target=waits, args=(n,), daemon=True).start()
own = until(lambda found: all(" waits" in thread[0] for thread in found[1:]), lambda: of(asks()))
child = until(lambda found: found and found[0], lambda: of(json.loads(_core.stacks_of(pid))))
os.kill(pid, 9)
print(json.dumps([own, child]))
"""


@pytest.mark.parametrize("free_threaded", [False, True])
def test_functions_and_lines_of_threads_and_children(free_threaded: bool, tmp_path: Path) -> None:
    python = os.environ.get("DFTRACER_TEST_FREE_THREADED") if free_threaded else sys.executable
    if not python:
        pytest.skip("needs a free-threaded Python with the package: name it in DFTRACER_TEST_FREE_THREADED")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [python, "-W", "ignore", "program.py"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    own, child = json.loads(done.stdout)
    line = {
        text.partition("  # ")[2]: number
        for number, text in enumerate(PROGRAM.splitlines(), 1)
        if "# in" in text
    }
    assert own[0][0] == f"program.py:{line['in the main thread']} asks"
    assert own[0][-1].endswith(" <module>")
    assert [thread[0] for thread in own[1:]] == [f"program.py:{line['in a thread']} waits"] * 3
    assert child[0][0] == f"program.py:{line['in a child']} in_child"
