"""A report is of the whole run: how it began, how it ended, what it compiled, how many trainings it was.

Every case is a real program that knows the truth about itself.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.analyze.goodput import goodput
from dftracer.report import document
from dftracer.report.contents import account_title, ended_words, notes
from dftracer.view.source import Source
from support.commands import dftracer, json_of
from support.process import clean_environment

pytest.importorskip("torch")

_TRAIN = """
import json, os, sys, time
import torch
torch.set_num_threads(1)

def net():
    return torch.nn.Linear(8, 1)

def train(model, steps, nap=0.005, optimizer=None, fail_at=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(steps):
        loss = model(torch.ones(4, 8)).sum()
        time.sleep(nap)
        loss.backward()
        if i == fail_at:
            raise RuntimeError("boom")
        optimizer.step()
        optimizer.zero_grad()
"""


def _run(
    folder: Path, body: str, *before: str, after: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """The program under `dftracer run`; its traces are in folder/traces."""
    script = folder / "train.py"
    script.write_text(_TRAIN + textwrap.dedent(body))
    env = clean_environment(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    command = [sys.executable, "-m", "dftracer", "run", "-o", str(folder / "traces"), "--"]
    return subprocess.run(
        [*command, *before, sys.executable, *after, str(script)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def _line_of(folder: Path, text: str) -> int:
    lines = (folder / "train.py").read_text().splitlines()
    return next(n for n, line in enumerate(lines, start=1) if text in line)


def _report(folder: Path) -> tuple[Any, dict[str, Any]]:
    a = analyze(folder / "traces")
    return a, json.loads(json.dumps(document(a)))


def test_the_run_is_from_the_start_of_the_process_to_its_end(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        born = time.time()
        time.sleep(1.0)
        prepared = time.time()
        model = net()
        train(model, 8)
        trained = time.time()
        time.sleep(0.7)
        with open("truth.json", "w") as f:
            over = time.time()
            json.dump({"prepare": prepared - born, "after": over - trained, "all": over - born}, f)
        """,
    )
    assert done.returncode == 0, done.stderr
    truth = json.loads((tmp_path / "truth.json").read_text())
    a, result = _report(tmp_path)
    assert result["run_s"] >= truth["all"]
    assert result["startup"]["seconds"] >= truth["prepare"]
    assert result["startup"]["setup_s"] >= truth["prepare"] - 0.05
    assert result["outside"]["after_s"] >= truth["after"] - 0.05
    pieces = ("steady", "startup", "compilation", "evaluation", "outside", "profiled")
    assert sum(result[piece]["seconds"] for piece in pieces) == pytest.approx(result["run_s"], abs=1e-3)
    assert result["trace"]["span_s"] == pytest.approx(result["run_s"], rel=0.1)
    assert ended_words(a) is None
    assert result["ended"]["exit_code"] == 0


def _answer(*command: str) -> Any:
    return json_of(*command)


def test_a_figure_is_the_same_wherever_it_is_shown(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, index):
                time.sleep(0.02)
                return torch.ones(8)
        if __name__ == "__main__":
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for epoch in range(2):
                for batch in torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=2):
                    model(batch).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    )
    assert done.returncode == 0, done.stderr
    traces = str(tmp_path / "traces")
    a, result = _report(tmp_path)
    shown, compared = _answer("top", "--once", "--last", "3600", traces), _answer("compare", traces, traces)
    source = Source([traces], cache=False)
    run = source.load()
    viewed = source.steps().info

    median = statistics.median(result["steady_steps"]["wall_us"])
    assert shown["ranks"][0]["step_s"] == pytest.approx(median / 1e6, abs=1e-6)
    if compared["steps_per_block"] == 1:  # otherwise a step is the mean of several, and compare says so
        assert compared["step"]["a_s"] == pytest.approx(median / 1e6, abs=1e-6)
    else:
        assert any("consecutive" in note for note in compared["notes"])
    assert viewed["ranks"][0]["median_us"] == pytest.approx(median)

    files = _answer("info", traces)["files"]
    assert result["trace"]["events"] == sum(f["events"] for f in files) == shown["events"] == run.events
    for words in (repr(a), a._repr_html_()):  # what a notebook shows
        assert (
            words.replace("\N{NO-BREAK SPACE}", " ").count(f"{run.events:,}".replace(",", " ") + " events")
            == 1
        )

    assert sorted({w["worker"] for w in result["workers"]}) == [0, 1]
    lanes = {lane.label.split()[2].rstrip(",") for lane in run.lanes if lane.role == "worker"}
    assert lanes == {"0", "1"}, "the same numbers again in the second epoch"

    # The first of each epoch is none; on a busy machine the next may be a slow start, too.
    steady = result["steady_steps"]["steps"]
    assert compared["runs"][0]["steady_steps"] == steady
    assert 25 <= steady <= 30
    assert account_title(a) == f"The last {steady + 1} of 32 steps of rank 0 and the time between them"


def test_an_exception_is_how_it_ended(tmp_path: Path) -> None:
    done = _run(tmp_path, "train(net(), 20, fail_at=11)")
    assert done.returncode == 1
    line = _line_of(tmp_path, 'raise RuntimeError("boom")')
    words = f"Failed after 11 steps: RuntimeError at train.py:{line}."
    assert words in done.stderr
    a, result = _report(tmp_path)
    assert ended_words(a) == words
    assert {k: result["ended"][k] for k in ("exit_code", "signal", "exception", "rank", "step")} == {
        "exit_code": 1,
        "signal": None,
        "exception": f"RuntimeError at train.py:{line}",
        "rank": 0,
        "step": 11,
    }
    assert "between steps" not in result["verdict"]
    assert not [f for f in result["findings"] if f["id"] == "between_steps"]


@pytest.mark.parametrize(
    ("body", "code", "sent", "words"),
    [
        ("train(net(), 8); sys.exit(3)", 3, None, "Failed after 8 steps: exit code 3."),
        (
            "import signal; train(net(), 8); os.kill(os.getpid(), signal.SIGKILL)",
            None,
            "SIGKILL",
            "killed by SIGKILL.",
        ),
        ("train(net(), 8); raise KeyboardInterrupt", None, "SIGINT", "Interrupted after"),
    ],
)
def test_exit_codes_and_signals(
    tmp_path: Path, body: str, code: int | None, sent: str | None, words: str
) -> None:
    done = _run(tmp_path, body)
    assert done.returncode not in (0, None)
    a, result = _report(tmp_path)
    assert result["ended"]["exit_code"] == code
    assert result["ended"]["signal"] == sent or (result["ended"]["exception"] or "").startswith(
        "KeyboardInterrupt"
    )
    assert words in (ended_words(a) or "")


def test_a_rank_that_fails_and_is_restarted(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        # Without a process group: gloo's own connections after a restart fail now and then.
        rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        train(net(), 30, fail_at=7 if rank == 1 and attempt == 0 else None)
        """,
        after=("-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--standalone"),
    )
    assert done.returncode == 0, done.stderr
    a, result = _report(tmp_path)
    assert [r["rank"] for r in result["ranks"]] == [0, 1]
    assert [r["steps"] for r in result["ranks"]] == [30, 30]
    first, second = result["attempts"]
    assert first["rank"] == 1
    assert first["step"] == 7
    assert first["exception"].startswith("RuntimeError at train.py:")
    assert second["exit_code"] == 0
    assert result["ended"]["attempts"] == 2
    assert any(
        line.startswith("Attempt 1 of 2: Rank 1 failed after 7 steps: RuntimeError") for line in notes(a)
    )
    # Nothing was saved: the second attempt begins again.
    job = goodput([tmp_path / "traces"]).to_json()
    assert [each["first_step"] for each in job["attempts"]] == [0, 0]
    assert [each["ended"]["exit_code"] for each in job["attempts"]] == [1, 0]
    assert job["attempts"][1]["last_step"] == 29
    assert job["recomputed_steps"] == job["attempts"][0]["last_step"] + 1
    assert job["parts"]["recomputed"] > 0
    assert job["productive_s"] + sum(job["parts"].values()) == pytest.approx(job["wall_s"], rel=1e-3)


def test_compilation_is_a_part_of_the_run_and_leads_where_it_is_the_largest(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        compiling = []
        def backend(graph, inputs):
            began = time.time()
            time.sleep(2.0)
            compiling.append(time.time() - began)
            return graph.forward
        model = torch.compile(net(), backend=backend)
        train(model, 20)
        json.dump(compiling, open("truth.json", "w"))
        """,
    )
    assert done.returncode == 0, done.stderr
    truth = sum(json.loads((tmp_path / "truth.json").read_text()))
    _, result = _report(tmp_path)
    assert result["compilation"]["seconds"] >= truth
    assert result["bound"]["id"] == "compilation"
    assert result["verdict"].startswith("Compilation is the largest part")
    assert not any("torch.compile," in line for line in result["head"])
    slow = [row["wall_s"] for row in result["ledger"]["steps"]]
    assert max(slow) < truth, "compiling is no part of the step that it happens in"


@pytest.mark.parametrize("sizes", [(8, 8), (8, 9)])
def test_what_torch_compiles_again_is_told_apart(tmp_path: Path, sizes: tuple[int, int]) -> None:
    """Forward and backward of one graph are one compilation; another shape is another."""
    done = _run(
        tmp_path,
        f"""
        @torch.compile(backend="aot_eager", dynamic=False)
        def loss_of(x, w):
            return (x * w).sin().sum()
        w = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.01)
        for n in {sizes} * 6:
            loss_of(torch.ones(n), w).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    )
    assert done.returncode == 0, done.stderr
    table = analyze(tmp_path / "traces").name_table
    names = {row["name"]: row["count"] for row in table.iter_rows(named=True) if row["cat"] == "dynamo"}
    assert ("recompile" in names) == (sizes[0] != sizes[1])
    assert names["compile"] >= 1


def test_two_trainings_in_one_process_are_two_loops(tmp_path: Path) -> None:
    done = _run(tmp_path, "train(net(), 30, 0.01)\ntrain(net(), 30, 0.04)")
    assert done.returncode == 0, done.stderr
    a, result = _report(tmp_path)
    assert len(result["ledger"]["steps"]) == 60
    assert "step_drift" not in {f["id"] for f in result["findings"]}
    assert any(line.startswith("2 training runs in a row") for line in notes(a))


@pytest.mark.parametrize("at_once", [False, True])
def test_processes_that_train_for_themselves_are_trainings_not_ranks(tmp_path: Path, at_once: bool) -> None:
    done = _run(
        tmp_path,
        f"""
        import multiprocessing
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            children = []
            for nap in (0.005, 0.02):
                child = context.Process(target=train, args=(net(), 12, nap))
                child.start()
                children.append(child)
                if not {at_once}:
                    child.join()
            for child in children:
                child.join()
        """,
    )
    assert done.returncode == 0, done.stderr
    a, result = _report(tmp_path)
    assert result["trace"]["ranks"] == 1
    assert [t["steps"] for t in result["trainings"]] == [12, 12]
    assert all(t["verdict"] for t in result["trainings"])
    assert "straggler" not in json.dumps(result["bound"])
    assert any(line.startswith("2 training runs in separate processes") for line in notes(a))


def test_a_sweep_names_its_trainings_by_their_arguments(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        import subprocess
        if len(sys.argv) > 1:
            train(net(), 12, float(sys.argv[1]))
        else:
            for nap in ("0.005", "0.02"):
                subprocess.run([sys.executable, "train.py", nap], check=True)
        """,
    )
    assert done.returncode == 0, done.stderr
    a, result = _report(tmp_path)
    assert [t["command"] for t in result["trainings"]] == [
        f"{sys.executable} train.py {nap}" for nap in ("0.005", "0.02")
    ]
    for nap in ("0.005", "0.02"):
        (line,) = [line for line in notes(a) if f"(train.py {nap}), 12 steps" in line]
        assert line in done.stderr, "the run's own last lines name them too"


def test_slow_steps_at_the_beginning_are_warm_up(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        class Slow(torch.nn.Module):
            seen = 0
            def __init__(self):
                super().__init__()
                self.inner = net()
            def forward(self, x):
                Slow.seen += 1
                time.sleep(0.1 if Slow.seen <= 4 else 0.01)
                return self.inner(x)
        train(Slow(), 40, 0.0)
        """,
    )
    assert done.returncode == 0, done.stderr
    _, result = _report(tmp_path)
    found = {f["id"]: f for f in result["findings"]}
    assert "slow_steps" not in found
    assert found["first_step"]["title"].startswith("Warm-up: the first 4 steps take")
    assert found["first_step"]["evidence"]["stage"] == "forward"
    assert found["first_step"]["seconds"] >= 0.3


@pytest.mark.parametrize("program", [["ls", "/"], [sys.executable, "-c", "print('hello')"]])
def test_what_does_not_train_gets_no_lecture(tmp_path: Path, program: list[str]) -> None:
    command = [sys.executable, "-m", "dftracer", "run", "--", *program]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0
    for word in ("fetch.iter", "annotat", "Try:", "training step"):
        assert word not in done.stderr
    assert "did no training" in done.stderr
    assert "next: dftracer report" in done.stderr


def test_a_signal_of_the_shell_is_known_to_the_launcher(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dftracer",
        "run",
        "-o",
        "t",
        "--",
        "/bin/sh",
        "-c",
        "cat /etc/hostname; kill -TERM $$",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode in (128 + signal.SIGTERM, -signal.SIGTERM)
    result = document(analyze(tmp_path / "t"))["ended"]
    assert result["signal"] == "SIGTERM"
    assert result["exit_code"] is None
    assert os.listdir(tmp_path / "t") != []


def test_a_slice_of_steps_has_the_batches_of_these_steps(tmp_path: Path) -> None:
    done = _run(
        tmp_path,
        """
        class Items(torch.utils.data.Dataset):
            def __len__(self):
                return 80
            def __getitem__(self, i):
                time.sleep(0.001)
                return torch.ones(8)

        if __name__ == "__main__":
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for x in torch.utils.data.DataLoader(Items(), batch_size=4, num_workers=2):
                model(x).sum().backward()
                time.sleep(0.02)
                optimizer.step()
        """,
    )
    assert done.returncode == 0, done.stderr
    _, whole = _report(tmp_path)
    for words in (
        ["slice", "traces", "--steps", "5:11", "-o", "part"],
        ["report", "traces", "--steps", "5:11", "--json"],
    ):
        done = dftracer(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    steps = [row for row in whole["ledger"]["steps"] if row["step"] in range(5, 12)]
    window = steps[-1]["start_s"] + steps[-1]["wall_s"] - steps[0]["start_s"]
    for result in (document(analyze(tmp_path / "part")), json.loads(done.stdout)):
        names = {(n["cat"], n["name"]): n for n in result["names"]}
        assert [row["step"] for row in result["ledger"]["steps"]] == [*range(5, 12)]
        # None of them was the run's first: all are judged.
        assert result["steady_steps"]["steps"] == 7
        assert result["account_s"] == pytest.approx(window, rel=0.01)
        assert names["data", "item"]["count"] == 28
        assert names["data", "collate"]["count"] == 7
        assert names["pipeline", "epoch"]["max_us"] <= 1e6 * window + 2
        assert result["run_s"] <= window + 0.01
