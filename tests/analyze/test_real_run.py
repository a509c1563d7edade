"""A real process, really recorded: its ledger must tell what the process knows of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dftracer.analyze import analyze
from dftracer.load import Trace, recover
from support.process import clean_environment

LOOP = """
import json, sys, time
from dftracer.python import ai, dftracer

log = dftracer.initialize_log(sys.argv[1] + "/t.pfw", None, -1)
STAGES = ("fetch_wait", "transfer", "forward", "backward", "optimizer", "checkpoint")
within = dict.fromkeys(STAGES, 0.0)   # what happened inside of the spans
around = dict.fromkeys(STAGES, 0.0)   # the same with the way in and out

def sleep(stage, seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    within[stage] += time.perf_counter() - began

def stage(name, node, seconds):
    began = time.perf_counter()
    with node:
        sleep(name, seconds)
    around[name] += time.perf_counter() - began

def loader():
    for i in range(20):
        sleep("fetch_wait", 0.020)
        yield i

first = left = time.perf_counter()
for i in ai.dataloader.fetch.iter(loader()):
    around["fetch_wait"] += time.perf_counter() - left
    ai.update(step=i, epoch=0)
    stage("transfer", ai.device.transfer, 0.010)
    stage("forward", ai.compute.forward, 0.030)
    stage("backward", ai.compute.backward, 0.040)
    stage("optimizer", ai.compute.step, 0.010)
    if i % 10 == 9:
        stage("checkpoint", ai.checkpoint.capture, 0.050)
    left = time.perf_counter()
log.finalize()
print(json.dumps([within, around, left - first]))
"""


def test_a_loop_of_known_sleeps_is_told(tmp_path: Path) -> None:
    """Each stage takes no less than what happened in its spans, and no more than with the way in and out."""
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    env = clean_environment(DFTRACER_ENABLE="1")
    ran = subprocess.run(
        [sys.executable, script, tmp_path], env=env, check=True, capture_output=True, text=True
    )
    within, around, elapsed = json.loads(ran.stdout)
    a = analyze(tmp_path)
    ledger = a.ledger["total"]
    for stage, least in within.items():
        # Two clocks, and times in whole microseconds.
        assert least * 0.999 - 1e-3 <= ledger[stage] <= around[stage] * 1.001 + 1e-3, stage
    assert len(a.ledger["steps"]) == 20
    assert a.trace_facts["coverage"] >= sum(within.values()) / elapsed - 0.005


KILLED = """
import os, signal, sys, time
from dftracer.python import ai, dftracer

dftracer.initialize_log(sys.argv[1] + "/t.pfw", None, -1)
for i in ai.dataloader.fetch.iter(range(50)):
    with ai.compute.forward:
        time.sleep(0.001)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_read_once_it_is_recovered(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    env = clean_environment(DFTRACER_ENABLE="1")
    ran = subprocess.run([sys.executable, script, tmp_path], env=env, check=False)
    assert ran.returncode == -9
    before = {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    as_left = Trace(tmp_path, names=["forward"]).arrow().num_rows  # making and reading it writes nothing
    assert {f: f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()} == before
    assert as_left < 50
    assert recover(tmp_path) == [str(f) for f in before if f.suffix == ".gz"]
    assert Trace(tmp_path, names=["forward"]).arrow().num_rows == 50
    assert recover(tmp_path) == []
    a = analyze(tmp_path)
    assert {r["name"]: r["count"] for r in a.name_table.iter_rows(named=True)}["forward"] == 50
    assert a.trace_facts["recovered_processes"] or a.trace_facts["processes_without_end"]
    assert "incomplete_trace" in {f.id for f in a.findings}
