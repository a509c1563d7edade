"""DLIO's annotations: events follow from its configuration, `au` is the accelerator utilisation it reports.

One program annotates as DLIO does and runs everywhere. The real benchmark needs TensorFlow and DALI to be
installed by pip, so it runs where `dlio_benchmark` can be imported or DFTRACER_TEST_DLIO names a checkout of
it (its PyTorch workloads need hydra-core, mpi4py with an MPI library, pandas, h5py and Pillow alone).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import analyze
from dftracer.report import document
from support.process import clean_environment
from support.torch_programs import Task, fork_at_once
from support.trace import read_directory

pytest.importorskip("torch")
CHECKOUT = os.environ.get("DFTRACER_TEST_DLIO", "")
PROGRAM = Path(__file__).with_name("benchmark_program.py")
SAMPLES, BATCH, EPOCHS = 24, 4, 2


def run(command: list[str], folder: Path, **settings: str) -> str:
    env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_INC_METADATA="1", **settings)
    done = subprocess.run(
        command, check=False, cwd=folder, env=env, timeout=180, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected_events() -> dict[tuple[str, str], int]:
    """Every sample is one item, every batch one step."""
    steps, items = EPOCHS * SAMPLES // BATCH, EPOCHS * SAMPLES
    return {
        ("ai_root", "ai_root"): 1,
        ("pipeline", "epoch.block"): EPOCHS,
        ("pipeline", "train"): EPOCHS,
        ("dataloader", "fetch.iter"): steps,
        ("dataloader", "fetch.block"): steps,
        ("compute", "compute"): steps,
        ("data", "item"): items,
        ("data", "preprocess"): items,
    }


def check(folder: Path, utilisation: Sequence[float]) -> dict[str, Any]:
    """The report of a run whose program measured this utilisation in its epochs."""
    expected = expected_events()
    stages = {cat for cat, _ in expected}
    found = Counter((e.cat, e.name) for e in read_directory(folder).events if e.cat in stages)
    assert found == expected
    report = document(analyze(folder))
    assert report["au"] == pytest.approx(float(np.mean(utilisation)), abs=1)
    (rank,) = report["ranks"]
    assert (rank["steps"], rank["workers"]) == (EPOCHS * SAMPLES // BATCH, 1)
    return report


@pytest.mark.parametrize(
    ("read_s", "compute_s", "bound"),
    [(0.0, 0.2, "compute"), (0.08, 0.1, "input")],
    ids=["fed", "starved"],
)
def test_a_program_annotated_as_dlio(read_s: float, compute_s: float, bound: str, tmp_path: Path) -> None:
    """A batch takes four reads; a starved loader gives one per 0.32 s, of which compute is 0.1 s."""
    settings = {
        "samples": SAMPLES,
        "batch_size": BATCH,
        "epochs": EPOCHS,
        "read_s": read_s,
        "compute_s": compute_s,
    }
    place = tmp_path / "run"
    place.mkdir()
    env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_INC_METADATA="1")
    program = Task(PROGRAM, place, env, [json.dumps(settings)])
    assert fork_at_once([program]) == [0], program.output("stderr").read_text()
    out = program.output("stdout").read_text()
    utilisation, rates = zip(*json.loads(out.splitlines()[-1]), strict=True)
    report = check(place, utilisation)
    assert report["bound"]["id"] == bound
    # DLIO leaves out one step's time and two steps' samples: its own rate is lower by one step of each epoch.
    assert report["samples_per_s"] == pytest.approx(float(np.mean(rates)), rel=0.05)


@pytest.mark.skipif(
    not CHECKOUT and importlib.util.find_spec("dlio_benchmark") is None,
    reason="no dlio_benchmark (pip wants TensorFlow and DALI for it) and no DFTRACER_TEST_DLIO=CHECKOUT",
)
def test_the_real_benchmark(tmp_path: Path) -> None:
    """Its 3D U-Net workload, made tiny."""
    overrides = {
        "dataset.num_files_train": SAMPLES,
        "dataset.record_length_bytes": 4096,
        "dataset.record_length_bytes_stdev": 0,
        "dataset.record_length_bytes_resize": 4096,
        "dataset.data_folder": tmp_path / "data",
        "reader.batch_size": BATCH,
        "reader.read_threads": 1,
        "train.epochs": EPOCHS,
        "train.total_training_steps": -1,
        "train.computation_time": 0.2,
        "workflow.checkpoint": False,
        "output.folder": tmp_path / "results",
    }
    command = [sys.executable, "-c", "from dlio_benchmark.main import main; main()", "workload=unet3d_a100"]
    command += [f"++workload.{name}={value}" for name, value in overrides.items()]
    path = os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH", "")]))
    for generate in (True, False):
        work = [f"++workload.workflow.generate_data={generate}", f"++workload.workflow.train={not generate}"]
        folder = ["++workload.output.folder=generated"] if generate else []
        run([*command, *work, *folder], tmp_path, PYTHONPATH=path)
    summary = json.loads((tmp_path / "results" / "summary.json").read_text())
    report = check(tmp_path / "results", summary["metric"]["train_au_percentage"])
    steps = SAMPLES // BATCH
    less = (steps - 2) / (steps - 1)
    theirs = summary["metric"]["train_throughput_mean_samples_per_second"]
    assert less * report["samples_per_s"] == pytest.approx(theirs, rel=0.05), "one step of each epoch less"
