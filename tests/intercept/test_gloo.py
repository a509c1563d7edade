"""Collectives that gloo runs: real ranks, each collective once, with the same number on all of them."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing import read
from support.process import clean_environment

pytest.importorskip("torch")

STEPS = 5
PROGRAM = f"""
import threading, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from dftracer import _core

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
pair = dist.new_group([0, 1])
for batch in DataLoader(torch.randn({STEPS}, 64), batch_size=1):
    model(batch).sum().backward()
    optimizer.step()
dist.all_reduce(torch.ones(3, dtype=torch.float64))
work = dist.all_reduce(torch.ones(5), group=pair, async_op=True)
work.wait()
if rank == 1:
    dist.send(torch.ones(2), 0)
else:
    dist.recv(torch.ones(2), 1)
seen = []
if rank == 0:
    def look():
        while not seen:
            seen.extend(_core.open_collectives())
            time.sleep(0.01)
    watch = threading.Thread(target=look)
    watch.start()
else:
    time.sleep(0.5)
dist.barrier()
if rank == 0:
    watch.join()
    print("OPEN", seen[0], flush=True)
    assert not _core.open_collectives()
dist.barrier()
dist.destroy_process_group()
"""


def run(directory: Path, program: str, ranks: int = 2) -> str:
    """Run a program under `dftracer run` and torchrun, its traces in `traces`; what it printed."""
    (directory / "train.py").write_text(program)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    env = clean_environment()
    ran = subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", "traces", "--", *launcher, "train.py"],
        cwd=directory,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[int, list[Any]]]:
    """What a run printed, and the records of communication of each rank's process."""
    directory = tmp_path_factory.mktemp("gloo")
    printed = run(directory, PROGRAM)
    by_process: dict[int, list[Any]] = {}
    for event in read(directory / "traces").events:
        if event.cat == "comm":
            by_process.setdefault(event.pid, []).append(event)
    assert len(by_process) == 2
    return printed, by_process


def collectives(events: list[Any]) -> dict[tuple[str, int], Any]:
    named = [e for e in events if e.name not in ("wait", "send", "receive")]
    out = {(str(e.args["group"]), int(e.args["seq"])): e for e in named}
    assert len(out) == len(named), "a collective has two records"
    return out


def test_every_collective_is_one_record_with_the_same_number_on_all_ranks(
    ddp: tuple[str, dict[int, list[Any]]],
) -> None:
    one, two = (collectives(events) for events in ddp[1].values())
    assert {k: e.name for k, e in one.items()} == {k: e.name for k, e in two.items()}
    assert {k: e.args["bytes"] for k, e in one.items()} == {k: e.args["bytes"] for k, e in two.items()}
    numbers = sorted(seq for group, seq in one if group == "0")
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_all_reduce_of_ddp_is_a_record(ddp: tuple[str, dict[int, list[Any]]]) -> None:
    parameters = 64 * 8 + 8 + 8 * 4 + 4
    for events in ddp[1].values():
        reduced = [
            e
            for e in events
            if e.name == "all_reduce"
            and e.args["bytes"] == 4 * parameters
            and e.args.get("below_python") == 1
        ]
        assert len(reduced) == STEPS
        assert {e.args["group"] for e in reduced} == {"0"}


def test_the_programs_own_calls_are_recorded_once(ddp: tuple[str, dict[int, list[Any]]]) -> None:
    for events in ddp[1].values():
        [waited_for] = [e for e in events if e.name == "all_reduce" and e.args["bytes"] == 24]
        assert "below_python" not in waited_for.args
        [not_waited_for] = [e for e in events if e.name == "all_reduce" and e.args["bytes"] == 20]
        assert not_waited_for.args["below_python"] == 1
        assert not_waited_for.args["group"] != "0"
        assert len([e for e in events if e.name == "barrier"]) == 2
        assert len([e for e in events if e.name in ("send", "receive")]) == 1


def test_an_open_collective_can_be_seen(ddp: tuple[str, dict[int, list[Any]]]) -> None:
    printed, events = ddp
    [line] = [line for line in printed.splitlines() if "OPEN" in line]
    barriers = sorted(e.args["seq"] for e in next(iter(events.values())) if e.name == "barrier")
    assert f"('barrier', '0', {barriers[0]}, 0)" in line


def test_nothing_is_recorded_where_interception_is_off(tmp_path: Path) -> None:
    program = tmp_path / "alone.py"
    program.write_text(
        "import json, os, torch, torch.distributed as dist\n"
        "from dftracer.python import dftracer\n"
        "log = dftracer.initialize_log('alone.pfw', data_dir='all', process_id=0)\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(3))\n"
        "dist.destroy_process_group()\n"
        "log.finalize()\n"
    )
    found: dict[str, int] = {}
    for disabled in ("0", "1"):
        folder = tmp_path / disabled
        folder.mkdir()
        env = {**os.environ, "DFTRACER_ENABLE": "1", "DFTRACER_DISABLE_CUDA": disabled}
        subprocess.run([sys.executable, str(program)], cwd=folder, env=env, check=True, timeout=300)
        found[disabled] = sum(e.cat == "comm" and "below_python" in e.args for e in read(folder).events)
    assert found["1"] == 0 < found["0"], json.dumps(found)


# A thread of gloo that is the last to hold a collective asks for the GIL, to let go of its tensors, once the
# interpreter has begun to end, or after 20 ms. The program ends when a thread has come to that.
LATE_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

void PyEval_AcquireThread(void* state) {
  void (*acquire)(void*) = (void (*)(void*))dlsym(RTLD_NEXT, "PyEval_AcquireThread");
  int (*ending)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
  if (!ending) ending = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (!strcmp(name, "pt_gloo_runloop")) {
    setenv("GLOO_ASKED", "1", 1);
    if (write(1, "asked\\n", 6) != 6) abort();
    for (int i = 0; i < 20 && !ending(); ++i) usleep(1000);
  }
  acquire(state);
}
"""
ENDS_AT_ONCE = """
import ctypes
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
get = ctypes.CDLL(None).getenv
get.restype = ctypes.c_void_p
while not get(b"GLOO_ASKED"):  # unless the program was the last to hold it
    dist.all_reduce(torch.ones(4), async_op=True)
    for _ in range(200):  # one after the other: torch itself does not wait for one that is under way
        if get(b"GLOO_ASKED"):
            break
        time.sleep(0.001)
"""


def test_a_thread_of_gloo_lets_go_before_the_interpreter_ends(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("needs a C compiler")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("needs a Python whose functions are in a library: a preloaded one stands before that")
    (tmp_path / "late.c").write_text(LATE_THREAD)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "late.so", "late.c"], cwd=tmp_path, check=True)
    (tmp_path / "train.py").write_text(ENDS_AT_ONCE)
    ran = subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", "traces", "--", sys.executable, "train.py"],
        cwd=tmp_path,
        env={**clean_environment(), "LD_PRELOAD": str(tmp_path / "late.so")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    # More than one collective may be under way by the time the program sees that one was late.
    assert (ran.returncode, set(ran.stdout.split()), ran.stderr) == (0, {"asked"}, "")
