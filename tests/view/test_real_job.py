"""A real job of PyTorch, traced automatically: workers, batches, and the steps that waited for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.analyze import analyze
from dftracer.view.events import event_details, search
from dftracer.view.source import Source
from support.process import clean_environment

pytest.importorskip("torch")

PROGRAM = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.full((8,), float(i))

if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(Slow(), batch_size=4, num_workers=2):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_items_lead_to_batches_and_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    env = clean_environment()
    command = [
        sys.executable,
        "-m",
        "dftracer.cli",
        "run",
        "-q",
        "-o",
        "traces",
        "--",
        sys.executable,
        "train.py",
    ]
    env["OMP_NUM_THREADS"] = "1"
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=240)
    source = Source([str(tmp_path / "traces")], cache=False)
    run = source.load()
    labels = {lane.label for lane in run.lanes}
    assert {"rank 0", "rank 0 stages", "loader worker 0", "loader worker 1"} <= labels
    items = [h for h in search(run, "item")["hits"] if (h["cat"], h["name"]) == ("data", "item")]
    assert len(items) == 24
    for item in items:
        result = event_details(run, item["part"], item["span"])
        batch = result["batch"]
        assert batch["items"] == 4
        assert batch["number"] == result["args"]["batch"]
        assert batch["maker"] == item["lane"]
        (wait,) = batch["waits"]
        assert wait["name"] == "fetch.iter"
        assert wait["end"] >= batch["made"]["end"] - 1000
        assert {f["kind"] for f in result["flows"]} == {"item", "batch"}
    assert source.steps().info["ranks"][0]["steps"] == 6
    # One number of events, wherever it is shown.
    assert run.events == analyze(tmp_path / "traces").trace_facts["events"]
