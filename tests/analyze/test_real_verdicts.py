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


class Reported:
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
def reported(traces: Path, request: pytest.FixtureRequest) -> Reported:
    return Reported(traces / request.param)


def of(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("reported", [name], indirect=True, ids=[name])


@pytest.mark.parametrize(
    ("reported", "bound"),
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
    indirect=["reported"],
)
def test_the_place_of_the_cost_is_named(
    reported: Reported, bound: tuple[str, str | None, int | None]
) -> None:
    assert reported.bound == bound, reported.head


@pytest.mark.parametrize(
    "reported", ["evaluation_loop", "evaluation_plain", "evaluation_in_a_step"], indirect=True
)
def test_evaluation_is_accounted_apart(reported: Reported) -> None:
    assert reported.json["evaluation"]["seconds"] == pytest.approx(
        reported.truth["evaluation"], rel=0.02, abs=0.01
    )
    assert len(reported.json["ledger"]["steps"]) == 36


@of("slow_steps")
def test_slow_steps_are_found(reported: Reported) -> None:
    found = reported.finding("slow_steps")
    assert found["severity"] in ("high", "medium")
    assert found["evidence"]["slow_steps"] >= 4
    assert "times as long as the others" in reported.analysis.verdict


@of("slow_items")
def test_slow_items_are_the_reason(reported: Reported) -> None:
    assert reported.finding("slow_items")["evidence"]["slow_items"] >= 3
    assert "storage" not in reported.head


@of("slow_worker")
def test_the_slow_worker_is_named_first(reported: Reported) -> None:
    assert reported.ids[0] == "straggler_worker"
    assert reported.json["findings"][0]["evidence"]["worker"] == 1
    assert "step_drift" not in [f["id"] for f in reported.json["findings"] if f["severity"] == "high"]


@of("slow_file")
def test_the_slow_file_is_named_first_with_its_whole_loss(reported: Reported) -> None:
    first = reported.json["findings"][0]
    assert first["id"] == "slow_file"
    assert first["evidence"]["path"].endswith("/slow.bin")
    assert first["seconds"] == pytest.approx(1.0, rel=0.5)
    assert "slow.bin" in head(reported.analysis)[1]


@of("unannotated")
def test_unseen_work_is_not_called_idle(reported: Reported) -> None:
    assert "what the loader did is not visible" in reported.head
    assert "idle" not in reported.head


@of("unannotated_without_workers")
def test_nothing_is_said_about_workers_where_there_are_none(reported: Reported) -> None:
    assert "worker" not in reported.head


@pytest.mark.parametrize("reported", ["worker_start", "worker_restarts"], indirect=True)
def test_start_up_is_not_blamed_on_prefetching(reported: Reported) -> None:
    assert "prefetch" not in reported.head
    assert "idle" not in reported.head
    assert reported.json["startup"]["seconds"] > (0.7 if "first_step" in reported.ids else 2.1)


@pytest.mark.parametrize("reported", ["read_each_epoch", "read_each_epoch_unlabelled"], indirect=True)
def test_one_read_per_epoch_is_no_reading_again(reported: Reported) -> None:
    assert "rereads" not in reported.ids
    reads = {
        Path(f["path"]).name: f["opens"] - f["opens_to_write"] for f in reported.json["files"] if f["reads"]
    }
    assert {n: reads[n] for n in ("0.bin", "11.bin")} == {"0.bin": 4, "11.bin": 4}


@of("gil")
def test_a_busy_thread_is_no_cold_cache(reported: Reported) -> None:
    assert "cold_first_epoch" not in reported.ids


@of("alternating")
def test_alternating_steps_do_not_drift(reported: Reported) -> None:
    drift = [f for f in reported.json["findings"] if f["id"] == "step_drift"]
    # A machine that gets busier is a drift; the pattern is none: its change would be sevenfold.
    assert all(abs(f["evidence"]["change"]) < 1 for f in drift)


@of("whole_step")
def test_a_whole_step_is_no_optimizer(reported: Reported) -> None:
    assert reported.json["ledger"]["total"]["optimizer"] == 0


@of("any_compute")
def test_utilisation_counts_any_compute(reported: Reported) -> None:
    assert reported.json["au"] > 60


@of("open_to_write")
def test_opening_to_write_is_no_reading(reported: Reported) -> None:
    assert sum(f["opens_to_write"] for f in reported.json["files"]) >= 20
    assert reported.json["ledger"]["total"]["read"] < reported.json["ledger"]["total"]["other"]


@of("killed")
def test_a_killed_rank_is_named_with_its_last_step(reported: Reported) -> None:
    (died,) = reported.finding("incomplete_trace")["evidence"]["died"]
    assert died["rank"] == 0
    assert died["last_step"] in (29, 30)
    assert f"last step {died['last_step']}" in reported.finding("incomplete_trace")["title"]


@pytest.mark.parametrize(
    "reported",
    ["slow_forward_of_rank_1", "slow_forward_before_a_reduce", "slow_data_of_rank_1"],
    indirect=True,
)
def test_waiting_for_the_late_rank_is_not_communication(reported: Reported) -> None:
    assert reported.ids[0] == "straggler_rank"
    waiting = {r["rank"]: r["waiting_for_peers_s"] for r in reported.json["ranks"]}
    assert waiting[0] > 0.9
    assert waiting[1] < 0.5 * waiting[0]
    assert "Rank 1 spends" in reported.head


@pytest.mark.parametrize("reported", [c for c in CASES if c.startswith("healthy")], indirect=True)
def test_a_healthy_run_has_nothing_to_complain_of(reported: Reported) -> None:
    assert reported.bound[0] == "compute"
    wall = np.array([s["wall_s"] for s in reported.json["ledger"]["steps"] if s["rank"] == 0][1:])
    quarter = len(wall) // 4
    # Where the machine itself held up steps, saying so is right.
    disturbed = (
        wall.max() > 1.5 * np.median(wall) or abs(wall[:quarter].mean() / wall[-quarter:].mean() - 1) > 0.05
    )
    machine = {"slow_steps", "step_drift", "straggler_rank", "input_bound"} if disturbed else set()
    # The kernel's own figure says whether the program had to wait for a CPU.
    waited = (reported.json.get("machine") or {}).get("waited_for_cpu_share") or 0.0
    machine |= {"machine_busy"} if disturbed or waited > 0.03 else set()
    loud = [f for f in reported.json["findings"] if f["severity"] != "info" and f["id"] not in machine]
    assert loud == []
