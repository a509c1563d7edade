"""Subscribers of `dftracer.torch.boundaries` hear what a program does, in its order, until they leave."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.process import clean_environment

pytest.importorskip("torch")

PROGRAM = """
from dftracer import auto
from dftracer.torch import boundaries

heard = []

def hear(kind):
    def told(begins, what):
        if kind == "optimizer":
            assert what is optimizer
        heard.append(kind + (" (" if begins else " )") + (str(what) if type(what) in (int, str) else ""))
    return told

def fails(begins, what):
    raise ValueError("mine")

leave = [boundaries.subscribe(kind, hear(kind)) for kind in boundaries.KINDS]
leave.append(boundaries.subscribe("backward", fails))
auto.install()

import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def epoch():
    for (x,) in DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

epoch()
torch.save(model.state_dict(), "model.pt")
torch.ones(4, 4).to("meta")
for each in leave:
    each()
epoch()
print(*heard, sep="\\n")
"""

STEP = ["model (", "model )", "backward (", "backward )", "optimizer (", "optimizer )"]


def test_what_a_program_does_is_told_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("\\\\", "\\"))
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=clean_environment(DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(tmp_path / "trace")),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    heard = done.stdout.splitlines()
    assert heard == [
        *("optimizer made (", "optimizer made )"),
        *("loader (", "loader )", "batch (", "batch )", *STEP),
        *("step )0", "batch (", "batch )", *STEP),
        *("step )1", "batch (", "batch )"),
        *("checkpoint (", "checkpoint )", "transfer )64"),
    ]
    assert done.stderr.count("ValueError: mine") == 1
