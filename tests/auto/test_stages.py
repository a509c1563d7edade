"""Loops that measure themselves: their stages are what their own timers say, whatever the loader.

Every loop runs in a forked process of its own. It names the stretches of its time (`with T("forward")`); the
events of its trace must say the same, within a hundredth of the time, and what it waited for a CPU: that can
fall between the loop's look at the clock and the tracer's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

import pytest

from dftracer.testing import Event, read
from support.process import clean_environment

PROGRAM = """
import contextlib, copy, gc, itertools, json, os, queue, sys, threading, time
import numpy, torch
import torch._dynamo  # the first optimizer of each process would import it, which takes seconds
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)

spent = {}
open_now = []

@contextlib.contextmanager
def T(name):
    begun = time.perf_counter()
    open_now.append(0.0)
    yield
    took = time.perf_counter() - begun
    own = took - open_now.pop()
    spent[name] = spent.get(name, 0.0) + own
    spent.setdefault("first " + name, own)
    spent["last " + name] = own
    if open_now:
        open_now[-1] += took

def nap(seconds):
    time.sleep(seconds)

def waited_for_a_cpu():
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9

class Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        nap(0.01)
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        nap(0.015)
        return gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    def forward(self, x):
        return Slept.apply(self.layers(x))

class Rows(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        nap(0.002)
        return torch.full((4,), float(index))

X = torch.ones(2, 4)
N = 15

def begin():
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(model, optimizer, x=X):
    with T("forward"):
        loss = model(x).pow(2).mean()
    with T("backward"):
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()

def evaluate(model, times=4):
    model.eval()
    with T("evaluate"), torch.no_grad():
        for _ in range(times):
            model(X)
            nap(0.002)
    model.train()

def log_metrics():
    with T("own"):
        nap(0.02)

def list_and_logging():
    model, optimizer = begin()
    for _ in range(N):
        train(model, optimizer)
        log_metrics()

def before_the_model():
    model, optimizer = begin()
    for x in [X] * N:
        log_metrics()
        train(model, optimizer, x)

def generator_loader():
    def batches():
        for _ in range(N):
            with T("own"):
                nap(0.02)
            yield X
    model, optimizer = begin()
    for x in batches():
        train(model, optimizer, x)

def queue_of_a_thread():
    batches = queue.Queue(1)
    def fill():
        for _ in range(N):
            nap(0.05)
            batches.put(X)
        batches.put(None)
    threading.Thread(target=fill).start()
    model, optimizer = begin()
    while True:
        with T("own"):
            x = batches.get()
        if x is None:
            break
        train(model, optimizer, x)

def memory_map():
    numpy.save("rows.npy", numpy.ones((N * 2, 4), "float32"))
    rows = numpy.load("rows.npy", mmap_mode="r")
    model, optimizer = begin()
    for i in range(N):
        with T("own"):
            nap(0.01)
            x = torch.tensor(rows[2 * i : 2 * i + 2])
        train(model, optimizer, x)

def data_loader():
    model, optimizer = begin()
    for x in DataLoader(Rows(), batch_size=2):
        log_metrics()
        train(model, optimizer, x)

def evaluation_every_few_steps():
    model, optimizer = begin()
    for i in range(N):
        train(model, optimizer)
        if i % 5 == 2:
            evaluate(model)

def evaluation_with_a_batch_in_hand():
    model, optimizer = begin()
    for i, x in enumerate(DataLoader(Rows(), batch_size=4)):
        if i % 3 == 2:
            evaluate(model)
        train(model, optimizer, x)

def evaluation_after_the_step():
    model, optimizer = begin()
    for i, x in enumerate(DataLoader(Rows(), batch_size=4)):
        train(model, optimizer, x)
        if i % 3 == 2:
            evaluate(model)

def evaluation_in_inference_mode_over_a_loader():
    model, optimizer = begin()
    for epoch in range(2):
        for x in DataLoader(Rows(), batch_size=8):
            train(model, optimizer, x)
        with T("evaluate"), torch.inference_mode():
            for x in DataLoader(Rows(), batch_size=8):
                model(x)

def evaluation_over_a_loader_training_over_a_list():
    model, optimizer = begin()
    for epoch in range(3):
        for x in [X] * 5:
            train(model, optimizer, x)
        model.eval()
        with T("evaluate"), torch.no_grad():
            for x in DataLoader(Rows(), batch_size=8):
                model(x)
        model.train()

def evaluation_without_eval():
    model, optimizer = begin()
    for i in range(N):
        train(model, optimizer)
        if i % 5 == 2:
            with T("evaluate"), torch.no_grad():
                for _ in range(4):
                    model(X)

def distillation():
    teacher = Net().eval()
    model, optimizer = begin()
    for x in DataLoader(Rows(), batch_size=4):
        with T("forward"):
            with torch.no_grad():
                wanted = teacher(x)
            loss = (model(x) - wanted).pow(2).mean()
        with T("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def rollouts():
    model, optimizer = begin()
    for _ in range(4):
        with T("own"), torch.no_grad():
            for _ in range(5):
                model(X)
                nap(0.005)
        for _ in range(3):
            train(model, optimizer)

def rollouts_after_an_evaluation():
    model, optimizer = begin()
    for _ in range(4):
        with T("own"), torch.no_grad():
            for _ in range(5):
                model(X)
                nap(0.005)
        for _ in range(3):
            train(model, optimizer)
        evaluate(model)

def targets_by_the_same_model():
    model, optimizer = begin()
    for _ in range(N):
        log_metrics()
        with T("forward"):
            with torch.no_grad():
                wanted = model(X)
            loss = (model(X) - wanted - 1).pow(2).mean()
        with T("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def a_head_on_what_was_trained_before():
    model, optimizer = begin()
    for _ in range(5):
        train(model, optimizer)
    model.eval().requires_grad_(False)
    head = Net()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    for x in DataLoader(Rows(), batch_size=4):
        with T("forward"):
            with torch.no_grad():
                found = model(x)
            loss = head(found).pow(2).mean()
        with T("backward"):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

def gan():
    generator, step_generator = begin()
    critic, step_critic = begin()
    for x in [X] * N:
        with T("forward"):
            loss = critic(x).mean() - critic(generator(x).detach()).mean()
        with T("backward"):
            loss.backward()
        step_critic.step()
        with T("forward"):
            loss = critic(generator(x)).mean()
        with T("backward"):
            loss.backward()
        step_generator.step()

def lbfgs():
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=0, tolerance_change=0)
    def closure():
        optimizer.zero_grad()
        with T("forward"):
            loss = model(X).pow(2).mean()
        with T("backward"):
            loss.backward()
        return loss
    for _ in range(6):
        optimizer.step(closure)
        log_metrics()

def compiled_function():
    model, optimizer = begin()
    @torch.compile(backend="eager")
    def loss_of(x):
        return (model.layers(x) * 2).pow(2).mean()
    loss_of(X).backward()
    for _ in range(N):
        log_metrics()
        with T("forward"):
            loss = loss_of(X)
            nap(0.01)
        with T("backward"):
            loss.backward()
        optimizer.step()

def inference_over_a_loader():
    model = Net().eval()
    with torch.inference_mode():
        for x in DataLoader(Rows(), batch_size=4):
            with T("forward"):
                model(x)
            log_metrics()

def inference_over_a_list():
    model = Net().eval()
    with torch.no_grad():
        for x in [X] * N:
            with T("forward"):
                model(x)
            log_metrics()

def inference_that_leaves_gradients_on():
    model = Net().eval()
    for x in DataLoader(Rows(), batch_size=4):
        with T("forward"):
            model(x)
        log_metrics()

def updates_by_hand():
    model = Net()
    for x in [X] * N:
        with T("forward"):
            loss = model(x).pow(2).mean()
        with T("backward"):
            loss.backward()
        with T("own"), torch.no_grad():
            nap(0.02)
            for p in model.parameters():
                p -= 0.01 * p.grad
                p.grad = None

class Transformed(torch.autograd.Function):
    @staticmethod
    def forward(x):
        nap(0.01)
        return x * 1
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, gradient):
        nap(0.015)
        return gradient * 1

def gradients_of_a_function():
    weight = torch.ones(4)
    def loss_of(weight, x):
        return Transformed.apply(x * weight).pow(2).mean()
    for x in [X] * N:
        with T("compute"):
            found = torch.func.grad(loss_of)(weight, x)
        weight = weight - 0.01 * found
        log_metrics()

def gradients_of_a_functional_model():
    model = nn.Linear(4, 4)
    weights = {name: each.detach() for name, each in model.named_parameters()}
    def loss_of(weights, x):
        return Transformed.apply(torch.func.functional_call(model, weights, (x,))).pow(2).mean()
    for i, x in enumerate([X] * N):
        with T("compute"):
            found, loss = torch.func.grad_and_value(loss_of)(weights, x)
        weights = {name: each - 0.01 * found[name] for name, each in weights.items()}
        if i % 5 == 2:
            with T("evaluate"), torch.no_grad():
                for _ in range(5):
                    torch.func.functional_call(model, weights, (x,))
                    nap(0.005)

def gradients_by_hand():
    model = Net()
    for x in [X] * N:
        with T("compute"):
            found = torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters()))
        log_metrics()

def no_module():
    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.01)
    for x in [X] * N:
        nap(0.02)
        (x * weight).sum().backward()
        optimizer.step()

gc.freeze()  # torch's objects are no garbage of the loops
for program in sys.argv[1:]:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        begun, waited = time.perf_counter(), waited_for_a_cpu()
        globals()[program]()
        spent["all"] = time.perf_counter() - begun
        spent["waited"] = waited_for_a_cpu() - waited
        print(json.dumps([program, os.getpid(), spent]), flush=True)
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0, program
"""
STEPS = {
    "list_and_logging": 15,
    "before_the_model": 15,
    "generator_loader": 15,
    "queue_of_a_thread": 15,
    "memory_map": 15,
    "data_loader": 20,
    "evaluation_every_few_steps": 15,
    "evaluation_with_a_batch_in_hand": 10,
    "evaluation_after_the_step": 10,
    "evaluation_in_inference_mode_over_a_loader": 10,
    "evaluation_over_a_loader_training_over_a_list": 15,
    "evaluation_without_eval": 15,
    "distillation": 10,
    "rollouts": 12,
    "rollouts_after_an_evaluation": 12,
    "targets_by_the_same_model": 15,
    "a_head_on_what_was_trained_before": 15,
    "gan": 15,
    "lbfgs": 6,
    "inference_over_a_loader": 10,
    "inference_over_a_list": 15,
    "inference_that_leaves_gradients_on": 10,
    "updates_by_hand": 15,
    "gradients_of_a_function": 15,
    "gradients_of_a_functional_model": 15,
    "gradients_by_hand": 15,
}
OTHERS = ("no_module", "compiled_function")
# What comes before anything shows that a program trains, or after its last step, is in no step.
BEFORE_THE_FIRST = {
    "generator_loader",
    "queue_of_a_thread",
    "memory_map",
    "before_the_model",
    "targets_by_the_same_model",
}
AFTER_THE_LAST = {
    "list_and_logging",
    "lbfgs",
    "inference_over_a_list",
    "updates_by_hand",
    "gradients_of_a_function",
    "gradients_by_hand",
}
LONGEST_PAUSE_US = 14_000  # of the sampler, where it gets a CPU at once
Ran: TypeAlias = dict[str, tuple[dict[str, float], dict[str, list[Event]]]]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place: Path = tmp_path_factory.mktemp("stages")
    (place / "loops.py").write_text(PROGRAM)
    env = clean_environment()
    env |= {"DFTRACER_ENABLE": "1", "DFTRACER_AUTO": "torch", "DFTRACER_LOG_FILE": str(place / "t")}
    done = subprocess.run(
        [sys.executable, "loops.py", *STEPS, *OTHERS],
        cwd=place,
        env={**env, "OMP_NUM_THREADS": "1", "DFTRACER_DISABLE_IO": "1"},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "dftracer" not in done.stderr
    found: Ran = {}
    names: dict[int, str] = {}
    for line in done.stdout.splitlines():
        name, pid, spent = json.loads(line)
        names[pid] = name
        found[name] = (spent, defaultdict(list))
    for event in read(place):
        if event.pid in names:
            found[names[event.pid]][1][event.name].append(event)
    return found


def _seconds(events: list[Event]) -> float:
    return sum(e.dur for e in events) / 1e6


def _unsure(spent: dict[str, float]) -> float:
    """Seconds by which the two may differ."""
    first_calls = 0.01  # of the optimizer and of ours: outside the loop's timers, once in each process
    return 0.01 * spent["all"] + spent["waited"] + first_calls


def _covered(block: Event, events: dict[str, list[Event]]) -> int:
    """us of a step that a stage covers; an evaluation holds the waits of its own loader."""
    stages = ("forward", "backward", "step", "evaluate", "fetch.iter")
    covered, until = 0, block.ts
    for e in sorted((e for s in stages for e in events[s]), key=lambda e: e.ts):
        begin, end = max(e.ts, until), min(e.ts + e.dur, block.ts + block.dur)
        if end > begin:
            covered, until = covered + end - begin, end
    return covered


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_there(name: str, ran: Ran) -> None:
    blocks = ran[name][1]["fetch.block"]
    assert [e.args["step"] for e in blocks] == list(range(STEPS[name]))
    assert all(("inference" in e.args) is name.startswith("inference") for e in blocks)
    assert not any("forward_unseen" in e.args for e in blocks)


@pytest.mark.parametrize("name", STEPS)
def test_stages_are_what_the_program_measured(name: str, ran: Ran) -> None:
    spent, events = ran[name]
    off = {
        stage: _seconds(events[stage]) - spent.get(stage, 0.0)
        for stage in ("forward", "backward", "evaluate")
    }
    if "compute" in spent:  # the program itself cannot tell its forward from its backward
        off["forward"] += off.pop("backward") - spent["compute"]
    assert all(abs(seconds) <= _unsure(spent) for seconds in off.values()), (off, spent)


@pytest.mark.parametrize("name", STEPS)
def test_own_code_is_what_no_stage_covers(name: str, ran: Ran) -> None:
    spent, events = ran[name]
    free = sum(e.dur - _covered(e, events) for e in events["fetch.block"]) / 1e6
    known = spent.get("own", 0.0)
    if name in BEFORE_THE_FIRST:
        known -= spent["first own"]
    if name in AFTER_THE_LAST:
        known -= spent["last own"]
    assert abs(free - known) <= _unsure(spent), (free, known, spent)


@pytest.mark.parametrize("name", ["list_and_logging", "data_loader", "inference_over_a_list", "no_module"])
def test_own_code_is_named(name: str, ran: Ran) -> None:
    # What a program does after its last step is sampled too: how long it takes to end depends on the machine.
    steps = ran[name][1]["fetch.block"]
    taken = [(e.ts + e.dur, e) for e in ran[name][1]["own_code"]]
    samples = [e for at, e in taken if any(s.ts <= at < s.ts + s.dur for s in steps)]
    assert samples
    where: defaultdict[str, float] = defaultdict(float)
    for e in samples:
        assert e.cat == "sample"
        # What came before a sampler that waited for a CPU itself may have been elsewhere.
        where[e.args["where"]] += min(e.dur, LONGEST_PAUSE_US)
    line = next(i for i, text in enumerate(PROGRAM.splitlines(), 1) if text == "    time.sleep(seconds)")
    # Where a line waits for a CPU, it takes as long as that, too.
    waited_us = _unsure(ran[name][0]) * 1e6
    assert where[f"nap loops.py:{line}"] > max(0, max(where.values()) - waited_us), where
    innermost = [e.args["stack"].split(";")[-1] for e in samples if e.args["where"].startswith("nap ")]
    assert all(frame.startswith("nap loops.py:") for frame in innermost)


def test_a_backward_without_a_model_is_said(ran: Ran) -> None:
    events = ran["no_module"][1]
    assert len(events["fetch.block"]) == 15
    assert all(e.args["forward_unseen"] == 1 for e in events["fetch.block"])
    assert not events["forward"]


def test_a_compiled_function_is_a_model(ran: Ran) -> None:
    spent, events = ran["compiled_function"]
    assert len(events["forward"]) == 16
    seconds = _seconds(sorted(events["forward"], key=lambda e: e.ts)[1:])
    assert abs(seconds - spent["forward"]) <= _unsure(spent), (seconds, spent)
