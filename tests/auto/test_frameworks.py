"""Frameworks as people use them, met by themselves under DFTRACER_AUTO or through what they offer by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer.testing import Capture, read
from support.process import clean_environment

HERE = Path(__file__).parent


def _run(tmp_path: Path, program: str, *args: str, auto: bool = True, **more: str) -> tuple[Capture, str]:
    result = _outcome(tmp_path, program, *args, auto=auto, **more)
    return read(tmp_path / "trace"), result


def _outcome(tmp_path: Path, program: str, *args: str, auto: bool, **more: str) -> str:
    env = clean_environment()
    env.update(
        DFTRACER_ENABLE="1",
        DFTRACER_DISABLE_IO="1",
        DFTRACER_LOG_FILE=str(tmp_path / "trace" / "t"),
        PYTHONPATH=str(HERE / "parts"),
        OMP_NUM_THREADS="1",
        **more,
    )
    if auto:
        env["DFTRACER_AUTO"] = "torch"
        env["DFTRACER_AUTO_MARK"] = str(tmp_path / "mark")
    done = subprocess.run(
        [sys.executable, str(HERE / "frameworks" / f"{program}.py"), *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=550,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (tmp_path / "stdout").write_text(done.stdout)
    return done.stderr


def _count(events: Capture, cat: str, name: str) -> int:
    return sum(e.cat == cat and e.name == name for e in events)


def _blocks_and_evaluations_are_apart(events: Capture) -> None:
    """An evaluation is not a part of a step; at its ends the two may meet."""
    blocks = [e for e in events if e.name == "fetch.block"]
    for evaluation in (e for e in events if e.name == "evaluate"):
        middle = evaluation.ts + evaluation.dur / 2
        assert not any(block.ts <= middle <= block.ts + block.dur for block in blocks)


@pytest.mark.parametrize("by_hand", [False, True])
def test_hugging_face_trainer(tmp_path: Path, by_hand: bool) -> None:
    events, result = _run(
        tmp_path, "hf_trainer", str(tmp_path / "out"), *["hand"] * by_hand, auto=not by_hand
    )
    assert _count(events, "dataloader", "fetch.block") == 12
    assert _count(events, "compute", "step") == 12
    assert _count(events, "compute", "forward") == _count(events, "compute", "backward") == 24
    assert _count(events, "pipeline", "epoch") == 2
    evaluations = [e for e in events if e.name == "evaluate"]
    # Three items, each fetched (0.03 s) and computed (0.06 s).
    assert len(evaluations) == 2
    assert all(e.dur >= 270_000 for e in evaluations)
    _blocks_and_evaluations_are_apart(events)
    assert {e.args["step"] for e in events if e.name == "fetch.block"} == set(range(12))
    if not by_hand:
        assert "PyTorch, Hugging Face Trainer: steps are recorded" in result


@pytest.mark.parametrize(("kind", "by_hand"), [("auto", False), ("manual", False), ("auto", True)])
def test_lightning(tmp_path: Path, kind: str, by_hand: bool) -> None:
    events, result = _run(
        tmp_path, "lightning_fit", kind, str(tmp_path), *["hand"] * by_hand, auto=not by_hand
    )
    assert _count(events, "dataloader", "fetch.block") == 24
    for name in ("forward", "backward", "step"):
        assert _count(events, "compute", name) == 24
    # A sanity check of two items before the first epoch, three items after each.
    evaluations = sorted((e for e in events if e.name == "evaluate"), key=lambda e: e.ts)
    assert [e.dur >= n * 90_000 for e, n in zip(evaluations, (2, 3, 3), strict=True)] == [True] * 3
    _blocks_and_evaluations_are_apart(events)
    assert any(e.cat == "lightning" for e in events) is by_hand
    if not by_hand:
        assert "PyTorch, Lightning: steps are recorded" in result


def test_accelerate(tmp_path: Path) -> None:
    events, result = _run(tmp_path, "accelerated")
    assert _count(events, "dataloader", "fetch.block") == 6
    assert _count(events, "compute", "backward") == 12
    assert _count(events, "compute", "step") == 6
    assert "PyTorch, Accelerate: steps are recorded" in result


@pytest.mark.parametrize(("backend", "by_hand"), [("torch", False), ("jax", True)])
def test_keras(tmp_path: Path, backend: str, by_hand: bool) -> None:
    events, _ = _run(tmp_path, "keras_fit", *["hand"] * by_hand, auto=not by_hand, KERAS_BACKEND=backend)
    assert _count(events, "dataloader", "fetch.block") == 12
    assert _count(events, "compute", "compute") == 12
    assert _count(events, "pipeline", "epoch") == _count(events, "pipeline", "evaluate") == 2
    assert _count(events, "pipeline", "train") == 1
    assert _count(events, "compute", "backward") == 0
    # With torch, Keras looks at one batch before it trains; that wait belongs to no step.
    waits = [e for e in events if e.name == "fetch.iter" and "step" in e.args]
    assert len(waits) == 12
    assert {e.args["step"] for e in waits} == set(range(12))


def test_a_step_of_jax_is_waited_for_only_when_asked(tmp_path: Path) -> None:
    events, _ = _run(tmp_path, "jax_steps", auto=False)
    assert (tmp_path / "stdout").read_text().split() == ["4", "4"]
    steps = [e for e in events if e.cat == "compute"]
    waited = [e for e in steps if e.args["blocked"] == 1]
    sent = [e for e in steps if e.args["blocked"] == 0]
    assert [int(e.args["step"]) for e in waited] == [0, 1, 2, 3]
    assert [int(e.args["step"]) for e in sent] == [0, 1, 2]


def test_deepspeed(tmp_path: Path) -> None:
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("no deepspeed here")
    (tmp_path / "off").mkdir()
    events, result = _run(tmp_path, "deepspeed_engine", str(tmp_path / "store"))
    untold = _outcome(tmp_path / "off", "deepspeed_engine", str(tmp_path / "off" / "store"), auto=False)
    assert "PyTorch, DeepSpeed: steps are recorded" in result
    losses = [
        [line for line in (where / "stdout").read_text().splitlines() if line.startswith("loss")]
        for where in (tmp_path, tmp_path / "off")
    ]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
    assert result.count("Warning") == untold.count("Warning")
    # Two batches a step; ZeRO steps the weight and the bias one after the other.
    assert _count(events, "dataloader", "fetch.block") == 12
    assert _count(events, "compute", "forward") == _count(events, "compute", "backward") == 24
    steps = sorted((e for e in events if (e.cat, e.name) == ("compute", "step")), key=lambda e: e.ts)
    assert [e.args["step"] for e in steps] == list(range(12))
    assert [e.args["step"] for e in steps if "skipped" in e.args] == [9]
    assert _count(events, "pipeline", "evaluate") == 2


def test_ray_train(tmp_path: Path) -> None:
    events, _ = _run(tmp_path, "ray_train", str(tmp_path / "store"))
    # Its loader looks ahead, and its workers are ended without their exit handlers.
    assert _count(events, "dataloader", "fetch.block") == 12
    assert _count(events, "pipeline", "epoch") == _count(events, "pipeline", "train") == 1
    for name in ("forward", "backward", "step"):
        assert _count(events, "compute", name) == 12
