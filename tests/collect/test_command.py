"""`dftracer collect` and the environment: no line of the program changes."""

from __future__ import annotations

import sys

from .conftest import Collected, Runner

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
        command=[sys.executable, "program.py"],
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


GAN = """
import pickle, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
generator, critic = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
both = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (critic, generator)]

def one(x, optimizers):
    for optimizer in optimizers:
        optimizer.zero_grad()
        (critic(x) - critic(generator(x))).mean().backward()
        optimizer.step()

for (x,) in DataLoader(TensorDataset(torch.randn(24, 8)), batch_size=4):
    one(x, [both[0], *both])  # the critic twice
for _ in range(6):
    one(torch.randn(4, 8), both)
watched = [torch.load, torch.save, torch.autograd.backward, DataLoader.__iter__]
watched.append(torch.optim.Optimizer.__init__)
print(*(pickle.loads(pickle.dumps(each)) is each for each in watched))
"""


def _stages(done: Collected) -> list[tuple[str, str, int]]:
    """What is told of each step, less the times."""
    return sorted(
        (e["cat"], e["name"], e["args"].get("step", -1))
        for e in done.events()
        if e["args"].get("auto")
        and e["cat"] != "sample"
        # On a busy machine iter(loader) and the first batch are two waits, the first of no step.
        and (e["name"] != "fetch.iter" or "step" in e["args"])
    )


def test_collecting_is_run_with_windows(run: Runner) -> None:
    """The same stages under the same step numbers, and nothing of the program is another object."""
    plain = run(
        prelude=GAN,
        command=[sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", "plain", "program.py"],
        out="plain",
    )
    done = run(prelude=GAN, command=[*CLI, "--wait", "3", "--repeat", "2", "program.py"])
    assert done.stdout == plain.stdout == "True True True True True\n"
    stages = _stages(done)
    assert stages == _stages(plain)
    assert [step for _, name, step in stages if name == "fetch.block"] == list(range(12))
    marks = [e for e in done.events() if e["cat"] == "PP"]
    assert [e["args"]["step"] for e in marks] == list(range(12))
    assert [w["steps"] for w in done.manifest()["windows"]] == [[4, 5], [10, 11]]
    # What a window costs lies between steps: each mark ends with its step, before the next one begins.
    blocks = sorted((e["ts"], e["ts"] + e["dur"]) for e in done.events() if e["name"] == "fetch.block")
    for mark, (_, end), (begin, _) in zip(marks[7:], blocks[7:], blocks[8:], strict=False):
        assert end <= mark["ts"] + mark["dur"] <= begin


def test_steps_are_counted_as_asked_and_without_a_trace_of_ours(run: Runner) -> None:
    """`--steps optimizer` counts the first optimizer's calls; `--traces` without pfw leaves none."""
    done = run(
        prelude=GAN,
        command=[*CLI, "--steps", "optimizer", "--traces", "kineto", "--active", "1", "program.py"],
    )
    assert done.manifest()["steps"] == 18
    assert done.manifest()["windows"][0]["kineto"]
    assert not [name for name in done.names if ".pfw" in name]


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
