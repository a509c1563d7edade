"""Real ranks over gloo and DDP, one of them late in a known place: who waited for whom, and why.

The programs sleep instead of computing, and measure themselves what was added to a rank.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.commands import json_of
from support.iotrace import FIXTURES, compile_c
from support.process import clean_environment

pytest.importorskip("torch")

STEPS, STEP_S, RANKS = 20, 0.4, 3
PROGRAM = """
import json, os, sys, time
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
KIND, STEPS, STEP_S, LONGER = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SHARES = {"data": 0.15, "forward": 0.25, "backward": 0.3, "optimizer": 0.1, "own": 0.2}
at = 0
injected = 0.0

def longer(seconds):
    global injected
    start = time.perf_counter()
    time.sleep(seconds)
    injected += time.perf_counter() - start

def work(part):
    time.sleep(SHARES[part] * STEP_S)
    if KIND == part and RANK == WORLD - 1:
        longer(LONGER * STEP_S)
    if KIND == "alternating" and part == "forward" and at % WORLD == RANK:
        longer(0.3 * STEP_S)

class Items(Dataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, i):
        work("data")
        return torch.randn(16)

class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        work("forward")
        return x * 1
    @staticmethod
    def backward(ctx, g):
        work("backward")
        return g

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    def forward(self, x):
        return self.last(Work.apply(self.first(x)))

class SGD(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        work("optimizer")

class Slow:
    def __reduce__(self):
        longer(2 * STEP_S)
        return (int, ())

def metrics():
    work("own")

dist.init_process_group("gloo")
net = Net()
model = DDP(net)
optimizer = SGD(net.parameters(), lr=1e-3)
steps = STEPS - 1 if KIND == "uneven" and RANK == WORLD - 1 else STEPS
with model.join() if KIND == "uneven" else nullcontext():
    for at, batch in enumerate(DataLoader(Items(), batch_size=1)):
        if at == steps:
            break
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        metrics()
        if KIND == "checkpoint" and at % 5 == 4:
            if RANK == 0:
                torch.save({"model": net.state_dict(), "slow": Slow()}, "checkpoint.pt")
            dist.barrier()
with open(f"truth{RANK}.json", "w") as f:
    json.dump({"injected": injected, "steps": steps}, f)
dist.barrier()
dist.destroy_process_group()
"""


@dataclass
class Reported:
    """The report of a run, and what each rank says of itself."""

    folder: Path
    json: dict[str, Any]
    injected: dict[int, float]

    @property
    def ranks(self) -> dict[int, dict[str, Any]]:
        return {r["rank"]: r for r in self.json["ranks"]}

    def finding(self, ident: str) -> dict[str, Any] | None:
        every = [each for f in self.json["findings"] for each in (f, *f.get("symptoms", ()))]
        return next((f for f in every if f["id"] == ident), None)


def run(folder: Path, kind: str, steps: int = STEPS, longer: float = 0.1, ranks: int = RANKS) -> Reported:
    """The last rank takes longer in one place, by this share of a step."""
    (folder / "train.py").write_text(PROGRAM)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    env = clean_environment()
    tool = [sys.executable, "-m", "dftracer.cli"]
    train = ["train.py", kind, str(steps), str(STEP_S), str(longer)]
    ran = subprocess.run(
        [*tool, "run", "-q", "-o", "traces", "--", *launcher, *train],
        cwd=folder,
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert ran.returncode == 0, ran.stderr
    result = json_of("report", "traces", "-q", cwd=folder)
    truth = {i: json.loads((folder / f"truth{i}.json").read_text()) for i in range(ranks)}
    return Reported(folder, result, {i: t["injected"] for i, t in truth.items()})


def check_late(result: Reported, late: int, stages: set[str], share: float = 0.9) -> None:
    """One rank is late, in one stage: it is named with it, and caused nearly all of the waiting."""
    ranks = result.ranks
    assert all(r["collectives_matched"] for r in ranks.values())
    assert max(ranks, key=lambda i: ranks[i]["caused_waiting_s"]) == late
    causes = ranks[late]["caused_by_stage_s"]
    assert max(causes, key=lambda s: causes[s]) in stages
    found = result.finding("straggler_rank")
    assert found is not None
    assert found["evidence"]["rank"] == late
    assert found["evidence"]["stage"] in stages
    for i, rank in ranks.items():
        if i != late:  # waiting cannot be less than what was added, and noise adds little to it
            assert rank["waiting_for_peers_s"] >= share * result.injected[late]


def test_a_rank_that_is_late_in_its_backward_is_found(tmp_path: Path) -> None:
    """By more than ranks of a busy machine wait for a CPU; a tenth of a step is a part of `make test-all`."""
    result = run(tmp_path, "backward", steps=8, longer=1.0, ranks=2)
    check_late(result, 1, {"backward"}, share=0.7)
    assert result.ranks[0]["waiting_by_stage_s"]["backward"] > 0
    ledger, waited = result.json["ledger"]["ranks"]["0"], result.ranks[0]["waiting_by_stage_s"]["backward"]
    assert ledger["backward"] > waited, "the ledger has the wall time of a stage"


@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("data", {"fetch_wait", "preprocess"}),
        ("forward", {"forward"}),
        ("backward", {"backward"}),
        ("optimizer", {"optimizer"}),
        ("own", {"own_code"}),
    ],
)
def test_ten_percent_of_a_step_in_one_place(tmp_path: Path, kind: str, stages: set[str]) -> None:
    result = run(tmp_path, kind)
    late = RANKS - 1
    check_late(result, late, stages)
    waited = [r["waiting_for_peers_s"] for i, r in result.ranks.items() if i != late]
    assert waited == pytest.approx([result.injected[late]] * len(waited), rel=0.05)


@pytest.mark.alone
def test_ranks_that_are_late_in_turns_are_no_stragglers(tmp_path: Path) -> None:
    result = run(tmp_path, "alternating")
    assert result.finding("straggler_rank") is None
    found = result.finding("ranks_in_turn")
    assert found is not None
    assert "no chronic straggler" in found["title"]
    assert found["evidence"]["stage"] == "forward"


@pytest.mark.alone
def test_a_rank_that_has_fewer_batches_waits_for_the_others_at_the_end(tmp_path: Path) -> None:
    result = run(tmp_path, "uneven")
    late = result.ranks[RANKS - 1]
    assert late["steps"] == STEPS - 1
    assert result.finding("straggler_rank") is None
    most = max(result.ranks, key=lambda i: result.ranks[i]["waiting_for_peers_s"])
    assert most == RANKS - 1
    assert late["waiting_by_stage_s"]["comm"] == pytest.approx(STEP_S, rel=0.4)


@pytest.mark.alone
def test_others_wait_while_one_rank_saves(tmp_path: Path) -> None:
    result = run(tmp_path, "checkpoint")
    check_late(result, 0, {"checkpoint"})
    found = result.finding("straggler_rank")
    assert found is not None
    assert "Rank 0 is checkpointing while the others wait" in found["title"]
    # One cause is one finding: that training stops for it belongs to it.
    assert [s["id"] for s in found["symptoms"]] == ["checkpoint_stall"]
    assert "checkpoint_stall" not in {f["id"] for f in result.json["findings"]}
    waited = [r["waiting_for_peers_s"] for i, r in result.ranks.items() if i]
    assert waited == pytest.approx([result.injected[0]] * len(waited), rel=0.05)


NCCL = """
import ctypes, json, os, sys, time
from dftracer.python import ai, dft_fn, dftracer

KIND, STEPS = sys.argv[1], int(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
lib = ctypes.CDLL(os.environ["STANDIN_CALLER"])
log = dftracer.initialize_log(None, None, -1)
assert lib.begin(WORLD, RANK) == 0
own_code = dft_fn("program")
injected = blocked = 0.0

def work(part):
    global injected
    time.sleep(0.01)
    if KIND == part and RANK == WORLD - 1 and items.left:  # nobody waits for what follows the last collective
        start = time.perf_counter()
        time.sleep(0.1)
        injected += time.perf_counter() - start

class Items:
    def __init__(self):
        self.left = STEPS
    def __iter__(self):
        return self
    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        work("data")
        return self.left

@own_code.log
def metrics():
    work("own")

items = Items()
for step in ai.dataloader.fetch.iter(items):
    ai.update(step=step)
    with ai.compute.forward:
        work("forward")
        if KIND == "device":  # it has work for longer than the slow host takes
            lib.launch(ctypes.c_int64(200_000_000))
    with ai.compute.backward:
        work("backward")
        if KIND == "device" and RANK == WORLD - 1:
            time.sleep(0.05)
        lib.all_reduce(ctypes.c_long(1000))
        lib.all_reduce(ctypes.c_long(2000))
    start = time.perf_counter()
    lib.synchronize()  # loss.item()
    blocked += time.perf_counter() - start
    metrics()
log.finalize()
with open(f"truth{RANK}.json", "w") as f:
    json.dump({"injected": injected, "blocked": blocked, "steps": STEPS}, f)
"""
LAUNCH = """
import os, subprocess, sys
world = int(sys.argv[1])
command = [sys.executable, "train.py", *sys.argv[2:]]
places = [{**os.environ, "RANK": str(i), "WORLD_SIZE": str(world)} for i in range(world)]
ranks = [subprocess.Popen(command, env=env) for env in places]
sys.exit(max(rank.wait() for rank in ranks))
"""


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that calls a stand-in for NCCL, in which ranks meet."""
    base = tmp_path_factory.mktemp("nccl")
    device = compile_c(
        FIXTURES / "nccl_meeting.c", base / "libnccl.so.2", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"
    )
    return compile_c(
        FIXTURES / "nccl_meeting_caller.c", base / "libtorch_cuda.so", "-shared", "-fPIC", "-Wl,-z,now",
        str(device), f"-Wl,-rpath,{base}",
    )  # fmt: skip


def run_nccl(folder: Path, caller: Path, kind: str, ranks: int = 2, steps: int = 10) -> Reported:
    (folder / "train.py").write_text(NCCL)
    (folder / "launch.py").write_text(LAUNCH)
    tool = [sys.executable, "-m", "dftracer.cli"]
    env = clean_environment()
    meeting = {"STANDIN_MEETING": str(folder / "meeting"), "STANDIN_CALLER": str(caller)}
    command = [sys.executable, "launch.py", str(ranks), kind, str(steps)]
    subprocess.run(
        [*tool, "run", "-q", "-o", "traces", "--", *command],
        cwd=folder, env={**env, **meeting}, check=True, timeout=300,
    )  # fmt: skip
    result = json_of("report", "traces", "-q", cwd=folder)
    truth = {i: json.loads((folder / f"truth{i}.json").read_text()) for i in range(ranks)}
    return Reported(folder, result, {i: t["injected"] for i, t in truth.items()})


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("data", {"fetch_wait", "preprocess", "read"}),
        ("backward", {"backward"}),
        ("own", {"other", "own_code"}),
    ],
)
def test_who_is_late_to_nccl_is_found_by_how_long_the_others_are_blocked(
    nccl: Path, tmp_path: Path, kind: str, stages: set[str]
) -> None:
    result = run_nccl(tmp_path, nccl, kind)
    check_late(result, 1, stages, share=0.6)  # of what was added, so much is certain at least
    early, late = result.ranks[0], result.ranks[1]
    assert early["waiting_at_least"]
    assert set(early["waiting_by_stage_s"]) == {"sync"}
    assert early["waiting_for_peers_s"] <= json.loads((tmp_path / "truth0.json").read_text())["blocked"]
    assert late["waiting_for_peers_s"] < 0.5 * early["waiting_for_peers_s"]
    found = result.finding("straggler_rank")
    assert found is not None
    assert "lose at least" in found["title"]
    assert sum(line["share"] for line in result.json["account"].values()) == pytest.approx(1, abs=1e-4)
    assert result.json["account"]["peers"]["seconds"] > result.json["account"]["device"]["seconds"]


def test_a_device_that_is_busy_itself_waits_for_nobody(nccl: Path, tmp_path: Path) -> None:
    """One host launches later, but no device ever runs out of work: nobody is late."""
    result = run_nccl(tmp_path, nccl, "device")
    found = result.finding("straggler_rank")
    assert found is None or found["evidence"]["kind"] != "chronic"
    assert result.ranks[0]["waiting_for_peers_s"] < 0.05 * 10 / 2, "its host was later by 0.05 s in each step"
