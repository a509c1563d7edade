"""Traces whose truth is known: the analysis must say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.report import document
from dftracer.testing.synthetic import Process

MS = 1000


def _step(
    p: Process, i: int, t: int, wait: int, forward: int, backward: int, optimizer: int, **labels: Any
) -> int:
    body = forward + backward + optimizer
    end = p.step(i + 1, t, wait, body, step=i, **labels)
    p.span("compute", "forward", t + wait, forward, step=i)
    p.span("compute", "backward", t + wait + forward, backward, step=i)
    p.span("compute", "step", t + wait + forward + backward, optimizer, step=i)
    return end


def _ids(a: Analysis) -> set[str]:
    return {f.id for f in a.findings}


def _finding(a: Analysis, ident: str) -> Any:
    found = [f for f in a.findings.every() if f.id == ident]
    assert found, f"{ident} is not among {_ids(a)}"
    return found[0]


def test_ledger_of_a_plain_loop_is_exact_and_sums_to_the_wall_time(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(10):
        t = _step(p, i, t, 3 * MS, 10 * MS, 20 * MS, 5 * MS)
    p.write(tmp_path)
    a = analyze(tmp_path)
    total = a.ledger["total"]
    assert total["fetch_wait"] == pytest.approx(0.03)
    assert total["forward"] == pytest.approx(0.1)
    assert total["backward"] == pytest.approx(0.2)
    assert total["optimizer"] == pytest.approx(0.05)
    assert sum(total.values()) == pytest.approx(0.38)
    assert a.ledger["ranks"]["0"] == total
    assert len(a.ledger["steps"]) == 10
    for row in a.ledger["steps"]:
        assert sum(row["stages"].values()) == pytest.approx(row["wall_s"])


def test_serial_read_then_compute_has_no_overlap(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(8):
        t = _step(p, i, t, 10 * MS, 10 * MS, 0, 0)
        p.span("data", "item", t - 20 * MS, 10 * MS)
        p.io("read", t - 19 * MS, 8 * MS, f"/data/{i}", ret=4096, count=4096)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.overlap["0"]["percent"] == 0
    assert a.ledger["total"]["read"] == pytest.approx(0.064)  # storage is blamed for I/O only
    assert a.ledger["total"]["preprocess"] == pytest.approx(0.016)
    assert a.ledger["total"]["fetch_wait"] == 0
    assert _finding(a, "input_bound").evidence["share_of_step_time"] == pytest.approx(0.5)


def test_fully_overlapped_reading_counts_as_hidden(tmp_path: Path) -> None:
    main, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(8):
        t = _step(main, i, t, 0, 20 * MS, 0, 0)
        worker.span("data", "item", t - 18 * MS, 16 * MS)
        worker.io("read", t - 17 * MS, 10 * MS, f"/data/{i}", ret=1 << 20, count=1 << 20)
    main.write(tmp_path)
    worker.write(tmp_path)
    a = analyze(tmp_path)
    assert a.overlap["0"]["percent"] == 100
    assert "input_bound" not in _ids(a)
    assert a.trace_facts["ranks"] == 1
    assert a.trace_facts["processes"] == 2


def test_ranks_that_start_apart_are_no_stragglers(tmp_path: Path) -> None:
    for rank in range(2):
        p = Process(10 + rank, rank=rank, world_size=2, start=rank * 450 * MS)
        t = rank * 450 * MS
        for i in range(20):
            t = _step(p, i, t, MS, 10 * MS, 20 * MS, 2 * MS)
        p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.ledger["ranks"]["0"] == a.ledger["ranks"]["1"]
    assert "straggler_rank" not in _ids(a)


def test_nested_spans_are_not_added_up(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for i in range(5):
        t = i * 100 * MS
        p.step(i + 1, t, 10 * MS, 90 * MS)
        p.span("compute", "step", t + 10 * MS, 80 * MS)  # a hook around the whole step
        p.span("compute", "forward", t + 15 * MS, 30 * MS)
        p.span("user", "layer", t + 20 * MS, 10 * MS)
        p.span("compute", "backward", t + 50 * MS, 30 * MS)
        p.span("comm", "all_reduce", t + 70 * MS, 5 * MS)
    p.write(tmp_path)
    total = analyze(tmp_path).ledger["total"]
    assert total["forward"] == pytest.approx(0.15)
    assert total["backward"] == pytest.approx(0.125)
    assert total["comm"] == pytest.approx(0.025)
    assert total["optimizer"] == pytest.approx(0.1)
    assert total["fetch_wait"] == pytest.approx(0.05)
    assert total["unexplained"] == pytest.approx(0.05)
    assert sum(total.values()) == pytest.approx(0.5)


@pytest.mark.parametrize("chronic", [True, False])
def test_one_slow_rank_is_named_with_its_stage(tmp_path: Path, chronic: bool) -> None:
    ranks = [Process(10 + r, rank=r, world_size=4) for r in range(4)]
    t = 0
    for i in range(30):
        slow = chronic or i in (7, 19)
        for r, p in enumerate(ranks):
            forward = 10 * MS + (30 * MS if r == 2 and slow else 0)
            comm = (0 if r == 2 or not slow else 30 * MS) + MS  # the others wait in the all-reduce
            p.step(i + 1, t, MS, forward + comm)
            p.span("compute", "forward", t + MS, forward)
            p.span("comm", "all_reduce", t + MS + forward, comm)
        t += 12 * MS + (30 * MS if slow else 0)
    for p in ranks:
        p.write(tmp_path)
    found = _finding(analyze(tmp_path), "straggler_rank")
    assert found.evidence["rank"] == 2
    assert found.evidence["stage"] == "forward"
    assert found.evidence["kind"] == ("chronic" if chronic else "one-off")
    assert found.seconds == pytest.approx(0.87 if chronic else 0.06)  # of the steady steps


def test_one_slow_worker_is_named(tmp_path: Path) -> None:
    main = Process(10, rank=0)
    workers = [Process(11 + w, ppid=10) for w in range(3)]
    t = 0
    for i in range(30):
        main.step(i + 1, t, 5 * MS, 10 * MS)
        main.span("compute", "forward", t + 5 * MS, 10 * MS)
        w = i % 3
        workers[w].span("data", "item", t, (24 if w == 1 else 8) * MS)
        t += 15 * MS
    for p in (main, *workers):
        p.write(tmp_path)
    a = analyze(tmp_path)
    found = _finding(a, "straggler_worker")
    assert found.evidence["pid"] == 12
    assert found.evidence["mean_item_s"] == pytest.approx(0.024)
    assert found.evidence["kind"] == "chronic"


def test_one_slow_file_is_named(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(40):
        slow = i % 10 == 3
        took = (40 if slow else 2) * MS
        p.step(i + 1, t, took, 10 * MS)
        p.span("data", "item", t, took)
        p.io("open", t, 100, f"/data/part{i % 10}.npy", ret=3)
        p.io("read", t + 100, took - 200, f"/data/part{i % 10}.npy", ret=1 << 20, count=1 << 20)
        p.io("close", t + took - 100, 50, f"/data/part{i % 10}.npy", ret=0)
        p.span("compute", "forward", t + took, 10 * MS)
        t += took + 10 * MS
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert _finding(a, "slow_file").evidence["path"] == "/data/part3.npy"
    assert _finding(a, "input_bound").evidence["stage"] == "read"
    assert a.file_table is not None
    top = a.file_table.row(0, named=True)
    assert (top["path"], top["opens"], top["reads"], top["read_bytes"]) == ("/data/part3.npy", 4, 4, 4 << 20)


def test_a_checkpoint_stall_in_and_between_steps_is_counted(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        t = _step(p, i, t, 0, 10 * MS, 0, 0)
        if i == 9:
            p.span("checkpoint", "capture", t, 500 * MS)
            p.io("write", t + MS, 400 * MS, "/ckpt/a.pt", ret=1 << 24, count=1 << 24)
            t += 500 * MS
    start = t
    p.step(21, start, 0, 300 * MS)
    p.span("checkpoint", "capture", start, 290 * MS)
    p.io("write", start + MS, 200 * MS, "/ckpt/b.pt", ret=1 << 24, count=1 << 24)
    p.write(tmp_path)
    a = analyze(tmp_path)
    found = _finding(a, "checkpoint_stall")
    assert found.seconds == pytest.approx(0.79)
    assert found.evidence["in_steps_s"] == pytest.approx(0.29)
    assert found.evidence["between_steps_s"] == pytest.approx(0.5)
    assert a.ledger["total"]["checkpoint"] == pytest.approx(0.29)
    assert a.ledger["outside_steps"]["0"]["checkpoint"] == pytest.approx(0.5)
    assert found.severity == "high"


def test_workers_explain_the_wait_and_too_few_are_counted(tmp_path: Path) -> None:
    main = Process(10, rank=0)
    worker = Process(11, ppid=10)
    t = 0
    for i in range(40):  # one worker needs 30 ms a batch, the model 10 ms
        main.step(i + 1, t, 20 * MS, 10 * MS)
        main.span("compute", "forward", t + 20 * MS, 10 * MS)
        worker.span("data", "item", t, 10 * MS)
        worker.span("data", "preprocess", t + 10 * MS, 18 * MS)
        worker.span("data", "preprocess.collate", t + 28 * MS, 2 * MS)
        t += 30 * MS
    main.write(tmp_path)
    worker.write(tmp_path)
    a = analyze(tmp_path)
    explained = a.ledger["wait_explained"]["0"]
    assert explained["preprocess"] == pytest.approx(0.8)
    assert explained["idle"] == pytest.approx(0)
    assert _finding(a, "too_few_workers").evidence["workers_needed"] == 3
    assert "input-bound" in a.verdict
    assert a.ledger["total"]["fetch_wait"] == pytest.approx(0.8)


def test_communication_on_another_thread_is_exposed_only_where_nothing_runs(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for i in range(10):
        t = i * 30 * MS
        p.step(i + 1, t, 0, 30 * MS)
        p.span("compute", "backward", t, 20 * MS)
        p.span("comm", "all_reduce", t + 10 * MS, 15 * MS, tid=77)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.ledger["total"]["comm"] == pytest.approx(0.05)
    assert a.ledger["total"]["unexplained"] == pytest.approx(0.05)
    assert _finding(a, "exposed_comm").evidence["hidden_s"] == pytest.approx(0.1)


def test_small_reads_and_opens_are_found_where_they_cost(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(200):
        p.step(i + 1, t, 5 * MS, MS)
        p.span("data", "item", t, 5 * MS)
        p.io("open", t, 2 * MS, f"/d/{i % 50}", ret=3)
        p.io("read", t + 2 * MS, 2 * MS, f"/d/{i % 50}", ret=512, count=512)
        p.span("compute", "forward", t + 5 * MS, MS)
        t += 6 * MS
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert _finding(a, "small_reads").evidence["small_reads"] == 200
    assert _finding(a, "many_opens").evidence["opens_per_item"] == 1
    assert _finding(a, "rereads").evidence["files"] == 50


def test_a_cold_first_epoch_and_a_drift_are_seen(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(90):
        epoch = i // 30
        wait = (20 if epoch == 0 else 2) * MS
        p.io("read", t, wait, f"/data/{i % 30}", ret=1 << 20, count=1 << 20)
        t = _step(p, i, t, wait, 10 * MS, 0, 0, epoch=epoch)
    p.spans.sort(key=lambda s: s.cat == "POSIX")
    p.write(tmp_path, "cold")
    a = analyze(tmp_path / "cold.pfw.gz")
    assert _finding(a, "cold_first_epoch").seconds == pytest.approx(0.522)
    q = Process(11, rank=0)
    t = 0
    for i in range(80):
        t = _step(q, i, t, 0, 10 * MS + (i // 40) * 5 * MS, 0, 0)
    q.write(tmp_path, "drift")
    found = _finding(analyze(tmp_path / "drift.pfw.gz"), "step_drift")
    assert found.evidence["change"] == pytest.approx(0.5)
    assert found.evidence["change_point_step_index"] == 40
    assert found.evidence["stage"] == "forward"


def test_profiler_steps_and_step_ends_serve_where_no_loop_is_annotated(tmp_path: Path) -> None:
    p = Process(10)
    for i in range(4):
        p.span("PP", f"ProfilerStep#{i + 7}", i * 10 * MS, 10 * MS)
        p.span("compute", "forward", i * 10 * MS, 4 * MS)
    p.write(tmp_path, "profiler")
    led = analyze(tmp_path / "profiler.pfw.gz").ledger
    assert (led["source"], [s["step"] for s in led["steps"]]) == ("profiler", [7, 8, 9, 10])
    q = Process(11)
    for i in range(5):
        q.span("compute", "forward", i * 10 * MS, 4 * MS)
        q.span("compute", "step", i * 10 * MS + 8 * MS, 2 * MS)
    q.write(tmp_path, "ends")
    led = analyze(tmp_path / "ends.pfw.gz").ledger
    assert led["source"] == "compute.step"
    assert led["total"]["forward"] == pytest.approx(0.016)
    assert led["total"]["optimizer"] == pytest.approx(0.008)


def test_too_little_evidence_is_said_and_not_guessed(tmp_path: Path) -> None:
    p = Process(10, end=None)
    p.span("user", "f", 0, 10)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert _ids(a) == {"incomplete_trace", "not_enough_evidence"}
    assert a.verdict == "No training step can be seen in this trace."
    assert a.trace_facts["processes_without_end"] == [10]


def test_names_have_exact_percentiles_and_self_time(tmp_path: Path) -> None:
    p = Process(10)
    durations = [1, 1, 2, 2, 2, 3, 50, 600, 7000, 80000]
    t = 0
    for d in durations:
        p.span("user", "outer", t, d + 10)
        p.span("user", "inner", t + 5, d)
        t += d + 20
    p.write(tmp_path)
    rows = {r["name"]: r for r in analyze(tmp_path).name_table.iter_rows(named=True)}
    inner, outer = rows["inner"], rows["outer"]
    assert (inner["count"], inner["p50_us"], inner["p90_us"], inner["p99_us"]) == (10, 2, 7000, 80000)
    assert (inner["min_us"], inner["max_us"]) == (1, 80000)
    assert outer["self_s"] == pytest.approx(100e-6)
    assert outer["total_s"] == pytest.approx((sum(durations) + 100) / 1e6)


def test_bytes_are_what_calls_returned_and_items_count_with_their_size(tmp_path: Path) -> None:
    p = Process(10)
    p.io("read", 0, 5, "/a", ret=100, count=4096)
    p.io("read", 10, 5, "/a", ret=-1, count=4096, errno=5)
    p.io("pread", 20, 5, "/a", count=50, ret=50, offset=10)
    p.io("fread", 30, 5, "/b", cat="STDIO", size=8, count=10, ret=4)
    p.io("fwrite", 40, 5, "/b", cat="STDIO", size=1, count=10, ret=10)
    p.io("stat", 50, 5, "/b", ret=0)
    p.write(tmp_path)
    files = analyze(tmp_path).file_table
    assert files is not None
    rows = {r["path"]: (r["read_bytes"], r["write_bytes"], r["ops"]) for r in files.iter_rows(named=True)}
    assert rows == {"/a": (150, 0, 3), "/b": (32, 10, 3)}


def test_starting_and_awaiting_processes_is_no_reading(tmp_path: Path) -> None:
    p = Process(10)
    for i in range(3):
        p.step(i + 1, i * 1000, 500, 500)
        p.span("POSIX", "fork", i * 1000 + 10, 100, ret=5)
        p.span("POSIX", "waitpid", i * 1000 + 600, 100, ret=5)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.file_table is None
    assert a.ledger["total"]["read"] == 0
    assert a.ledger["total"]["fetch_wait"] == pytest.approx(0.0015)
    assert a.ledger["total"]["other"] == pytest.approx(0.0003)


def test_steps_whose_batch_was_in_hand_are_steps_too(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(4):
        t = _step(p, i, t, 3 * MS, 10 * MS, 20 * MS, 5 * MS, auto=1)
    for i in range(4, 10):  # itertools.cycle gives its batches again without asking the loader
        p.span("dataloader", "fetch.block", t, 35 * MS, step=i, auto=1)
        p.span("compute", "forward", t, 10 * MS, step=i)
        p.span("compute", "backward", t + 10 * MS, 20 * MS, step=i)
        p.span("compute", "step", t + 30 * MS, 5 * MS, step=i)
        t += 35 * MS
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert [row["step"] for row in a.ledger["steps"]] == list(range(10))
    assert a.ledger["total"]["fetch_wait"] == pytest.approx(0.012)
    assert a.ledger["total"]["forward"] == pytest.approx(0.1)
    assert a.ledger["outside_steps"]["0"]["forward"] == 0


def test_a_step_that_failed_is_no_evaluation(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(8):
        t = _step(p, i, t, 3 * MS, 10 * MS, 20 * MS, 5 * MS, auto=1)
    p.span("dataloader", "fetch.iter", t, 3 * MS, step=8, auto=1)
    p.span("compute", "forward", t + 3 * MS, 9 * MS, step=8, error="ValueError", auto=1)
    p.write(tmp_path)
    result = document(analyze(tmp_path))
    assert result["evaluation"]["seconds"] == 0
    assert result["outside"]["seconds"] == pytest.approx(0.012)


def test_too_few_steps_ask_for_more_of_them(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    _step(p, 0, 0, 3 * MS, 10 * MS, 20 * MS, 5 * MS, auto=1)
    p.write(tmp_path)
    result = document(analyze(tmp_path))
    assert result["head"][0] == "Only 1 step was recorded: too few to judge the run."
    assert result["head"][2] == "Let it run for more steps."
