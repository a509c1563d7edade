"""A real process, really recorded: its ledger must tell what the process knows of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.analyze import analyze
from dftracer.load import Trace, recover

pytestmark = pytest.mark.alone

LOOP = """
import json, sys, time
from dftracer.python import ai, dftracer

log = dftracer.initialize_log(sys.argv[1] + "/t.pfw", None, -1)
spent = dict.fromkeys(("fetch_wait", "transfer", "forward", "backward", "optimizer", "checkpoint"), 0.0)

def sleep(stage, seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    spent[stage] += time.perf_counter() - began

def loader():
    for i in range(20):
        sleep("fetch_wait", 0.020)
        yield i

for i in ai.dataloader.fetch.iter(loader()):
    ai.update(step=i, epoch=0)
    with ai.device.transfer:
        sleep("transfer", 0.010)
    with ai.compute.forward:
        sleep("forward", 0.030)
    with ai.compute.backward:
        sleep("backward", 0.040)
    with ai.compute.step:
        sleep("optimizer", 0.010)
    if i % 10 == 9:
        with ai.checkpoint.capture:
            sleep("checkpoint", 0.050)
log.finalize()
print(json.dumps(spent))
"""


def test_a_loop_of_known_sleeps_is_told_to_one_percent(tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}, "DFTRACER_ENABLE": "1"}
    for attempt in range(3):
        traces = tmp_path / str(attempt)
        traces.mkdir()
        ran = subprocess.run(
            [sys.executable, script, traces], env=env, check=True, capture_output=True, text=True
        )
        truth = json.loads(ran.stdout)
        a = analyze(traces)
        ledger = a.ledger["total"]
        # A busy machine may take the CPU away between the program's clock and the span's: then once more.
        if all(ledger[stage] == pytest.approx(seconds, rel=0.01) for stage, seconds in truth.items()):
            break
    for stage, seconds in truth.items():
        assert ledger[stage] == pytest.approx(seconds, rel=0.01), stage
    assert len(a.ledger["steps"]) == 20
    assert a.trace_facts["coverage"] > 0.98


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
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}, "DFTRACER_ENABLE": "1"}
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
