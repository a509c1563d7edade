"""A fleet from step rows: what was injected is found, on a cluster with the same result, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.fleet import make, truth

from dftracer.analyze.fleet import Fleet, read_fleet
from dftracer.load import NoTraces
from dftracer.load.rows import COLUMNS, LEARNS, STAGES, pack_rows
from dftracer.report.fleet import fleet_lines, fleet_page, heat_cells, short_ranks
from support.process import clean_environment

RANKS, STEPS = 512, 120


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fleet")
    make(directory, RANKS, STEPS)
    return directory


@pytest.fixture(scope="module")
def fleet(job: Path) -> Fleet:
    return read_fleet(job)


def test_what_was_injected_is_found_and_nothing_else(fleet: Fleet) -> None:
    injected: dict[str, Any] = truth(RANKS, STEPS)
    found = fleet.to_json()
    assert (found["ranks"], found["steps"]) == (RANKS, STEPS)
    (rank,) = found["slow_ranks"]
    assert (rank["rank"], rank["stage"]) == (injected["slow_rank"]["rank"], "fetch_wait")
    assert rank["seconds"] == pytest.approx(1.5 * 0.008 * STEPS, rel=0.1)
    (step,) = found["slow_steps"]
    assert step["step"] == injected["slow_step"]["step"]
    assert step["seconds"] == pytest.approx(0.4, rel=0.1)
    (group,) = found["slow_groups"]
    assert (group["ranks"], group["stage"]) == (injected["slow_group"]["ranks"], "forward")
    assert group["seconds"] == pytest.approx(0.08 * 0.06 * STEPS, rel=0.1)
    assert list(found)[:5] == ["ranks", "steps", "slow_ranks", "slow_steps", "slow_groups"]
    output = "\n".join(fleet_lines(fleet))
    assert f"Rank {rank['rank']} loses time in waiting for data" in output
    assert f"Step {step['step']} took all ranks" in output


def test_a_cluster_gives_the_same_bytes(job: Path) -> None:
    distributed = pytest.importorskip("distributed")
    command = [sys.executable, "-m", "dftracer", "fleet", str(job), "--json"]
    env = clean_environment()
    alone = subprocess.run(command, capture_output=True, check=True, env=env).stdout
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp://"
    ) as cluster:
        more = ["--dask", cluster.scheduler_address]
        shared = subprocess.run([*command, *more], capture_output=True, check=True, env=env).stdout
    assert shared == alone
    assert json.loads(alone)["slow_groups"]


def test_the_heat_map_has_a_cell_for_every_rank_and_step(fleet: Fleet) -> None:
    page = fleet_page(fleet, "Fleet")
    assert "http" not in page.replace("http-equiv", "")
    cells = heat_cells(fleet)
    assert (cells["rows"], cells["columns"]) == (RANKS, STEPS)
    many = Fleet(
        np.arange(2_501),
        np.arange(1_601),
        np.zeros((2_501, 1_601), np.float32),
        np.ones(1_601),
        np.ones((2_501, len(STAGES))),
        [None] * 2_501,
        [],
    )
    cells = heat_cells(many)
    assert cells["rows"] * cells["rank_block"] >= 2_501
    assert cells["columns"] * cells["step_block"] >= 1_601
    assert cells["rows"] <= 2500
    assert cells["columns"] <= 1600


def _rank_file(path: Path, rank: int, steps: range, us: dict[str, int], attempt: int = 0) -> None:
    table = np.zeros((len(steps), len(COLUMNS)), np.int64)
    table[:, COLUMNS.index("step")] = steps
    for stage, each in us.items():
        table[:, 4 + STAGES.index(stage)] = each
    wall = sum(us.values())
    table[:, COLUMNS.index("wall_us")] = wall
    table[:, COLUMNS.index("start_us")] = 1_760_000_000_000_000 + wall * np.arange(len(steps))
    table[:, COLUMNS.index("flags")] = LEARNS
    facts = {"run": "r", "rank": rank, "attempt": attempt, "host": f"n{rank // 8}"}
    path.write_bytes(pack_rows(table, facts))


def test_a_rank_that_waits_in_backward_is_not_slow(tmp_path: Path) -> None:
    """DDP waits inside backward: whoever is fast elsewhere has a long one."""
    for rank in range(32):
        us = {"forward": 30_000, "backward": 50_000} if rank != 5 else {"forward": 20_000, "backward": 60_000}
        _rank_file(tmp_path / f"{rank}.rows", rank, range(50), us)
    assert read_fleet(tmp_path).slow_ranks == []


def test_a_later_attempt_replaces_what_it_did_again(tmp_path: Path) -> None:
    for rank in range(4):
        _rank_file(tmp_path / f"{rank}-0.rows", rank, range(60), {"forward": 10_000})
        _rank_file(tmp_path / f"{rank}-1.rows", rank, range(50, 100), {"forward": 20_000}, attempt=1)
    fleet = read_fleet(tmp_path)
    assert (fleet.ranks.size, fleet.steps.size) == (4, 100)
    assert fleet.step_us[49] == 10_000
    assert fleet.step_us[50] == 20_000
    assert fleet.trend() == {"first_s": 0.01, "last_s": 0.02}


def test_nothing_to_read_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoTraces, match="no step rows"):
        read_fleet(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "dftracer", "fleet", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_ranks_are_told_briefly() -> None:
    assert short_ranks([3]) == "3"
    assert short_ranks([3, 8, 9, 10]) == "3, 8-10"


PROGRAM = """
import os, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None)
for i in ai.dataloader.fetch.iter(range(10)):
    ai.update(step=i)
    with ai.compute.forward:
        time.sleep(0.3 if os.environ["RANK"] == "2" else 0.02)
    with ai.compute.backward:
        time.sleep(0.01)
"""


def test_the_slow_one_of_four_processes(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=clean_environment(
                DFTRACER_ENABLE="1",
                DFTRACER_LOG_FILE=str(tmp_path / "t"),
                DFTRACER_DISABLE_IO="1",
                DFTRACER_RUN="job",
                RANK=str(rank),
                WORLD_SIZE="4",
            ),
        )
        for rank in range(4)
    ]
    assert [r.wait(timeout=100) for r in ranks] == [0] * 4
    for trace in tmp_path.glob("*.pfw.gz"):  # rows are enough
        os.remove(trace)
    fleet = read_fleet(tmp_path)
    assert (fleet.ranks.tolist(), fleet.steps.tolist()) == ([0, 1, 2, 3], list(range(10)))
    worst = fleet.slow_ranks[0]
    assert (worst.rank, worst.stage) == (2, "forward")
