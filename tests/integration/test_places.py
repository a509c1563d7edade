"""Where else programs run: without file locks, from prefixes with blanks, in kernels, in greenlets."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dftracer
from support.process import clean_environment

PROGRAM = """
import os, signal, sys
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
for i in range(1000):
    with ai.compute.forward(args={"i": i}): pass
if sys.argv[1:]: os.kill(os.getpid(), signal.SIGKILL)
log.finalize()
"""
NO_LOCKS = """
#include <errno.h>
int flock(int fd, int what) { (void)fd; (void)what; errno = ENOLCK; return -1; }
"""


def _states(traces: Path, **env: str) -> list[tuple[int, list[str]]]:
    command = [sys.executable, "-m", "dftracer.cli", "info", str(traces), "--json"]
    done = subprocess.run(command, env=clean_environment(**env), capture_output=True, check=True)
    return sorted((f["events"], f["problems"]) for f in json.loads(done.stdout)["files"])


def test_a_file_system_without_locks(tmp_path: Path) -> None:
    """Neither writing nor completing a killed process's trace depends on them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "no_locks.c").write_text(NO_LOCKS)
    library = str(tmp_path / "no_locks.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, str(tmp_path / "no_locks.c")], check=True)
    traces = tmp_path / "traces"
    env = {"LD_PRELOAD": library, "DFTRACER_ENABLE": "1", "DFTRACER_DISABLE_IO": "1"}
    for how in ([], ["killed"]):
        subprocess.run(
            [sys.executable, "-c", PROGRAM, *how],
            env=clean_environment(**env, DFTRACER_LOG_FILE=str(traces / "t")),
            check=False,
        )
    assert _states(traces, LD_PRELOAD=library) == [
        (1002, []),
        (1002, ["completed after the process had died"]),
    ]


def test_a_prefix_with_a_blank(tmp_path: Path) -> None:
    """LD_PRELOAD cannot hold such a path: the library is found by way of a link, and I/O is recorded."""
    prefix = tmp_path / "my env: new"
    shutil.copytree(Path(dftracer.__file__).parent, prefix / "dftracer")
    (tmp_path / "data.txt").write_text("data")
    traces = tmp_path / "traces"
    program = "import dftracer; print(dftracer.__file__); print(open('data.txt').read())"
    shown = (
        "import sys, runpy; sys.path.insert(0, sys.argv.pop(1));"
        "runpy.run_module('dftracer.cli', None, '__main__')"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            shown,
            str(prefix),
            "run",
            "-q",
            "-o",
            str(traces),
            "--",
            sys.executable,
            "-c",
            program,
        ],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.endswith("data\n")
    query = [
        sys.executable,
        "-m",
        "dftracer.cli",
        "query",
        "select path from events",
        str(traces),
        "--no-cache",
    ]
    paths = subprocess.run(query, env=clean_environment(), capture_output=True, text=True, check=True).stdout
    assert str(tmp_path / "data.txt") in paths


def test_a_read_only_file_system(tmp_path: Path) -> None:
    """The program runs as it would, and one line says that nothing can be written."""
    place = tmp_path / "place"
    place.mkdir()
    inside = f"mount -t tmpfs -o ro none {shlex.quote(str(place))} && exec " + shlex.join(
        [sys.executable, "-c", "import sys; print('ran', sys.argv[1:]); sys.exit(3)", "x"]
    )
    traced = inside.replace(
        " && exec ", f" && exec {shlex.quote(sys.executable)} -m dftracer.cli run -q -o {place}/t -- "
    )
    printed = []
    for command in (inside, traced):
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", command],
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 3 and command is inside:
            pytest.skip("no name spaces to mount in")
        printed.append((done.returncode, done.stdout))
    assert printed == [(3, "ran ['x']\n")] * 2
    assert done.stderr.count("\n") == 1
    assert "Read-only file system" in done.stderr


def test_a_kernel_that_is_restarted(tmp_path: Path) -> None:
    """Killed or asked, each life of a notebook's kernel has a trace of its own with all its events."""
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    manager = client.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    settings = {
        "DFTRACER_ENABLE": "1",
        "DFTRACER_LOG_FILE": str(tmp_path / "traces" / "t"),
        "DFTRACER_DISABLE_IO": "1",
    }
    manager.start_kernel(env=clean_environment(**settings), cwd=str(tmp_path))
    kernel = manager.client()
    kernel.start_channels()
    try:
        for killed in (True, False, None):
            kernel.wait_for_ready(120)
            reply = kernel.execute_interactive(
                PROGRAM.rpartition("if sys.argv")[0], timeout=120, output_hook=lambda _: None
            )
            assert reply["content"]["status"] == "ok"
            if killed is not None:
                manager.restart_kernel(now=killed)
    finally:
        kernel.stop_channels()
        manager.shutdown_kernel()
    assert [events for events, _ in _states(tmp_path / "traces")] == [1002] * 3


def test_greenlets(tmp_path: Path) -> None:
    """The output of a program in greenlets is its own, with and without a tracer below it."""
    pytest.importorskip("gevent")
    program = tmp_path / "program.py"
    program.write_text(
        "from gevent import monkey; monkey.patch_all()\n"
        "import gevent, os, subprocess, threading\n"
        "def work(n):\n"
        "    for _ in range(50):\n"
        "        gevent.sleep(0); open(os.devnull).close()\n"
        "    return n\n"
        "jobs = [gevent.spawn(work, n) for n in range(20)]\n"
        "gevent.joinall(jobs)\n"
        "t = threading.Thread(target=work, args=(1,)); t.start(); t.join()\n"
        "print([j.value for j in jobs], subprocess.run(['echo', 'child'], capture_output=True).stdout)\n"
    )
    printed = []
    for launcher in (
        [],
        ["run", "-q", "-o", "a"],
        ["run", "-q", "--modules", "-o", "b"],
        ["collect", "-q", "-o", "c"],
    ):
        command = [sys.executable, "-m", "dftracer.cli", *launcher, "--"] if launcher else []
        done = subprocess.run(
            [*command, sys.executable, str(program)],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        printed.append((done.returncode, done.stdout))
    assert printed == [printed[0]] * 4
    assert printed[0][0] == 0
    assert os.listdir(tmp_path / "a")
