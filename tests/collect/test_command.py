"""`dftracer collect` and the environment: no line of the program changes."""

from __future__ import annotations

import sys

from .conftest import Runner

CLI = [sys.executable, "-m", "dftracer.cli", "collect", "-o", "out"]

TRAIN = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 16)), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    other.step()
print(sys.argv[1:])
sys.exit(3)
"""


def test_training_without_a_change(run: Runner) -> None:
    """Steps are the optimizer's; arguments and exit code pass through; our trace is there with its I/O."""
    done = run(
        prelude=TRAIN,
        command=[*CLI, "--wait", "2", "--active", "1", "--repeat", "2", "program.py", "--wait", "x"],
        expect=3,
    )
    assert done.stdout.splitlines() == ["['--wait', 'x']"]
    assert "rank 0: 2 windows in 10 steps" in done.stderr
    manifest = done.manifest()
    assert [w["steps"] for w in manifest["windows"]] == [[3, 3], [7, 7]]
    for window in ("0", "0_w1"):
        done.assert_whole(window)
    assert len([e for e in done.events() if e["name"].startswith("ProfilerStep#")]) == 10
    assert manifest["command"] == ["program.py", "--wait", "x"]


def test_inference_by_environment(run: Runner) -> None:
    """No optimizer: the loader's batches are the steps. The variables alone are enough."""
    folder = run(prelude="", command=[sys.executable, "-m", "dftracer.collect"]).stdout.strip()
    done = run(
        prelude="""
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(16, 4)
with torch.no_grad():
    for (x,) in DataLoader(TensorDataset(torch.randn(40, 16)), batch_size=4):
        for _ in range(9):
            model(x)
""",
        env={
            "PYTHONPATH": folder,
            "DFTRACER_COLLECT": "out",
            "DFTRACER_COLLECT_WAIT": "1",
            "DFTRACER_COLLECT_ACTIVE": "3",
            "DFTRACER_COLLECT_TRACES": "pfw,et,kineto",
        },
    )
    done.assert_whole()
    assert done.manifest()["windows"][0]["steps"] == [2, 4]
    assert done.manifest()["steps"] == 10
    assert done.events()


def test_bad_settings_are_said_before_the_program_runs(run: Runner) -> None:
    """Exit code 2, and nothing started."""
    done = run(prelude="print('ran')", command=[*CLI, "--traces", "nsys,kineto", "program.py"], expect=2)
    assert "exclude each other" in done.stderr
    assert "ran" not in done.stdout


def test_nothing_to_collect(run: Runner) -> None:
    """A program that does not train leaves a sentence, no files of ours."""
    done = run(prelude="import torch; print(torch.ones(2).sum())", command=[*CLI, "program.py"])
    assert "nothing was collected" in done.stderr
    assert not [name for name in done.names if not name.endswith(".pfw.gz")]
