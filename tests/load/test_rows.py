"""Step rows: what the recorder keeps of every step, however the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import analyze
from dftracer.analyze.stages import STAGES
from dftracer.load import NoTraces, _scan, read_rows
from dftracer.load.chunk import int64s
from dftracer.load.rows import (
    BETWEEN,
    COLUMNS,
    CUT,
    LEARNS,
    RowFile,
    pack_rows,
    parse_rows,
    read_row_files,
)
from dftracer.report import document
from support.commands import dftracer, json_of
from support.process import Run, clean_environment, run_program

ANNOTATED = """
    import time
    from dftracer.python import ai, dftracer

    log = dftracer.initialize_log(None, None)

    def batches(n):
        for i in range(n):
            with ai.data.item:
                time.sleep(0.001)
            yield i

    step = 100
    for epoch in range(2):
        ai.update(epoch=epoch)
        for batch in ai.dataloader.fetch.iter(batches(6)):
            ai.update(step=step)
            with ai.compute.forward:
                time.sleep(0.003)
            with ai.compute.backward:
                time.sleep(0.002)
                with ai.comm.all_reduce:
                    time.sleep(0.001)
            with ai.compute.step:
                time.sleep(0.001)
            step += 1
        with ai.pipeline.evaluate:
            for batch in ai.dataloader.fetch.iter(batches(3)):
                with ai.compute.forward:
                    time.sleep(0.002)
        with ai.checkpoint.capture:
            time.sleep(0.004)
"""


def test_rows_of_an_annotated_program(tmp_path: Path) -> None:
    run = run_program(tmp_path, ANNOTATED)
    (file,) = read_row_files(run.trace_dir)
    (trace,) = run.trace_dir.glob("*.pfw.gz")
    assert file.path == str(trace).removesuffix(".pfw.gz") + ".rows"
    ledger = document(analyze(run.trace_dir))["ledger"]
    assert file.column("step").tolist() == list(range(100, 112))
    assert file.column("epoch").tolist() == [0] * 6 + [1] * 6
    assert file.column("start_us").tolist() == [
        file.column("start_us")[0] + round(s["start_s"] * 1e6) for s in ledger["steps"]
    ]
    assert file.column("wall_us").tolist() == [round(s["wall_s"] * 1e6) for s in ledger["steps"]]
    total = (file.stages.sum(axis=0) / 1e6).tolist()
    assert total == pytest.approx([ledger["total"][s] for s in STAGES])
    assert (file.stages.sum(axis=1) == file.column("wall_us")).all()
    assert file.column("samples").tolist() == [1] * 12
    assert (file.column("flags") & LEARNS).all()

    frame = read_rows(run.trace_dir)
    assert frame.columns == ["rank", *COLUMNS, "run", "attempt", "host"]
    assert frame["rank"].to_list() == [0] * 12
    assert frame["device_busy_us"].null_count() == 12
    assert frame["run"][0] == file.run
    whole = read_rows(run.trace_dir, between=True)
    between = whole.filter(whole["flags"] & BETWEEN != 0)
    assert between["step"].null_count() == len(between)
    # Before the first step, between the epochs, after the last: evaluation and checkpoints.
    assert len(between) == 3
    assert (between["evaluation_us"].to_numpy() > 0).tolist() == [False, True, True]
    assert (between["checkpoint_us"].to_numpy() > 0).tolist() == [False, True, True]
    # Together they are the whole time from the beginning of the process.
    ends = (whole["start_us"] + whole["wall_us"] + whole["evaluation_us"]).to_numpy()
    assert (whole["start_us"].to_numpy()[1:] - ends[:-1] < 1000).all()


def test_the_program_can_ask_for_its_latest_row(tmp_path: Path) -> None:
    ask = """
    from dftracer import _core
    assert _core.last_row() is None or _core.last_row()["step"] <= 111
    _core.flush()
    last, sums = _core.last_row(), _core.row_sums()
    assert last["step"] == 111 and last["epoch"] == 1, last
    assert sums["steps"] == 12 and sums["forward_us"] >= 36000, sums
    """
    run_program(tmp_path, ANNOTATED + ask)


def test_rows_outlive_a_kill(tmp_path: Path) -> None:
    program = """
import time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None)
for i in ai.dataloader.fetch.iter(range(1000000)):
    ai.update(step=i)
    with ai.compute.forward:
        time.sleep(0.002)
    print(i, flush=True)
"""
    env = clean_environment(
        DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(tmp_path / "t"), DFTRACER_DISABLE_IO="1"
    )
    child = subprocess.Popen([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None

    def rows() -> list[RowFile]:
        return read_row_files(tmp_path)

    # Once steps are in the file, it is never more than the writer's interval behind.
    until = time.monotonic() + 100
    while not (rows() and len(rows()[0].steps) >= 20) and time.monotonic() < until:
        child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    (file,) = rows()
    assert len(file.steps) >= 20
    assert file.column("step").tolist() == list(range(len(file.steps)))
    assert file.damaged == 0


def _made(n: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    table = np.zeros((n, len(COLUMNS)), np.int64)
    table[:, COLUMNS.index("step")] = np.arange(n)
    stages = slice(4, 4 + len(STAGES))
    table[:, stages] = rng.integers(0, 200_000, (n, len(STAGES))) * (rng.random((n, len(STAGES))) < 0.4)
    wall = COLUMNS.index("wall_us")
    table[:, wall] = table[:, stages].sum(axis=1)
    table[:, COLUMNS.index("start_us")] = 1_760_000_000_000_000 + np.concatenate(
        ([0], np.cumsum(table[:-1, wall]))
    )
    table[:, COLUMNS.index("flags")] = LEARNS
    return table


def test_what_is_packed_is_read_back() -> None:
    table = _made(1000)
    data = pack_rows(table, {"rank": 3, "run": "r"})
    file = parse_rows(data)
    assert (file.steps == table).all()
    assert (file.rank, file.run, file.damaged) == (3, "r", 0)
    assert len(data) / 1000 < 64
    odd = table.copy()
    odd[:, 5] = np.iinfo(np.int64).max
    odd[::2, COLUMNS.index("start_us")] = -(1 << 62)
    raw, _, damaged = _scan.step_rows(pack_rows(odd, {}))
    assert damaged == 0
    assert (int64s(raw).reshape(odd.shape) == odd).all()


def test_a_process_without_a_rank_is_numbered_in_its_run(tmp_path: Path) -> None:
    for run in ("older", "newer"):
        (tmp_path / f"{run}.rows").write_bytes(pack_rows(_made(3), {"run": run}))
    (tmp_path / "second.rows").write_bytes(pack_rows(_made(3), {"run": "newer"}))
    result = read_rows(tmp_path).group_by("run", "rank").len().sort("run", "rank").rows()
    assert result == [("newer", 0, 3), ("newer", 1, 3), ("older", 0, 3)]


def test_damage_costs_a_block() -> None:
    table = _made(2000)
    data = pack_rows(table, {"rank": 3})
    blocks = -(-2000 // 256)
    for cut in (1, 11, 100, len(data) // 2, len(data) - 1):
        short = parse_rows(data[:cut])
        assert (short.steps == table[: len(short.steps)]).all()
        assert len(short.steps) % 256 == 0
    rng = np.random.default_rng(1)
    for _ in range(50):
        broken = bytearray(data)
        at = int(rng.integers(0, len(data)))
        broken[at] ^= int(rng.integers(1, 256))
        file = parse_rows(bytes(broken))
        assert len(file.steps) >= 2000 - 256 or at < len(data) // blocks
        assert file.damaged or len(file.steps) == 2000
        assert np.isin(file.column("step"), table[:, 1]).all()


def test_a_directory_without_rows_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoTraces):
        read_rows(tmp_path)


def test_rows_go_aside_with_their_trace(tmp_path: Path) -> None:
    program = """
    from dftracer.python import ai, dftracer
    import sys
    log = dftracer.initialize_log(sys.argv[1], None)
    for i in ai.dataloader.fetch.iter(range(3)):
        with ai.compute.forward:
            pass
    log.finalize()
    """
    for _ in range(2):
        run_program(tmp_path, program, argv=(str(tmp_path / "here" / "t.pfw"),))
    names = sorted(os.listdir(tmp_path / "here"))
    aside = next(n for n in names if n.startswith("t-")).removesuffix(".pfw.gz").removesuffix(".rows")
    assert names == sorted([f"{aside}.pfw.gz", f"{aside}.rows", "t.pfw.gz", "t.rows"])
    first, second = (read_row_files(tmp_path / "here" / f"{stem}.rows")[0].run for stem in (aside, "t"))
    assert first is not None
    assert first in aside
    assert second != first


def test_a_report_of_a_run_whose_trace_is_gone(tmp_path: Path) -> None:
    run = run_program(tmp_path, ANNOTATED)
    (trace,) = run.trace_dir.glob("*.pfw.gz")
    whole = document(analyze(run.trace_dir))
    trace.unlink()
    left = document(analyze(run.trace_dir))
    assert left["trace"]["events"] == 0
    assert left["run"]["id"] == whole["run"]["id"]
    for key in ("stages", "rank", "total", "ranks", "source"):
        assert left["ledger"][key] == whole["ledger"][key], key
    for mine, theirs in zip(left["ledger"]["steps"], whole["ledger"]["steps"], strict=True):
        assert {**mine, "waited_for": None} == {**theirs, "waited_for": None}
    assert left["ledger"]["outside_steps"]["0"]["checkpoint"] == pytest.approx(
        whole["ledger"]["outside_steps"]["0"]["checkpoint"], rel=0.01
    )
    for line, each in whole["account"].items():
        assert left["account"][line]["seconds"] == pytest.approx(each["seconds"], rel=0.01, abs=0.001), line
    done = dftracer("report", run.trace_dir)
    assert done.returncode == 0
    assert "the traces are gone" in done.stderr
    assert "12 steps" in done.stdout or "12" in done.stdout
    refused = dftracer("report", run.trace_dir, "--cat", "POSIX")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def test_the_newest_run_may_have_only_rows_left(tmp_path: Path) -> None:
    """Beside the trace of an older one, which nobody asked for."""
    older = run_program(tmp_path, ANNOTATED)
    (kept,) = older.trace_dir.glob("*.pfw.gz")
    run_program(tmp_path, ANNOTATED)
    (gone,) = (file for file in older.trace_dir.glob("*.pfw.gz") if file != kept)
    newest, before = (read_row_files(str(file))[0].run for file in (gone, kept))
    gone.unlink()

    def answer(*words: str) -> Any:
        return json_of(*words, cwd=tmp_path)

    assert newest != before
    result = answer("report")
    assert (result["run"]["id"], result["trace"]["events"]) == (newest, 0)
    assert [other["id"] for other in result["run"]["others"]] == [before]
    assert answer("report", "traces", "--run", str(before))["trace"]["events"] > 0
    assert answer("top", "traces", "--once", "--last", "600")["run"] == newest
    assert [side["id"] for side in answer("compare", str(kept), "traces")["runs"]] == [before, newest]


def test_a_step_of_too_many_events_is_marked(tmp_path: Path) -> None:
    program = """
    from dftracer.python import ai, dftracer

    log = dftracer.initialize_log(None, None)
    for step in ai.dataloader.fetch.iter(range(3)):
        for item in range(200000 if step == 1 else 10):
            with ai.data.item:
                pass
    """
    run = run_program(tmp_path, program)
    (file,) = read_row_files(run.trace_dir)
    # Its neighbours too, if the writer took them in one go. A writer that gets no time drops events,
    # and with them the ends of steps.
    whole = len(file.column("flags")) == 3
    assert (
        file.column("flags")[1] & CUT if whole else any(f.end_record.args.get("dropped") for f in run.trace)
    )
    assert (file.stages.sum(axis=1) == file.column("wall_us")).all()
    assert (file.stages >= 0).all()


AT_THE_EDGE = """
from dftracer import _core
begun = log.get_time()

def event(cat, name, start, dur, **more):
    log.enter_event()
    log.log_event(name, cat, begun + start, dur, string_args=more)
    log.exit_event()

for step in range(4):
    event("data", "item", 1000 * step, 0)
    _core.flush()  # settles the step before
    event("dataloader", "fetch.iter", 1000 * step, 0, count=str(step + 1))
    event("dataloader", "fetch.block", 1000 * step, 1000, count=str(step + 1))
"""


def test_a_sample_made_in_no_time_when_a_step_begins_is_of_that_step(traced: Callable[..., Run]) -> None:
    (file,) = read_row_files(traced(AT_THE_EDGE).trace_dir)
    assert file.column("wall_us").tolist() == [1000] * 4
    assert file.column("samples").tolist() == [1] * 4
