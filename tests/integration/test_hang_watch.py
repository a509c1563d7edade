"""The hang watch: programs that stand still, and programs that only look as if they did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment

pytest.importorskip("torch")

PATIENCE_S = 120  # for a busy machine; nothing here takes this long

# Trains for a while, then calls `standstill()`; each program has its own.
TRAINING = """
import ctypes, os, sys, threading, time
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps, after=lambda step: None, **options):
    loader = DataLoader(TensorDataset(torch.randn(4 * steps, 4)), batch_size=4, **options)
    for step, (x,) in enumerate(loader):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        after(step)
        optimizer.step()

def reported(went_on=False):
    # Do nothing until the watch has written this.
    for _ in range(1000):
        if os.path.exists("traces/hang_0.json"):
            if not went_on or '"went_on_after_s":null' not in open("traces/hang_0.json").read():
                return
        time.sleep(0.1)
"""


class Program:
    """A program that was started under `dftracer run`, in a folder of its own."""

    def __init__(self, folder: Path, source: str, **settings: str) -> None:
        self.folder = folder
        (folder / "program.py").write_text(TRAINING + textwrap.dedent(source))
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(folder / "traces"), "--"),
                *(sys.executable, "program.py"),
            ],
            cwd=folder,
            env=clean_environment(OMP_NUM_THREADS="1", **{"DFTRACER_HANG_S": "1", **settings}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def hang_file(self) -> Path:
        return self.folder / "traces" / "hang_0.json"

    def hang(self, until: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """What the watch wrote, once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if self.hang_file.exists():
                found: dict[str, Any] = json.loads(self.hang_file.read_text())
                if until(found):
                    return found
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)
        raise AssertionError("no hang was reported")

    def end(self, result: str = "") -> str:
        """Its stderr, once it has ended; `told` is what it reads."""
        _, stderr = self.process.communicate(result, timeout=PATIENCE_S)
        assert self.process.returncode == 0, stderr
        return stderr


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []

    def begin(source: str, **settings: str) -> Program:
        started.append(Program(tmp_path, source, **settings))
        return started[-1]

    yield begin
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)  # with its workers
        each.process.communicate()


def line_of(program: Program, text: str) -> int:
    lines = (program.folder / "program.py").read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_a_read_that_waits_and_goes_on(start: Start) -> None:
    program = start(
        """
        os.mkfifo("pipe")
        def load_shard():
            with open("pipe") as pipe:
                return pipe.read()

        train(30, lambda step: load_shard() if step == 20 else None)
        reported(went_on=True)
        """
    )
    here = line_of(program, "with open")
    found = program.hang()
    assert {"rank", "state", "step", "stage", "where", "since_s", "collective", "open_file"} <= set(found)
    assert {"exit_code", "signal", "exception", "threads", "workers", "events"} <= set(found)
    assert (found["step"], found["where"]) == (20, f"program.py:{here} load_shard")
    assert found["open_file"].endswith("pipe")
    assert found["went_on_after_s"] is None
    main = found["threads"][0]
    assert main["frames"][0].rpartition("/")[2] == f"program.py:{here} load_shard"
    assert main["call"] == "open"
    assert 0 < len(found["events"]) <= 50
    assert {e["ph"] for e in found["events"]} == {"X"}
    (program.folder / "pipe").write_text("data")
    done = program.hang(lambda f: f["went_on_after_s"] is not None)
    assert done["went_on_after_s"] >= found["since_s"]
    stderr = program.end()
    result = [line for line in stderr.splitlines() if line.startswith("dftracer: ")]
    assert "no progress for" in result[0]
    assert "load_shard" in result[0]
    assert "resumed after" in result[1]
    assert len(result) == 2


def test_a_call_that_keeps_the_interpreter_lock(start: Start) -> None:
    program = start(
        """
        sleep = ctypes.PyDLL(None).sleep

        def keeps_it(step):
            if step == 20:
                sleep(600)  # here

        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        train(30, keeps_it)
        """
    )
    found = program.hang()
    assert found["where"] == f"program.py:{line_of(program, 'sleep(600)  # here')} keeps_it"
    assert found["lock_held_by"] == found["threads"][0]["tid"]
    assert [t for t in found["threads"] if not t["frames"]] == []


def test_a_loader_worker_that_waits_for_a_file(start: Start) -> None:
    program = start(
        """
        os.mkfifo("pipe")

        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 200
            def __getitem__(self, i):
                if i == 150:
                    open("pipe").read()  # here
                return torch.randn(4)

        for x in DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
            model(x).sum().backward()
            optimizer.step()
        """
    )
    found = program.hang()
    assert found["stage"] == "fetch_wait"
    (worker,) = (w for w in found["workers"] if w["open_file"])
    assert worker["open_file"].endswith("pipe")
    assert worker["where"] == f"program.py:{line_of(program, '# here')} Data.__getitem__"


def test_no_alarm_without_training_or_after_it(start: Start) -> None:
    program = start(
        """
        time.sleep(5)  # has not begun
        with torch.no_grad():
            for _ in range(20):
                model(torch.ones(4))
            time.sleep(5)  # a server that nobody asks
        train(30)
        time.sleep(5)  # the training is over
        train(30)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            pass

        def leave():
            threading.Thread(target=time.sleep, args=(5,)).start()
            raise SystemExit

        train(30, lambda step: leave() if step == 20 else None)  # and waits for its thread
        """,
        DFTRACER_HANG_S="3",  # less than any of these, and more than a busy machine keeps a step waiting
    )
    assert "no progress for" not in program.end()
    assert not program.hang_file.exists()


@pytest.mark.thorough
def test_it_can_be_switched_off(start: Start) -> None:
    program = start("train(30, lambda step: time.sleep(4) if step == 20 else None)", DFTRACER_HANG_S="0")
    assert "no progress for" not in program.end()
    assert not program.hang_file.exists()


@pytest.mark.thorough
def test_fork_exec_and_exit_while_it_watches(start: Start) -> None:
    program = start(
        """
        import subprocess
        train(10)
        child = os.fork()
        if child == 0:
            train(10)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.DEVNULL).returncode == 0
        train(30, lambda step: reported() if step == 20 else None)
        reported(went_on=True)
        """
    )
    found = program.hang(lambda f: f["went_on_after_s"] is not None)
    assert found["step"] == 30
    program.end()
    assert os.listdir(program.folder / "traces").count("hang_0.json") == 1


def test_its_threads_are_not_there_around_a_fork_and_come_back(start: Start) -> None:
    """Python 3.12 and later count the threads of a process that forks, and warn."""
    program = start(
        """
        from dftracer import _core

        def names():
            return [open(f"/proc/self/task/{t}/comm").read().strip() for t in os.listdir("/proc/self/task")]

        train(10)
        while "dftracer-watch" not in names():
            time.sleep(0.01)
        before = names()
        _core.pause_threads()
        meanwhile = names()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        _core.resume_threads()
        while sorted(names()) != sorted(before):
            time.sleep(0.01)
        print(len(before) - len(meanwhile), "dftracer-watch" in meanwhile)
        train(30, lambda step: reported() if step == 20 else None)
        reported(went_on=True)
        """
    )
    assert program.hang(lambda f: f["went_on_after_s"] is not None)["step"] == 30
    stdout, stderr = program.process.communicate(timeout=PATIENCE_S)
    assert program.process.returncode == 0, stderr
    assert stdout == "2 False\n"  # the watch, and who samples own code
