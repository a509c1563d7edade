"""Turned on from outside: `dftracer run`, and the environment alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dftracer
from dftracer.testing import read
from support.commands import json_of
from support.process import clean_environment

PROGRAM = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        data = (place / f"{index}.bin").read_bytes()
        time.sleep(0.3 if index == 7 else 0.02)
        return torch.full((4,), float(len(data)))

place = Path(sys.argv[1])
for i in range(10):
    (place / f"{i}.bin").write_bytes(b"x" * 100_000)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Files(), batch_size=2, num_workers=int(sys.argv[2])):
    x.to("meta")
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
torch.save(model.state_dict(), place / "model.pt")
"""


def environment(**more: str) -> dict[str, str]:
    env = clean_environment()
    return {**env, "OMP_NUM_THREADS": "1", **more}


def test_run_says_what_it_found_and_what_came_of_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-m", "dftracer.cli", "run", "-o", "traces", "--", "train.py", "data", "1"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "dftracer: PyTorch: steps are recorded"
    assert len(lines) == 6  # verdict, why, what to try, where the trace is, what to do next
    assert "traces" in lines[-1]
    events = read(tmp_path / "traces")
    assert len(events.named("fetch.block")) == 5
    assert [e.args["kind"] for e in events.named("transfer")] == ["cpu to meta"] * 5
    assert len(events.named("capture")) == 1
    report = json_of("report", "traces", cwd=tmp_path)
    slow = report["ledger"]["steps"][3]["waited_for"]
    assert (slow["worker"], slow["batch"]) == (0, 3)
    assert slow["items"][0]["index"] == 7
    assert slow["items"][0]["seconds"] >= 0.3
    assert {Path(f["path"]).name for f in slow["files"]} >= {"6.bin", "7.bin"}
    assert slow["pid"] in {e.pid for e in events.named("item")}
    assert report["ledger"]["total"]["comm"] is None  # not seen
    assert report["ledger"]["total"]["checkpoint"] == 0.0  # seen, but in no step


def test_the_environment_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "data").mkdir()
    env = environment(
        DFTRACER_ENABLE="1", DFTRACER_AUTO="torch", DFTRACER_LOG_FILE=str(tmp_path / "t" / "trace")
    )
    (tmp_path / "t").mkdir()
    command = [sys.executable, "train.py", "data", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    events = read(tmp_path / "t")
    assert len(events.named("fetch.block")) == 5
    assert len(events.named("item")) == 10
    assert len(events.named("train")) == 1


def test_without_torch_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    code = (
        "import sys, dftracer.auto as a; assert a.installed();"
        "assert not any(m.split('.')[0] in ('torch', 'numpy') for m in sys.modules);"
        "assert 'dftracer.python' not in sys.modules"
    )
    env = environment(DFTRACER_ENABLE="1", DFTRACER_AUTO="torch")
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, timeout=60, check=True)


def test_interpreters_that_are_not_asked_load_nothing() -> None:
    code = "import sys; assert not any(m.startswith('dftracer') for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=True)


RANKS = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(torch.ones(6, 4), batch_size=2):
        model(x).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()

main()
"""


def test_torchrun_with_modules_and_what_is_said_of_collectives(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["-q", "--no-io", "--modules", "-o", "traces"]
    done = subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "run", *options, "--", *launcher, "train.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "dftracer" not in done.stderr  # -q
    events = read(tmp_path / "traces")
    ranks = {e.pid for e in events.named("fetch.block")}
    assert len(ranks) == 2
    for rank in ranks:
        own = [e for e in events if e.pid == rank]
        assert len([e for e in own if e.name == "fetch.block"]) == 3
        assert len([e for e in own if e.name == "forward.Linear"]) == 3
        calls = [e for e in own if e.name == "all_reduce"]
        assert [e.cat for e in calls] == ["comm"] * 6
        assert [e.args["bytes"] for e in calls] == [16, 4] * 3  # float32: 4 weights, 1 bias
        assert [e.args["step"] for e in calls] == [0, 0, 1, 1, 2, 2]
        assert {(e.args["ranks"], e.args["dtype"], e.args["auto"]) for e in calls} == {(2, "float32", 1)}
        numbers = [e.args["seq"] for e in calls]
        assert numbers == list(range(numbers[0], numbers[0] + 6))
    assert (
        len({(e.args["group"], e.args["seq"]) for e in events.named("all_reduce")}) == 6
    )  # the same in both


def test_a_package_with_and_without_automatic_tracing(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__main__.py").write_text(PROGRAM)
    (tmp_path / "data").mkdir()
    for flags, steps in ((), 5), (("--no-auto",), 0):
        command = ["run", *flags, "-o", f"traces{steps}", "-m", "trainer", "data", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "dftracer.cli", *command],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert ("dftracer: PyTorch: steps are recorded" in done.stderr) is bool(steps)
        events = read(tmp_path / f"traces{steps}")
        assert len(events.named("fetch.block")) == steps
        assert bool([e for e in events if "auto" in e.args]) is bool(steps)
        assert [e for e in events if e.cat == "POSIX"]


def test_run_keeps_its_program_waiting_for_nothing_it_does_not_need(tmp_path: Path) -> None:
    """Neither other verbs nor what is needed at the end are loaded before the program starts."""
    code = (
        "import os, sys; from dftracer.cli import main; started = os.execvpe\n"
        "def start(*args):\n"
        "    named = ('typing', 'json', 'numpy')\n"
        "    print(0, *(m for m in sys.modules if m.startswith('dftracer') or m in named))\n"
        "    sys.stdout.flush()\n"
        "    started(*args)\n"
        "os.execvpe = start\n"
        "main(['run', '-q', '-o', 'traces', '--', sys.executable, '-c', 'pass'])\n"
    )
    command = [sys.executable, "-S", "-c", code]  # .pth files of other packages load what they like
    site = str(Path(dftracer.__file__).parents[1])
    env = environment(PYTHONPATH=site)
    done = subprocess.run(
        command, cwd=tmp_path, env=env, timeout=120, check=True, capture_output=True, text=True
    )
    exit_code, *loaded = done.stdout.split()
    assert exit_code == "0"
    verbs = {m for m in loaded if m.startswith("dftracer.cli.commands.")}
    assert verbs == {"dftracer.cli.commands.run"}
    assert {"typing", "json", "numpy", "dftracer.format.trace_names"}.isdisjoint(loaded)
