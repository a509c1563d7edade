"""Goodput over restarts: jobs that are killed and started again, and that know the truth about themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze.goodput import PARTS, goodput
from dftracer.load.rows import read_row_files
from dftracer.testing.synthetic import Process
from support.commands import dftracer, json_of
from support.process import clean_environment

MS = 1000
EPOCH_US = 1_760_000_000_000_000
S = 1_000_000

_TORCH = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

kill_at, how = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if os.path.exists("ckpt.pt"):
    state = torch.load("ckpt.pt")
    model.load_state_dict(state["model"])
    step = state["step"]
batches = iter(DataLoader(TensorDataset(torch.ones(1000, 8)), batch_size=4))
while step < 100:
    x = next(batches)[0] if how == "loader" else torch.ones(4, 8)
    if step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 25 == 0:
        torch.save({"model": model.state_dict(), "step": step}, "ckpt.tmp")
        os.replace("ckpt.tmp", "ckpt.pt")
"""

_HF = """
import os, sys
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        return {"x": torch.ones(4), "labels": torch.ones(1)}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        out = self.linear(x)
        return {"loss": ((out - labels) ** 2).mean(), "logits": out}

class Kill(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == int(sys.argv[1]):
            os.kill(os.getpid(), 9)

options = TrainingArguments(
    "out", max_steps=40, per_device_train_batch_size=2, save_steps=10, report_to=[], use_cpu=True
)
trainer = Trainer(Model(), options, train_dataset=Data(), callbacks=[Kill()])
trainer.train(resume_from_checkpoint=get_last_checkpoint("out") if os.path.isdir("out") else None)
"""

# It writes down what it does: the start of a life, each step, and when it is about to be killed.
_KILLED = """
import json, os, signal, sys, time
from dftracer.python import ai

def tell(**what):
    with open("truth.jsonl", "a") as f:
        f.write(json.dumps({**what, "at": time.time()}) + "\\n")

tell(life=os.getpid())
life = sum("life" in line for line in open("truth.jsonl"))
time.sleep(0.1)
step = 0
if os.path.exists("saved"):
    with ai.checkpoint.restart:
        step = int(open("saved").read())
        time.sleep(0.03)
for _ in ai.dataloader.fetch.iter(range(step, 60)):
    ai.update(step=step)
    with ai.compute.forward:
        time.sleep(0.004)
    if life <= 5 and step == 8 * life + 3:
        tell(killed=step)
        os.kill(os.getpid(), signal.SIGKILL)
    tell(step=step)
    step += 1
    if step % 8 == 0:
        with ai.checkpoint.capture:
            open("saved", "w").write(str(step))
            time.sleep(0.01)
    if step % 20 == 0:
        with ai.pipeline.evaluate:
            time.sleep(0.02)
tell(end=True)
"""


def _run(folder: Path, program: str, *words: str, name: str | None = None) -> int:
    script = folder / "train.py"
    script.write_text(program)
    named = ["--name", name] if name else []
    command = [sys.executable, "-m", "dftracer", "run", *named, "--", sys.executable, str(script), *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode


def _goodput_json(folder: Path, *words: str) -> dict[str, Any]:
    result: dict[str, Any] = _json(folder, "goodput", *words)
    return result


@pytest.mark.parametrize("how", ["loader", "without"])
def test_killed_at_60_resumed_from_50_ended_at_100(tmp_path: Path, how: str) -> None:
    pytest.importorskip("torch")
    assert _run(tmp_path, _TORCH, "60", how) == -9
    killed = time.time()
    assert _run(tmp_path, _TORCH, "-1", how) == 0
    result = _goodput_json(tmp_path)
    assert list(result) == ["wall_s", "productive_s", "goodput", "parts", "attempts", "recomputed_steps"]
    assert tuple(result["parts"]) == PARTS
    first, second = result["attempts"]
    assert list(first) == ["run", "start", "first_step", "last_step", "ended"]
    assert (first["first_step"], first["last_step"]) == (0, 59)
    assert (second["first_step"], second["last_step"]) == (50, 99)
    assert result["recomputed_steps"] == 10
    assert first["ended"]["signal"] == "SIGKILL"
    assert first["ended"]["step"] == 60
    assert second["ended"]["exit_code"] == 0
    parts = result["parts"]
    assert result["productive_s"] + sum(parts.values()) == pytest.approx(result["wall_s"], rel=1e-3)
    # The second life began after this process saw the end of the first, whose traces were read in between.
    assert second["start"] / 1e6 >= killed - 1
    assert parts["gap"] > 0
    assert parts["recomputed"] > 0
    assert parts["checkpoint_save"] > 0
    assert parts["checkpoint_restore"] > 0


@pytest.mark.thorough
def test_a_trainer_says_where_it_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert _run(tmp_path, _HF, "26") == -9
    assert _run(tmp_path, _HF, "-1") == 0
    result = _goodput_json(tmp_path)
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 25), (20, 39)]
    assert result["recomputed_steps"] == 6


_LIGHTNING = """
import glob, os, signal, sys
import lightning as L
import torch
from torch.utils.data import DataLoader

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, i):
        if self.global_step == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

saving = L.pytorch.callbacks.ModelCheckpoint(dirpath="saved", every_n_train_steps=10, save_top_k=-1)
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
saved = sorted(glob.glob("saved/*.ckpt"), key=os.path.getmtime)
trainer = L.Trainer(max_steps=40, accelerator="cpu", callbacks=[saving], **quiet)
trainer.fit(Model(), DataLoader(torch.randn(64, 8), batch_size=4), ckpt_path=saved[-1] if saved else None)
"""


@pytest.mark.thorough
def test_lightning_says_where_it_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    assert _run(tmp_path, _LIGHTNING, "26") == -9
    assert _run(tmp_path, _LIGHTNING, "-1") == 0
    result = _goodput_json(tmp_path)
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 25), (20, 39)]
    assert result["recomputed_steps"] == 6


_REQUEUED = """
import os, signal, sys, time
from dftracer.python import ai

step, rank = 0, int(os.environ["SLURM_PROCID"])
if os.path.exists("saved"):
    with ai.checkpoint.restart:
        step = int(open("saved").read())
for _ in ai.dataloader.fetch.iter(range(step, 60)):
    ai.update(step=step)
    with ai.compute.forward:
        time.sleep(0.003)
    if step == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    step += 1
    if step % 20 == 0 and rank == 0:
        with ai.checkpoint.capture:
            open("new", "w").write(str(step))
        os.replace("new", "saved")
"""


def test_a_job_of_slurm_that_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_REQUEUED)
    for restarts, (ranks, killed) in enumerate(((2, 30), (3, 50), (1, -1))):
        children = []
        for rank in range(ranks):
            env = clean_environment(
                SLURM_JOB_ID="77",
                SLURM_PROCID=str(rank),
                SLURM_LOCALID=str(rank),
                SLURM_NTASKS=str(ranks),
                **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
            )
            command = [sys.executable, "-m", "dftracer", "run", "-q", "-o", "traces", "--"]
            children.append(
                subprocess.Popen([*command, sys.executable, "train.py", str(killed)], cwd=tmp_path, env=env)
            )
        for child in children:
            assert child.wait(240) == (0 if killed < 0 else -9)
    result = _goodput_json(tmp_path)
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 29), (20, 49), (40, 59)]
    assert result["recomputed_steps"] == 20
    parts = result["parts"]
    assert result["productive_s"] + sum(parts.values()) == pytest.approx(result["wall_s"], rel=1e-3)
    (row,) = _json(tmp_path, "runs")
    assert (row["run"], row["attempt"], row["ended"]["exit_code"]) == ("slurm-77", 2, 0)


def test_five_kills(tmp_path: Path) -> None:
    for _ in range(5):
        assert _run(tmp_path, _KILLED, name="five kills") == -9
    assert _run(tmp_path, _KILLED, name="five kills") == 0
    truth = [json.loads(line) for line in (tmp_path / "truth.jsonl").read_text().splitlines()]
    steps = [each["step"] for each in truth if "step" in each]
    result = _goodput_json(tmp_path, "traces", "--name", "five kills")
    assert len(result["attempts"]) == 6
    assert result["recomputed_steps"] == len(steps) - len(set(steps)) == 15
    assert [each["first_step"] for each in result["attempts"]] == [0, 8, 16, 24, 32, 40]
    assert [each["last_step"] for each in result["attempts"]] == [10, 18, 26, 34, 42, 59]
    parts = result["parts"]
    assert result["productive_s"] + sum(parts.values()) == pytest.approx(result["wall_s"], rel=1e-3)
    assert result["goodput"] == pytest.approx(result["productive_s"] / result["wall_s"], rel=1e-3)
    # By the program's own clock; the interpreter starts before it and ends after it.
    lives = [each["at"] for each in truth if "life" in each]
    kills = [each["at"] for each in truth if "killed" in each]
    assert result["wall_s"] >= truth[-1]["at"] - truth[0]["at"]
    between = sum(later - before for before, later in zip(kills, lives[1:], strict=True))
    assert 0 < parts["gap"] <= between + 0.5
    assert parts["initialization"] >= 6 * 0.1
    assert parts["checkpoint_restore"] >= 5 * 0.03
    assert parts["checkpoint_save"] >= 7 * 0.01
    assert parts["evaluation"] >= 3 * 0.02
    shown = dftracer("goodput", "--html", "job.html", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "60 steps, 6 attempts, 15 steps repeated" in shown.stdout
    page = (tmp_path / "job.html").read_text()
    assert page.count('<polyline class="line"') == 6
    assert "<script" not in page


_WAITS = """
import os, sys, time
from dftracer.python import ai

step = 0
resumed = os.path.exists("saved")
if resumed:
    with ai.checkpoint.restart:
        step = int(open("saved").read())
        time.sleep(0.03)
for _ in ai.dataloader.fetch.iter(range(step, 40)):
    if sys.argv[1] == "numbered":
        ai.update(step=step)
    with ai.data.item:
        pass
    with ai.compute.forward:
        time.sleep(0.02)  # so that it records for longer than a process without a thread of ours
    step += 1
    if step == 10:
        with ai.checkpoint.capture:
            open("saved", "w").write(str(step))
            time.sleep(0.01)
    if step == 15 and not resumed:
        print(os.getpid(), flush=True)
        time.sleep(600)
"""


def _json(folder: Path, *words: str) -> Any:
    return json_of(*words, cwd=folder)


@pytest.mark.parametrize("how", ["numbered", "not"])
def test_rows_tell_where_the_traces_are_gone(tmp_path: Path, how: str) -> None:
    (tmp_path / "train.py").write_text(_WAITS)
    command = [sys.executable, "-m", "dftracer", "run", "--name", "job", "-o", "one", "--"]
    with subprocess.Popen(
        [*command, sys.executable, "train.py", how],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        until = time.monotonic() + 100  # rows are written after the trace; a kill costs the newest
        while [len(f.steps) for f in read_row_files(tmp_path / "one")] != [14] and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        child.communicate(timeout=100)
    command[command.index("one")] = "two"
    subprocess.run(
        [*command, sys.executable, "train.py", how],
        cwd=tmp_path,
        env=clean_environment(),
        timeout=240,
        check=True,
    )
    verbs = (("goodput", "."), ("runs", "."), ("top", "two", "--once", "--last", "600"))
    goodput_before, runs_before, top_before = (_json(tmp_path, *words) for words in verbs)
    traces = [*tmp_path.rglob("*.pfw.gz")]
    assert traces
    for trace in traces:
        trace.unlink()
    result, runs, top = (_json(tmp_path, *words) for words in verbs)

    parts = result["parts"]
    if how == "numbered":
        assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 13), (10, 39)]
        assert result["recomputed_steps"] == goodput_before["recomputed_steps"] == 4
        same = ("initialization", "data", "checkpoint_save", "checkpoint_restore", "evaluation", "recomputed")
        for part in same:
            assert parts[part] == pytest.approx(goodput_before["parts"][part], abs=0.002), part
        assert result["productive_s"] == pytest.approx(goodput_before["productive_s"], abs=0.002)
    else:
        assert (result["recomputed_steps"], parts.pop("recomputed")) == (None, None)
        assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 13), (None, None)]
        shown = subprocess.run(
            [sys.executable, "-m", "dftracer", "goodput", "."],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        assert shown.stdout.startswith("Goodput at most ")
        assert "attempt 2" in shown.stdout
    assert result["productive_s"] + sum(parts.values()) == pytest.approx(result["wall_s"], abs=1e-4)
    assert parts["checkpoint_restore"] >= 0.03
    assert parts["gap"] > 0

    for before, left in zip(runs_before, runs, strict=True):
        assert left["ended"].pop("exit_code") is None  # who waited for it wrote down what was wrong, only
        before["ended"].pop("exit_code")
        # The trace has also the sample of the step in which it was killed: 15 in 14.
        more = 15 / 14 if left["ended"]["signal"] else 1
        assert more * left.pop("samples_per_s") == pytest.approx(before.pop("samples_per_s"), rel=0.001)
        assert left == before
    assert [run["ended"]["signal"] for run in runs] == [None, "SIGKILL"]

    (mine,), (theirs,) = top["ranks"], top_before["ranks"]
    assert {k: mine[k] for k in ("rank", "pid", "state", "steps", "last_step", "stages")} == {
        k: theirs[k] for k in ("rank", "pid", "state", "steps", "last_step", "stages")
    }
    assert top["samples_per_s"] == pytest.approx(top_before["samples_per_s"], rel=0.02)
    for unknown in ("io_calls_per_s", "files", "events", "dropped"):
        assert top[unknown] is None


def _life(
    folder: Path,
    number: int,
    first: int,
    steps: int,
    *,
    start: int,
    died: bool,
    labels: bool = True,
    command: str = "python train.py",
    host: str = "node0",
    **facts: str,
) -> Process:
    record = {
        "value": f"run{number}",
        "start": EPOCH_US + start,
        "command": command,
        "host": host,
    }
    p = Process(
        10 + number, start=start, run=record, rank=0, end={"recovered": 1} if died else {"exit_code": 0}
    )
    p.metadata += [("PR", key, value) for key, value in facts.items()]
    t = start + 2 * S
    for i in range(steps):
        p.span("compute", "forward", t + 10 * MS, 70 * MS)
        p.span("compute", "step", t + 80 * MS, 10 * MS)
        t = p.step(i + 1, t, 10 * MS, 90 * MS, **({"step": first + i} if labels else {}))
    p.span("app", "more", t, S)  # when it died, or at its end
    place = folder / f"life{number}"
    place.mkdir()
    return p


def test_every_second_is_in_the_part_where_it_belongs(tmp_path: Path) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=True)
    one.write(tmp_path / "life1", "a")
    two = _life(tmp_path, 2, 15, 10, start=10 * S, died=False)
    two.write(tmp_path / "life2", "a")
    result = goodput([tmp_path]).to_json()
    assert result["wall_s"] == pytest.approx(14)
    assert result["recomputed_steps"] == 5
    assert {k: v for k, v in result["parts"].items() if v} == {
        "initialization": 4.0,
        "data": 0.25,
        "recomputed": 0.5,
        "failed": 1.0,
        "gap": 5.0,
        "other": 1.0,
    }
    assert result["productive_s"] == pytest.approx(25 * 0.09)


def test_hangs_are_taken_from_what_the_watch_wrote(tmp_path: Path) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=True)
    one.span("compute", "forward", 6 * S, 30 * S)
    one.write(tmp_path / "life1", "a")
    hang = {
        "rank": 0,
        "moved_us": EPOCH_US + 16 * S,
        "went_on_after_s": None,
        "earlier": [{"moved_us": EPOCH_US + 6 * S, "went_on_after_s": 4.0}],
    }
    (tmp_path / "life1" / "hang_0.json").write_text(json.dumps(hang))
    _life(tmp_path, 2, 20, 10, start=40 * S, died=False).write(tmp_path / "life2", "a")
    result = goodput([tmp_path]).to_json()
    assert result["parts"]["hang"] == pytest.approx(4 + 20)
    assert result["parts"]["gap"] == pytest.approx(4)
    assert result["productive_s"] + sum(result["parts"].values()) == pytest.approx(result["wall_s"])


@pytest.mark.parametrize(
    ("saved", "restored", "first"),
    [
        ({"path": "ckpt/last.pt"}, {"path": "/scratch/job/ckpt/last.pt"}, 12),  # the same file
        ({"path": "ckpt/tmp.pt"}, {"path": "ckpt/last.pt"}, 12),  # renamed
        ({"path": "a/x.pt", "counter": 11}, {"path": "b/y.pt", "counter": 11}, 12),  # moved; counts from 0
        ({}, {"path": "old/y.pt", "counter": 7}, 7),  # from a life that was not recorded
        ({"path": "a/x.pt"}, {"path": "pretrained/base.pt"}, 0),  # not a checkpoint of this job
    ],
)
def test_where_a_training_goes_on_is_found_from_its_checkpoint(
    tmp_path: Path, saved: dict[str, Any], restored: dict[str, Any], first: int
) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=True, labels=False)
    if saved:  # in the twelfth step, after its update
        one.span("checkpoint", "capture", 2 * S + 11 * 100 * MS + 95 * MS, MS, **saved)
    one.write(tmp_path / "life1", "a")
    two = _life(tmp_path, 2, 0, 20, start=20 * S, died=False, labels=False)
    two.span("checkpoint", "restart", 21 * S, 100 * MS, **restored)
    two.write(tmp_path / "life2", "a")
    result = goodput([tmp_path]).to_json()
    assert result["attempts"][1]["first_step"] == first
    assert result["recomputed_steps"] == 20 - first


def test_a_run_that_ended_well_is_no_attempt_of_the_next_one(tmp_path: Path) -> None:
    _life(tmp_path, 1, 0, 20, start=0, died=False).write(tmp_path / "life1", "a")
    _life(tmp_path, 2, 0, 20, start=20 * S, died=False).write(tmp_path / "life2", "a")
    found = goodput([tmp_path])
    assert [a.run for a in found.attempts] == ["run2"]
    assert found.left_out == ["run1"]


def test_names_say_which_runs_are_attempts(tmp_path: Path) -> None:
    _life(tmp_path, 1, 0, 20, start=0, died=False, run_name="a").write(tmp_path / "life1", "a")
    _life(tmp_path, 2, 0, 20, start=20 * S, died=False, run_name="b").write(tmp_path / "life2", "a")
    _life(tmp_path, 3, 20, 20, start=40 * S, died=False, run_name="a").write(tmp_path / "life3", "a")
    assert [a.run for a in goodput([tmp_path]).attempts] == ["run1", "run3"]
    assert [a.run for a in goodput([tmp_path], name="b").attempts] == ["run2"]
    done = subprocess.run(
        [sys.executable, "-m", "dftracer", "goodput", str(tmp_path), "--name", "c"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert "known names: a, b" in done.stderr


def _save(life: Process, step: int, path: str) -> None:
    """State that was saved in a step, after its update."""
    life.span("checkpoint", "capture", life.start + 2 * S + (step - 1) * 100 * MS + 95 * MS, MS, path=path)


def _restore(life: Process, path: str) -> None:
    life.span("checkpoint", "restart", life.start + S, 100 * MS, path=path)


@pytest.mark.parametrize("died", [True, False])  # an attempt that was told to end may save, and end well
def test_an_attempt_that_never_got_to_its_first_step(tmp_path: Path, died: bool) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=died, labels=False)
    _save(one, 10, "c.pt")
    one.write(tmp_path / "life1", "a")
    _life(tmp_path, 2, 0, 0, start=10 * S, died=True).write(tmp_path / "life2", "a")
    three = _life(tmp_path, 3, 0, 20, start=20 * S, died=False, labels=False)
    _restore(three, "c.pt")
    three.write(tmp_path / "life3", "a")
    result = goodput([tmp_path]).to_json()
    assert [a["first_step"] for a in result["attempts"]] == [0, None, 10]
    assert result["recomputed_steps"] == 10
    assert result["parts"]["failed"] == pytest.approx(3 + died)  # all of the second, the end of the first
    assert result["productive_s"] + sum(result["parts"].values()) == pytest.approx(result["wall_s"])


def test_two_attempts_from_one_checkpoint(tmp_path: Path) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=True, labels=False)
    _save(one, 10, "c.pt")
    one.write(tmp_path / "life1", "a")
    for number, died in ((2, True), (3, False)):  # told differently each time
        life = _life(
            tmp_path,
            number,
            0,
            15,
            start=number * 10 * S,
            died=died,
            labels=False,
            command=f"x train.py {number}",
        )
        _restore(life, "c.pt")
        life.write(tmp_path / f"life{number}", "a")
    result = goodput([tmp_path]).to_json()
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 19), (10, 24), (10, 24)]
    assert result["recomputed_steps"] == 10 + 15


def test_steps_that_are_counted_on(tmp_path: Path) -> None:
    """Told differently, and from a checkpoint of which nothing is known."""
    for number, first in ((1, 0), (2, 15)):
        command = f"python train.py {number}"
        life = _life(tmp_path, number, first, 20, start=number * 10 * S, died=number == 1, command=command)
        life.write(tmp_path / f"life{number}", "a")
    result = goodput([tmp_path]).to_json()
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 19), (15, 34)]
    assert result["recomputed_steps"] == 5


def test_the_name_of_a_renamed_checkpoint_says_which_it_is(tmp_path: Path) -> None:
    one = _life(tmp_path, 1, 0, 20, start=0, died=True, labels=False)
    for step in (5, 10, 15):
        _save(one, step, "ckpt/new.tmp")
    one.write(tmp_path / "life1", "a")
    two = _life(tmp_path, 2, 0, 20, start=10 * S, died=False, labels=False)
    _restore(two, "ckpt/step-5.pt")
    two.write(tmp_path / "life2", "a")
    assert goodput([tmp_path]).attempts[1].first_step == 5


def test_a_name_may_be_that_of_a_series_of_jobs(tmp_path: Path) -> None:
    for number, died in ((1, False), (2, True), (3, False)):
        _life(tmp_path, number, 0, 20, start=number * 20 * S, died=died, run_name="a").write(
            tmp_path / f"life{number}", "a"
        )
    found = goodput([tmp_path])
    assert [a.run for a in found.attempts] == ["run2", "run3"]  # the first ended well, the next began anew
    assert found.left_out == ["run1"]
    assert [a.run for a in goodput([tmp_path], name="a").attempts] == ["run1", "run2", "run3"]


def test_an_attempt_that_was_left_running(tmp_path: Path) -> None:
    for number, start, steps in ((1, 0, 400), (2, 10 * S, 20)):
        _life(tmp_path, number, 0, steps, start=start, died=number == 1, run_name="a").write(
            tmp_path / f"life{number}", "a"
        )
    result = goodput([tmp_path]).to_json()
    assert result["wall_s"] == pytest.approx(2 + 40 + 1)  # until the end of the first
    assert result["productive_s"] + sum(result["parts"].values()) == pytest.approx(result["wall_s"])


def test_clocks_of_two_hosts_may_differ(tmp_path: Path) -> None:
    one = _life(tmp_path, 1, 0, 100, start=0, died=True, labels=False)
    _save(one, 50, "c.pt")
    one.write(tmp_path / "life1", "a")
    two = _life(tmp_path, 2, 0, 60, start=11 * S, died=False, labels=False, host="node1")  # 2 s behind
    _restore(two, "c.pt")
    two.write(tmp_path / "life2", "a")
    result = goodput([tmp_path]).to_json()
    assert [(a["first_step"], a["last_step"]) for a in result["attempts"]] == [(0, 99), (50, 109)]
    assert result["recomputed_steps"] == 50
    assert result["parts"]["gap"] == 0
    assert result["productive_s"] + sum(result["parts"].values()) == pytest.approx(result["wall_s"])
