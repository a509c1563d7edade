"""`dftracer run -- torchrun ...`: real ranks over gloo, each with loader workers."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.load import Trace
from support.commands import json_of
from support.process import clean_environment

pytest.importorskip("torch")

STEPS = 6
SCRIPT = f"""
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from dftracer.python import ai

class Files(Dataset):
    def __len__(self):
        return {4 * STEPS}
    def __getitem__(self, i):
        with ai.data.item:
            with open("sample.bin", "rb") as f:
                raw = f.read()
            time.sleep(0.003)
            return torch.tensor(list(raw[:64]), dtype=torch.float32)

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in ai.dataloader.fetch.iter(DataLoader(Files(), batch_size=4, num_workers=1)):
    with ai.compute.forward:
        loss = model(batch).sum()
    with ai.compute.backward:
        loss.backward()
    with ai.compute.step:
        optimizer.step()
    if rank == 1:
        time.sleep(0.01)
    with ai.comm.all_reduce:
        dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
"""


def _run(directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(SCRIPT)
    (directory / "sample.bin").write_bytes(bytes(range(256)) * 40)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    env = clean_environment()
    return subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "run", "-o", "traces", "--", *launcher, "train.py"],
        cwd=directory,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_rank_and_its_workers_are_in_the_report(tmp_path: Path) -> None:
    ran = _run(tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json_of("report", "traces", cwd=tmp_path)
    assert report["trace"]["ranks"] == 2
    assert report["trace"]["ranks_missing"] == []
    assert report["trace"]["processes_without_end"] == []
    assert {(s["rank"], s["index"]) for s in report["ledger"]["steps"]} == {
        (rank, i) for rank in (0, 1) for i in range(STEPS)
    }
    # One worker process for each rank, mapped to it; its feeder threads are no workers.
    assert [w["rank"] for w in report["workers"]] == [0, 1]
    assert all(w["items"] == 4 * STEPS for w in report["workers"])
    for step in report["ledger"]["steps"]:
        assert sum(step["stages"].values()) == pytest.approx(step["wall_s"], abs=2e-5)
        assert step["stages"]["comm"] > 0
    # Rank 1 sleeps outside of any annotation before it joins; rank 0 waits for it.
    assert report["ledger"]["ranks"]["1"]["unexplained"] >= STEPS * 0.01
    reads = Trace(tmp_path / "traces", cache=False).sql(
        "select count(*) from events where name = 'read' and ret = 10240 and path like '%/sample.bin'"
    )
    assert reads.item() == 2 * 4 * STEPS
