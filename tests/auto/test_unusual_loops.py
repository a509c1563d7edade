"""Training loops off the beaten track: every step is seen, and nothing else is taken for one."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from typing import TypeAlias

import pytest

from dftracer.testing import Event, read
from support.process import clean_environment

PROGRAM = """
import gc, itertools, os, sys
import torch
import torch._dynamo  # every first optimizer imports it: once for all
from torch.utils.data import DataLoader, TensorDataset
import dftracer.torch.loader

def loader():
    return DataLoader(TensorDataset(torch.arange(12.0).reshape(6, 2)), batch_size=2)

def gradients():
    dftracer.torch.loader.id = lambda loader: 1  # each is where the one before it was freed
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for (x,) in loader():
            found = torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found):
                parameter.grad = gradient
            optimizer.step()
        for (x,) in loader():  # looks at gradients, and learns nothing
            x.requires_grad_()
            torch.autograd.grad(model(x).sum(), x)

def no_backward():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in loader():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

def no_optimizer():
    model = torch.nn.Linear(2, 1)
    for epoch in range(2):
        for (x,) in loader():
            model(x).pow(2).mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None

def penalty():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in loader():
        optimizer.zero_grad()
        x.requires_grad_()
        slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
        (model(x).mean() + slope.norm()).backward()
        optimizer.step()

gc.freeze()  # torch's objects are no garbage of the loops
for program in sys.argv[1:]:
    pid = os.fork()
    if pid == 0:
        globals()[program]()
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0
    print(program, pid)
"""
Seen: TypeAlias = dict[str, dict[str, list[Event]]]
PROGRAMS = ("gradients", "no_backward", "no_optimizer", "penalty")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What each of the loops left, in a process of its own that found torch imported."""
    place = tmp_path_factory.mktemp("unusual")
    (place / "loops.py").write_text(PROGRAM)
    env = clean_environment()
    env |= {"DFTRACER_ENABLE": "1", "DFTRACER_AUTO": "torch", "DFTRACER_LOG_FILE": str(place / "t")}
    done = subprocess.run(
        [sys.executable, "loops.py", *PROGRAMS],
        cwd=place,
        env={**env, "OMP_NUM_THREADS": "1", "DFTRACER_DISABLE_IO": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pids = dict(line.split() for line in done.stdout.splitlines())
    found: Seen = {name: defaultdict(list) for name in PROGRAMS}
    names = {int(pid): name for name, pid in pids.items()}
    for event in read(place):
        if event.pid in names:
            found[names[event.pid]][event.name].append(event)
    return found


def test_gradients_that_an_optimizer_uses_are_a_backward(seen: Seen) -> None:
    events = seen["gradients"]
    assert [e.args["step"] for e in events["fetch.block"]] == list(range(6))
    assert len(events["evaluate"]) == 2
    for step, (forward, backward, update) in enumerate(
        zip(events["forward"], events["backward"], events["step"], strict=True)
    ):
        assert [e.args["step"] for e in (forward, backward, update)] == [step] * 3
        assert forward.ts < backward.ts < update.ts
    assert len(events["step"]) == 6


def test_what_only_looks_at_gradients_is_no_epoch(seen: Seen) -> None:
    events = seen["gradients"]
    assert [e.args["epoch"] for e in events["epoch"]] == [0, 1]
    assert [e.args["epoch"] for e in events["evaluate"]] == [0, 1]
    assert [e.args["epoch"] for e in events["fetch.block"]] == [0, 0, 0, 1, 1, 1]


def test_what_an_optimizer_steps_for_is_no_evaluation(seen: Seen) -> None:
    events = seen["no_backward"]
    assert len(events["fetch.block"]) == len(events["step"]) == 3
    assert not events["evaluate"]
    assert not events["backward"]


def test_without_an_optimizer_a_step_is_a_batch_with_a_backward(seen: Seen) -> None:
    events = seen["no_optimizer"]
    assert [e.args["step"] for e in events["fetch.block"]] == list(range(6))
    assert [e.args["epoch"] for e in events["epoch"]] == [0, 1]
    assert len(events["forward"]) == len(events["backward"]) == 6


def test_gradients_of_gradients_are_a_part_of_forward(seen: Seen) -> None:
    events = seen["penalty"]
    assert len(events["fetch.block"]) == len(events["forward"]) == len(events["backward"]) == 3
