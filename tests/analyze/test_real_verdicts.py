"""Real training runs with a cost in a known place: the report must name the place.

The programs are in verdict_programs.py; they run three at a time, most of their time asleep. Traces of one
such run are in tests/data/verdicts: the analysis is judged in seconds, and `make test-all` runs the programs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.report import document, head
from support.process import clean_environment

pytest.importorskip("torch")
PROGRAMS = Path(__file__).with_name("verdict_programs.py")
CASES = re.findall(r"^@case\([^)]*\)\ndef (\w+)", PROGRAMS.read_text(), re.MULTILINE)


RECORDED = Path(__file__).parents[1] / "data" / "verdicts"


@pytest.fixture(
    scope="module",
    params=["recorded", pytest.param("run", marks=pytest.mark.alone)],
)
def traces(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    if request.param == "recorded":
        return RECORDED
    folder = tmp_path_factory.mktemp("runs")
    env = clean_environment()
    command = [sys.executable, str(PROGRAMS), str(folder), *CASES]
    subprocess.run(command, env={**env, "DFTRACER_ENABLE": "1"}, check=True, timeout=500)
    return folder


class Told:
    """The report of a case."""

    def __init__(self, folder: Path) -> None:
        self.analysis: Analysis = analyze(folder)
        self.json = document(self.analysis)
        truth = folder / "truth.json"
        self.truth: dict[str, Any] = json.loads(truth.read_text()) if truth.exists() else {}
        self.head = " ".join(head(self.analysis))
        pieces = sum(
            self.json[k]["seconds"] for k in ("steady", "startup", "evaluation", "outside", "profiled")
        )
        assert pieces == pytest.approx(self.json["run_s"], abs=1e-5)

    @property
    def bound(self) -> tuple[str, str | None, int | None]:
        b = self.json["bound"]
        return b["id"], b["stage"], b["rank"]

    @property
    def ids(self) -> list[str]:
        return [f["id"] for f in self.json["findings"]]

    def finding(self, ident: str) -> dict[str, Any]:
        """On its own, or as a symptom of another."""
        every = [each for f in self.json["findings"] for each in (f, *f.get("symptoms", ()))]
        found: dict[str, Any] = next(f for f in every if f["id"] == ident)
        return found


@pytest.fixture
def told(traces: Path, request: pytest.FixtureRequest) -> Told:
    return Told(traces / request.param)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("told", [name], indirect=True, ids=[name])


@pytest.mark.parametrize(
    ("told", "bound"),
    [
        ("transfer", ("transfer", "transfer", None)),
        ("user_stage", ("other", "tokenize", None)),
        ("optimizer", ("compute", "optimizer", None)),
        ("gap", ("between_steps", None, None)),
        ("checkpoint_at_the_end", ("checkpoint", "checkpoint", None)),
        ("first_step", ("compute", "forward", None)),
        ("whole_step", ("compute", None, None)),
        ("any_compute", ("compute", None, None)),
        ("worker_start", ("startup", "fetch_wait", None)),
        ("worker_restarts", ("startup", "fetch_wait", None)),
        ("unannotated", ("input", None, None)),
        ("unannotated_without_workers", ("input", None, None)),
        ("slow_worker", ("input", "preprocess", None)),
        ("slow_file", ("input", "read", None)),
        ("slow_forward_of_rank_1", ("straggler", "forward", 1)),
        ("slow_forward_before_a_reduce", ("straggler", "forward", 1)),
        ("slow_data_of_rank_1", ("straggler", "fetch_wait", 1)),
    ],
    indirect=["told"],
)
def test_the_place_of_the_cost_is_named(told: Told, bound: tuple[str, str | None, int | None]) -> None:
    assert told.bound == bound, told.head


@pytest.mark.parametrize(
    "told", ["evaluation_loop", "evaluation_plain", "evaluation_in_a_step"], indirect=True
)
def test_evaluation_is_accounted_apart(told: Told) -> None:
    assert told.json["evaluation"]["seconds"] == pytest.approx(told.truth["evaluation"], rel=0.02, abs=0.01)
    assert len(told.json["ledger"]["steps"]) == 36


@of("slow_steps")
def test_slow_steps_are_found(told: Told) -> None:
    found = told.finding("slow_steps")
    assert found["severity"] in ("high", "medium")
    assert found["evidence"]["slow_steps"] >= 4
    assert "times as long as the others" in told.analysis.verdict


@of("slow_items")
def test_slow_items_are_the_reason(told: Told) -> None:
    assert told.finding("slow_items")["evidence"]["slow_items"] >= 3
    assert "storage" not in told.head


@of("slow_worker")
def test_the_slow_worker_is_named_first(told: Told) -> None:
    assert told.ids[0] == "straggler_worker"
    assert told.json["findings"][0]["evidence"]["worker"] == 1
    assert "step_drift" not in [f["id"] for f in told.json["findings"] if f["severity"] == "high"]


@of("slow_file")
def test_the_slow_file_is_named_first_with_its_whole_loss(told: Told) -> None:
    first = told.json["findings"][0]
    assert first["id"] == "slow_file"
    assert first["evidence"]["path"].endswith("/slow.bin")
    assert first["seconds"] == pytest.approx(1.0, rel=0.5)
    assert "slow.bin" in head(told.analysis)[1]


@of("unannotated")
def test_unseen_work_is_not_called_idle(told: Told) -> None:
    assert "what the loader did is not visible" in told.head
    assert "idle" not in told.head


@of("unannotated_without_workers")
def test_nothing_is_said_about_workers_where_there_are_none(told: Told) -> None:
    assert "worker" not in told.head


@pytest.mark.parametrize("told", ["worker_start", "worker_restarts"], indirect=True)
def test_start_up_is_not_blamed_on_prefetching(told: Told) -> None:
    assert "prefetch" not in told.head
    assert "idle" not in told.head
    assert told.json["startup"]["seconds"] > (0.7 if "first_step" in told.ids else 2.1)


@pytest.mark.parametrize("told", ["read_each_epoch", "read_each_epoch_unlabelled"], indirect=True)
def test_one_read_per_epoch_is_no_reading_again(told: Told) -> None:
    assert "rereads" not in told.ids
    reads = {Path(f["path"]).name: f["opens"] - f["opens_to_write"] for f in told.json["files"] if f["reads"]}
    assert {n: reads[n] for n in ("0.bin", "11.bin")} == {"0.bin": 4, "11.bin": 4}


@of("gil")
def test_a_busy_thread_is_no_cold_cache(told: Told) -> None:
    assert "cold_first_epoch" not in told.ids


@of("alternating")
def test_alternating_steps_do_not_drift(told: Told) -> None:
    drift = [f for f in told.json["findings"] if f["id"] == "step_drift"]
    # A machine that gets busier is a drift; the pattern is none: its change would be sevenfold.
    assert all(abs(f["evidence"]["change"]) < 1 for f in drift)


@of("whole_step")
def test_a_whole_step_is_no_optimizer(told: Told) -> None:
    assert told.json["ledger"]["total"]["optimizer"] == 0


@of("any_compute")
def test_utilisation_counts_any_compute(told: Told) -> None:
    assert told.json["au"] > 60


@of("open_to_write")
def test_opening_to_write_is_no_reading(told: Told) -> None:
    assert sum(f["opens_to_write"] for f in told.json["files"]) >= 20
    assert told.json["ledger"]["total"]["read"] < told.json["ledger"]["total"]["other"]


@of("killed")
def test_a_killed_rank_is_named_with_its_last_step(told: Told) -> None:
    (died,) = told.finding("incomplete_trace")["evidence"]["died"]
    assert died["rank"] == 0
    assert died["last_step"] in (29, 30)
    assert f"last step {died['last_step']}" in told.finding("incomplete_trace")["title"]


@pytest.mark.parametrize(
    "told", ["slow_forward_of_rank_1", "slow_forward_before_a_reduce", "slow_data_of_rank_1"], indirect=True
)
def test_waiting_for_the_late_rank_is_not_communication(told: Told) -> None:
    assert told.ids[0] == "straggler_rank"
    waiting = {r["rank"]: r["waiting_for_peers_s"] for r in told.json["ranks"]}
    assert waiting[0] > 0.9
    assert waiting[1] < 0.5 * waiting[0]
    assert "Rank 1 spends" in told.head


@pytest.mark.parametrize("told", [c for c in CASES if c.startswith("healthy")], indirect=True)
def test_a_healthy_run_has_nothing_to_complain_of(told: Told) -> None:
    assert told.bound[0] == "compute"
    wall = np.array([s["wall_s"] for s in told.json["ledger"]["steps"] if s["rank"] == 0][1:])
    quarter = len(wall) // 4
    # Where the machine itself held up steps, saying so is right.
    disturbed = (
        wall.max() > 1.5 * np.median(wall) or abs(wall[:quarter].mean() / wall[-quarter:].mean() - 1) > 0.05
    )
    machine = {"slow_steps", "step_drift", "straggler_rank", "input_bound"} if disturbed else set()
    # The kernel's own figure says whether the program had to wait for a CPU.
    waited = (told.json.get("machine") or {}).get("waited_for_cpu_share") or 0.0
    machine |= {"machine_busy"} if disturbed or waited > 0.03 else set()
    loud = [f for f in told.json["findings"] if f["severity"] != "info" and f["id"] not in machine]
    assert loud == []
