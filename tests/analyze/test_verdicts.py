"""Traces whose truth is known: what is concluded from them must be it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.report import document, head
from dftracer.testing.synthetic import Process

MS = 1000
S = 1_000_000

# What a step is made of, in order: category, name, duration.
Parts = Iterable[tuple[str, str, int]]
FORWARD, BACKWARD, UPDATE = ("compute", "forward"), ("compute", "backward"), ("compute", "step")


def _step(p: Process, count: int, start: int, wait: int, parts: Parts, **labels: Any) -> int:
    parts = [*parts]
    end = p.step(count, start, wait, sum(d for _, _, d in parts), **labels)
    at = start + wait
    for cat, name, duration in parts:
        p.span(cat, name, at, duration)
        at += duration
    return end


def _plain(forward: int, backward: int, update: int) -> list[tuple[str, str, int]]:
    return [(*FORWARD, forward * MS), (*BACKWARD, backward * MS), (*UPDATE, update * MS)]


def _run(tmp_path: Path, steps: int, wait: int, parts: Parts) -> Analysis:
    p = Process(10, rank=0)
    t = 0
    for i in range(steps):
        t = _step(p, i + 1, t, wait, parts, step=i)
    p.write(tmp_path)
    return _checked(analyze(tmp_path))


def _checked(a: Analysis) -> Analysis:
    """What holds for every report: the pieces add up, the head has three lines without odd words."""
    if a.judged is not None:
        assert sum(row["seconds"] for row in a.phases.values()) == pytest.approx(a.run_s, abs=1e-5)
        assert all(row["seconds"] >= 0 for row in a.phases.values())
    for line in head(a):
        assert line.endswith(".")
        assert "1 steps" not in line
        assert "0.00 s" not in line
    return a


def _bound(a: Analysis) -> tuple[str, str | None]:
    assert a.bound is not None
    return a.bound.part.id, a.bound.part.stage


def _finding(a: Analysis, ident: str) -> Any:
    found = [f for f in a.findings.every() if f.id == ident]
    assert found, f"{ident} is not among {[f.id for f in a.findings]}"
    return found[0]


def _ids(a: Analysis) -> list[str]:
    return [f.id for f in a.findings]


def test_transfer_is_named(tmp_path: Path) -> None:
    a = _run(tmp_path, 20, 0, [("device", "transfer", 68 * MS), *_plain(20, 10, 2)])
    assert _bound(a) == ("transfer", "transfer")
    assert a.bound is not None
    assert a.bound.part.share == pytest.approx(0.68)
    assert "transfer-bound: 68 %" in a.verdict
    assert _finding(a, "transfer_bound").severity == "high"


def test_a_stage_of_the_user_is_named_by_its_name(tmp_path: Path) -> None:
    a = _run(tmp_path, 20, 0, [("user", "tokenize", 64 * MS), *_plain(20, 10, 6)])
    assert _bound(a) == ("other", "tokenize")
    assert "tokenize: 64 %" in a.verdict


def test_the_optimizer_is_named(tmp_path: Path) -> None:
    a = _run(tmp_path, 20, 0, _plain(15, 10, 75))
    assert _bound(a) == ("compute", "optimizer")
    assert "optimizer is 75 %" in a.verdict
    b = tmp_path / "b"
    b.mkdir()
    a = _run(b, 20, 20 * MS, _plain(3, 2, 75))
    assert "optimizer-bound: the optimizer takes 75 %" in a.verdict
    assert "fused" in head(a)[2]


def test_compute_alone_is_no_bottleneck_and_its_largest_part_is_told(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 4 * MS, _plain(81, 10, 5))
    assert a.verdict == "No bottleneck outside compute: forward is 81 % of the steady time."
    assert [f for f in a.findings if f.severity != "info"] == []


def test_what_is_between_ten_and_forty_percent_stands_beside_the_largest(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 13 * MS, _plain(53, 20, 14))
    assert a.verdict == "Forward is the largest part (53 %); 13 % is spent waiting for data."
    assert _bound(a) == ("compute", "forward")


def test_the_largest_line_wins_and_compute_is_one_line(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 44 * MS, _plain(18, 18, 18))
    assert _bound(a) == ("compute", "forward")
    assert a.verdict == "Compute is the largest part (55 %); 45 % is spent waiting for data."
    assert "ai.data.item" in head(a)[2]  # the loader can be helped
    b = tmp_path / "b"
    b.mkdir()
    a = _run(b, 30, 60 * MS, _plain(18, 18, 18))
    assert _bound(a) == ("input", None)
    assert "input-bound: 53 %" in a.verdict


def test_what_an_unannotated_loader_did_is_not_guessed(tmp_path: Path) -> None:
    main, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(30):
        worker.io("read", t, 2 * MS, f"/data/{i}", ret=4096, count=4096)
        t = _step(main, i + 1, t, 47 * MS, _plain(20, 15, 3))
    main.write(tmp_path)
    worker.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", None)
    assert "55 % of the steady time is spent waiting for data; what the loader did" in a.verdict
    assert "idle" not in " ".join(head(a))
    assert "annotate" in head(a)[2].lower()
    assert a.ledger["wait_explained"]["0"]["unseen"] == pytest.approx(45 * 30 / 1e3)


def test_without_workers_nothing_is_said_about_them(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 60 * MS, _plain(20, 15, 5))
    assert _bound(a) == ("input", None)
    assert "worker" not in " ".join(head(a))


def test_idle_workers_are_seen_between_their_items(tmp_path: Path) -> None:
    main, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(30):
        worker.span("data", "item", t, 4 * MS)
        worker.span("data", "collate", t + 4 * MS, 1 * MS)
        t = _step(main, i + 1, t, 50 * MS, _plain(30, 15, 5))
    main.write(tmp_path)
    worker.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", "idle")
    assert "mostly idle workers" in a.verdict


def test_workers_are_not_called_idle_where_collating_cannot_be_seen(tmp_path: Path) -> None:
    """Items alone, as DLIO annotates them: a worker between two items may be collating."""
    main, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(30):
        worker.span("data", "item", t, 4 * MS)
        t = _step(main, i + 1, t, 50 * MS, _plain(30, 15, 5))
    main.write(tmp_path)
    worker.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", None)
    assert "idle" not in " ".join(head(a))
    assert "collate_fn" in " ".join(head(a))


def test_storage_is_blamed_for_io_only_and_two_are_named_without_a_majority(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        p.span("data", "item", t, 45 * MS)
        p.io("read", t, 20 * MS, f"/data/{i}", ret=1 << 20, count=1 << 20)
        t = _step(p, i + 1, t, 60 * MS, _plain(20, 15, 5))
    p.spans.sort(key=lambda s: (s.cat == "POSIX", s.cat == "data"))
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", "preprocess")
    assert "preprocessing 42 % and storage reads 33 % of it" in a.verdict


def _ddp(tmp_path: Path, ranks: int, forward: Any, wait: Any, comm: bool, steps: int = 30) -> Analysis:
    """Ranks that meet at the end of the backward pass; `forward` and `wait` give us by rank and step."""
    processes = [Process(10 + r, rank=r, world_size=ranks) for r in range(ranks)]
    t = 0
    for i in range(steps):
        own = [wait(r, i) + forward(r, i) for r in range(ranks)]
        for r, p in enumerate(processes):
            late = max(own) - own[r]
            parts: list[tuple[str, str, int]] = [(*FORWARD, forward(r, i))]
            if comm:
                parts += [(*BACKWARD, 10 * MS), ("comm", "all_reduce", 2 * MS + late)]
            else:
                parts += [(*BACKWARD, 12 * MS + late)]
            _step(p, i + 1, t, wait(r, i), [*parts, (*UPDATE, 2 * MS)], step=i)
        t += max(own) + 14 * MS
    for p in processes:
        p.write(tmp_path)
    return _checked(analyze(tmp_path))


@pytest.mark.parametrize("comm", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_with_a_slow_forward_is_the_straggler(tmp_path: Path, ranks: int, comm: bool) -> None:
    a = _ddp(tmp_path, ranks, lambda r, i: (200 if r == 1 else 50) * MS, lambda r, i: MS, comm)
    assert _bound(a) == ("straggler", "forward")
    assert a.bound is not None
    assert a.bound.part.rank == 1
    assert head(a)[1].startswith("Rank 1 spends 0.20 s in forward, the median rank 50 ms, chronically")
    rows = {r["rank"]: r for r in document(a)["ranks"]}
    assert rows[0]["waiting_for_peers_s"] == pytest.approx(4.5)
    assert rows[1]["waiting_for_peers_s"] == 0
    assert rows[1]["relative"]["forward"] == pytest.approx(0.25)
    assert rows[0]["relative"]["forward"] == 1
    assert rows[1]["relative"]["backward"] == rows[0]["relative"]["backward"] == 1
    assert rows[1]["individual"]["forward"] == 1
    assert "exposed_comm" not in _ids(a)
    found = _finding(a, "straggler_rank")
    assert found.evidence["kind"] == "chronic"
    assert found.evidence["lost_by_all_s"] == pytest.approx(4.35 * (ranks - 1))


@pytest.mark.parametrize("collectives", [1, 3])
def test_a_rank_with_a_slow_backward_is_seen_where_collectives_are(tmp_path: Path, collectives: int) -> None:
    """The ranks spend the same time in backward and communication together: only the collectives tell."""
    for r in range(2):
        p = Process(10 + r, rank=r, world_size=2)
        t = 0
        for i in range(30):
            late = 0 if r == 1 else 80 * MS
            reduces = [("comm", "all_reduce", 2 * MS + (late if k == 0 else 0)) for k in range(collectives)]
            parts = [(*FORWARD, 20 * MS), (*BACKWARD, 100 * MS - late)]
            for reduce in reduces:
                parts += [reduce, (*UPDATE, 2 * MS)]
            t = _step(p, i + 1, t, MS, parts, step=i)
        p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("straggler", "backward")
    assert a.bound is not None
    assert a.bound.part.rank == 1
    assert head(a)[1].startswith("Rank 1 spends 0.10 s in backward, the median rank 20 ms, chronically")
    assert {r["rank"]: r["waiting_for_peers_s"] for r in document(a)["ranks"]} == {0: 2.4, 1: 0}
    assert "exposed_comm" not in _ids(a)


def test_ranks_that_wait_for_each_other_in_turns_both_wait(tmp_path: Path) -> None:
    """One comes late to the first collective of each step, the other to the second."""
    for r in range(2):
        p = Process(10 + r, rank=r, world_size=2)
        t = 0
        for i in range(30):
            parts = [
                (*FORWARD, 20 * MS),
                (*BACKWARD, (100 if r == 1 else 20) * MS),
                ("comm", "all_reduce", (2 if r == 1 else 82) * MS),
                (*UPDATE, (2 if r == 1 else 52) * MS),
                ("comm", "all_gather", (52 if r == 1 else 2) * MS),
            ]
            t = _step(p, i + 1, t, MS, parts, step=i)
        p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert {r["rank"]: r["waiting_for_peers_s"] for r in document(a)["ranks"]} == {0: 2.4, 1: 1.5}
    assert _bound(a) == ("compute", "backward")


def test_a_rank_that_is_late_in_no_stage_is_not_blamed_on_one(tmp_path: Path) -> None:
    for r in range(2):
        p = Process(10 + r, rank=r, world_size=2)
        t = 0
        for i in range(30):
            late = 60 * MS if r == 1 else 0
            forward = 5_000 + 50 * r
            body = t + MS
            p.span(*FORWARD, body, forward)
            p.span(*BACKWARD, body + forward, 4 * MS)
            at = body + forward + 4 * MS + late
            p.span("comm", "all_reduce", at, body + 80 * MS - at)
            t = p.step(i + 1, t, MS, 80 * MS, step=i)
        p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("straggler", None)
    assert "(no annotated stage)" in a.verdict
    assert head(a)[1].startswith("Rank 1 spends 60 ms in no annotated stage, the median rank under 0.01 ms")


def test_a_rank_with_slow_data_is_the_straggler_by_its_loader(tmp_path: Path) -> None:
    a = _ddp(tmp_path, 2, lambda r, i: 30 * MS, lambda r, i: (90 if r == 1 else 2) * MS, False)
    assert _bound(a) == ("straggler", "fetch_wait")
    assert "waiting for data" in a.verdict
    assert "thermal" not in str(document(a)["findings"])


def test_a_small_straggler_is_found_but_no_headline(tmp_path: Path) -> None:
    a = _ddp(tmp_path, 2, lambda r, i: (70 if r == 1 else 50) * MS, lambda r, i: MS, True)
    assert _bound(a) == ("compute", "forward")
    assert _finding(a, "straggler_rank").evidence["rank"] == 1


def test_noise_is_no_straggler(tmp_path: Path) -> None:
    jitter = [3, 0, 5, 1, 0, 4, 2, 0, 6, 1]
    a = _ddp(
        tmp_path,
        2,
        lambda r, i: 50 * MS + jitter[(i * 7 + r * 3) % 10] * MS,
        lambda r, i: MS,
        True,
        steps=60,
    )
    assert "straggler_rank" not in _ids(a)
    assert [f for f in a.findings if f.severity != "info"] == []


def test_every_twentieth_step_is_slow(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(200):
        slow = 90 * MS if i % 20 == 19 else 0
        t = _step(p, i + 1, t, 0, [*_plain(5, 4, 1), ("user", "log", slow or 1)], step=i)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    found = _finding(a, "slow_steps")
    assert (found.evidence["every"], found.evidence["slow_steps"]) == (20, 10)
    assert found.percent == pytest.approx(31, abs=1)
    assert "every 20th step takes 10 times as long" in a.verdict
    assert a.findings[0].id == "user_stage"  # the cause; the slow steps are what it shows in
    assert [s.id for s in a.findings[0].symptoms] == ["slow_steps"]


def test_slow_steps_for_a_while_are_not_every_third(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(60):
        t = _step(p, i + 1, t, MS, _plain(100 if i in (9, 12, 15) else 10, 8, 2), step=i)
    p.write(tmp_path)
    found = _finding(_checked(analyze(tmp_path)), "slow_steps")
    assert found.evidence["every"] is None
    assert found.title.startswith("3 of 59 steps take 5 times as long")


def test_a_few_slow_items_come_before_the_wait_they_make(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(400):
        item = (500 if i % 100 == 50 else 1) * MS
        p.span("data", "item", t, item)
        t = _step(p, i + 1, t, item, _plain(2, 1, 1))
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", "preprocess")
    assert a.findings[0].id == "slow_items"
    assert "slow_items" in _ids(a)
    assert "storage" not in " ".join(head(a))
    assert head(a)[1].startswith("4 of 400 items are slow")


def test_start_up_is_the_headline_of_a_short_run_only(tmp_path: Path) -> None:
    for steps, name in ((12, "short"), (100, "long")):
        p = Process(10, rank=0)
        t = 0
        for i in range(steps):
            t = _step(p, i + 1, t, (3000 if i == 0 else 1) * MS, _plain(10, 8, 2), step=i)
        p.write(tmp_path, name)
    short = _checked(analyze(tmp_path / "short.pfw.gz"))
    assert _bound(short) == ("startup", "fetch_wait")
    assert short.phases["startup"]["seconds"] == pytest.approx(3.0, abs=0.01)
    assert "prefetch" not in " ".join(head(short))
    long = _checked(analyze(tmp_path / "long.pfw.gz"))
    assert _bound(long) == ("compute", "forward")
    assert _finding(long, "first_step").severity == "info"


def test_a_long_start_up_of_a_long_run_is_told_beside_the_headline(tmp_path: Path) -> None:
    for where in ("before", "first"):
        p = Process(10, rank=0)
        p.span("pipeline", "train", 0, 6 * S + 20 * MS)
        t = 4 * S if where == "before" else 0
        for i in range(100):
            first = 4 * S if i == 0 and where == "first" else 0
            t = _step(p, i + 1, t, 0, [(*FORWARD, 12 * MS + first), (*BACKWARD, 8 * MS)], step=i)
        p.write(tmp_path, where)
        a = _checked(analyze(tmp_path / f"{where}.pfw.gz"))
        assert _bound(a) == ("compute", "forward")
        steady = "No bottleneck outside compute: forward is 60 % of the steady time"
        assert a.verdict == f"{steady}; start-up takes 66 % of the run."
        found = _finding(a, "before_first_step" if where == "before" else "first_step")
        assert found.severity == "info"
        assert found.seconds == pytest.approx(4.0)
        assert "mostly" not in found.title or where == "first"
    assert "first_step" not in _ids(analyze(tmp_path / "before.pfw.gz"))
    assert _ids(analyze(tmp_path / "first.pfw.gz")) == ["first_step"]


def test_what_passes_before_the_first_step_is_named(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.span("checkpoint", "restart", 0, 3 * S)
    t = 4 * S
    for i in range(100):
        t = _step(p, i + 1, t, MS, _plain(10, 8, 1), step=i)
    p.write(tmp_path)
    found = _finding(_checked(analyze(tmp_path)), "before_first_step")
    assert found.title == "4.00 s of the run (67 %) is spent before the first step (mostly checkpointing)."
    assert found.evidence["stage"] == "checkpoint"


def test_steps_that_are_slow_by_checkpoints_are_helped_as_checkpoints(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(60):
        more = [("checkpoint", "capture", 300 * MS)] if i % 10 == 9 else []
        t = _step(p, i + 1, t, MS, [*_plain(10, 8, 1), *more], step=i)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert "async_save" in _finding(a, "slow_steps").advice
    assert "async_save" in head(a)[2]


def _epochs(tmp_path: Path, first_wait: int, between: int = 0) -> Analysis:
    """Three epochs of ten steps that wait 80 ms; the first step of an epoch waits longer."""
    p = Process(10, rank=0)
    t = 0
    for epoch in range(3):
        for i in range(10):
            wait = first_wait if i == 0 else 80 * MS
            t = _step(p, i + 1, t, wait, _plain(10, 8, 2), epoch=epoch, step=10 * epoch + i)
        t += between
    p.write(tmp_path)
    return _checked(analyze(tmp_path))


def test_what_is_no_finding_of_its_own_is_left_in_the_others(tmp_path: Path) -> None:
    # Loaders that are one batch ahead: an epoch's first step waits for two.
    a = _epochs(tmp_path, 160 * MS)
    assert "epoch_restarts" not in _ids(a)
    assert "input-bound: 81 % of the steady time" in head(a)[0]
    assert _finding(a, "input_bound").title.startswith("81 % of the steady time is spent waiting for data")


def test_a_share_that_leaves_something_out_says_so(tmp_path: Path) -> None:
    a = _epochs(tmp_path, 600 * MS)
    assert "epoch_restarts" in _ids(a)
    assert "input-bound: 85 % of the steady time" in head(a)[0]
    title = _finding(a, "input_bound").title
    assert title.startswith("59 % of the steady time is spent waiting for data")
    assert title.endswith(", besides the first steps of epochs.")


def test_time_per_step_is_that_of_the_shares(tmp_path: Path) -> None:
    a = _epochs(tmp_path, 80 * MS, between=1000 * MS)
    seconds = a.judged.account.whole_s / a.judged.account.steps if a.judged else 0.0
    words = f"{a.bound.part.seconds / a.bound.steps * 1000:.3g} ms" if a.bound else ""
    assert seconds == pytest.approx(0.1 + 2 / 29, rel=0.01)
    assert head(a)[1].startswith(f"{words} of the 0.17 s from step to step"), head(a)


def test_no_compute_is_not_a_compute_of_no_time(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = p.step(i + 1, t, 10 * MS, 40 * MS)
    p.write(tmp_path)
    assert head(_checked(analyze(tmp_path)))[1] == "40 ms of each 50 ms step; no compute was seen."


def test_advice_on_storage_knows_whether_there_are_workers(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        p.span("data", "item", t, 20 * MS)
        p.io("read", t, 20 * MS, f"/data/{i}", ret=1 << 20, count=1 << 20)
        t = _step(p, i + 1, t, 20 * MS, _plain(20, 15, 5))
    p.spans.sort(key=lambda s: (s.cat == "POSIX", s.cat == "data"))
    p.write(tmp_path)
    found = _finding(_checked(analyze(tmp_path)), "input_bound")
    assert "copy of the data, or loader workers." in found.advice


def test_times_below_a_millisecond_are_told(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 1, [(*FORWARD, 250), (*BACKWARD, 120), (*UPDATE, 60)])
    result = "Of each 0.431 ms step: forward 0.25 ms, backward 0.12 ms, optimizer 0.06 ms"
    assert head(a)[1] == f"{result}; waiting for data under 0.01 ms."


def test_a_short_checkpoint_takes_more_than_no_time(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = _step(p, i + 1, t, 1, [(*FORWARD, 60), (*BACKWARD, 39)], step=i)
    p.span("checkpoint", "capture", t, 4 * MS)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.verdict == "The training is checkpoint-bound: 4 ms, 57 % of the run."
    assert _finding(a, "checkpoint_stall").title.startswith("Training stops for 4 ms ")


def test_checkpoints_between_steps_are_told_as_a_share_of_the_run(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = _step(p, i + 1, t, 0, _plain(60, 30, 10), step=i)
    p.span("checkpoint", "capture", t, S)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.verdict == "Forward is the largest part (60 %); checkpointing takes 25 % of the run."


def test_restarts_in_each_epoch_are_start_up(tmp_path: Path) -> None:
    for labelled in (True, False):
        p = Process(10, rank=0)
        t = 0
        for e in range(4):
            for i in range(10):
                labels = {"epoch": e, "step": 10 * e + i} if labelled else {}
                t = _step(p, i + 1, t, (500 if i == 0 else 1) * MS, _plain(10, 8, 2), **labels)
        p.write(tmp_path, f"labels-{labelled}")
        a = _checked(analyze(tmp_path / f"labels-{labelled}.pfw.gz"))
        assert _bound(a) == ("startup", "fetch_wait")
        assert a.phases["startup"]["seconds"] == pytest.approx(4 * 0.499, abs=0.01)
        assert a.phases["startup"]["restarts_s"] == pytest.approx(3 * 0.499, abs=0.01)
        assert "persistent_workers" in head(a)[2]
        assert "idle" not in " ".join(head(a))


def test_start_up_that_hardly_recurs_is_no_headline_of_a_long_run(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.span("pipeline", "train", 0, 3 * S)
    t = 2 * S
    for e in range(2):
        for i in range(20):
            t = _step(p, i + 1, t, (30 if i == 0 else 1) * MS, _plain(10, 8, 1), epoch=e)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a)[0] != "startup"
    found = _finding(a, "epoch_restarts")
    assert found.seconds == pytest.approx(2 * 0.029)
    assert _finding(a, "before_first_step").seconds == pytest.approx(2.0)


def test_restarts_without_workers_are_not_blamed_on_workers(tmp_path: Path) -> None:
    """Items are made in the main thread; each epoch begins with a slow one."""
    p = Process(10, rank=0)
    t = 0
    for e in range(4):
        for i in range(10):
            item = (500 if i == 0 else 1) * MS
            p.span("data", "item", t, item)
            t = _step(p, i + 1, t, item, _plain(10, 8, 2), epoch=e, step=10 * e + i)
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("startup", "preprocess")
    assert "worker" not in " ".join(head(a))
    assert "for each epoch's first batch" in head(a)[2]
    assert not [f for f in a.findings if "worker" in f.advice + f.title]


def test_restarts_in_compute_are_not_blamed_on_the_loader(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for e in range(4):
        for i in range(10):
            t = _step(p, i + 1, t, MS, _plain(500 if i == 0 else 10, 8, 2), epoch=e, step=10 * e + i)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("startup", "forward")
    assert "worker" not in " ".join(head(a))
    assert "only in the first step of an epoch (forward)" in head(a)[2]


def test_a_first_step_without_workers_is_not_blamed_on_workers(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(12):
        item = (3000 if i == 0 else 1) * MS
        p.span("data", "item", t, item)
        t = _step(p, i + 1, t, item, _plain(10, 8, 2), step=i)
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("startup", "preprocess")
    assert not [f for f in a.findings if "worker" in f.advice + f.title]
    assert "worker" not in " ".join(head(a))


@pytest.mark.parametrize("kind", ["fetch.iter", "pipeline", "plain", "nested", "plain in a step"])
def test_evaluation_is_not_training(tmp_path: Path, kind: str) -> None:
    p = Process(10, rank=0)
    t, evaluated = 0, 0
    for e in range(3):
        for i in range(20):
            last = i == 19
            inside = 100 * MS if last and kind in ("nested", "plain in a step") else 0
            start = t
            t = _step(
                p, i + 1, t, MS, [*_plain(10, 8, 1), *([("user", "rest", inside)] if inside else [])], epoch=e
            )
            if inside:
                evaluated += inside
                p.spans.pop()  # the place of it only
                at = start + 20 * MS
                for k in range(10):
                    if kind == "nested":
                        p.step(k + 1, at + 10 * k * MS, 2 * MS, 8 * MS)
                        p.span(*FORWARD, at + 10 * k * MS + 2 * MS, 8 * MS)
                    else:
                        p.span(*FORWARD, at + 10 * k * MS, (10 if k == 9 else 8) * MS)
        if kind in ("fetch.iter", "pipeline", "plain"):
            if kind == "pipeline":
                p.span("pipeline", "evaluate", t, 100 * MS)
            for k in range(10):
                if kind == "fetch.iter":
                    p.step(k + 1, t + 10 * k * MS, 2 * MS, 8 * MS, epoch=e)
                    p.span(*FORWARD, t + 10 * k * MS + 2 * MS, 8 * MS)
                elif kind == "plain":
                    p.span(*FORWARD, t + 10 * k * MS, (10 if k == 9 else 8) * MS)
            t += 100 * MS
            evaluated += 100 * MS
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    result = document(a)
    assert result["evaluation"]["seconds"] == pytest.approx(evaluated / S)
    assert result["outside"]["seconds"] == 0
    assert len(result["ledger"]["steps"]) == 60
    assert result["ledger"]["total"]["forward"] == pytest.approx(0.6)
    assert sum(result["ledger"]["total"].values()) == pytest.approx(1.2)
    assert result["ledger"]["outside_steps"]["0"]["evaluation"] == pytest.approx(evaluated / S)
    assert _bound(a) == ("compute", "forward")
    assert [f for f in a.findings if f.severity != "info"] == []


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("use", [0, 2 * MS])
def test_a_loop_that_only_takes_batches_is_no_evaluation(tmp_path: Path, auto: bool, use: int) -> None:
    """`list(loader)` before training, by hand and automatic; with `use` us for each batch it is one."""
    p = Process(10, rank=0)
    mark = {"auto": 1} if auto else {}
    t = 0
    for i in range(20):
        if auto:  # no steps are made of batches that nothing learns from
            p.span("dataloader", "fetch.iter", t, 100 * MS, **mark)
        else:
            p.step(i + 1, t, 100 * MS, use + 8)
        t += 100 * MS + use + 8
    if auto:
        p.span("pipeline", "evaluate", 0, t, **mark)
    before = t
    for i in range(50):
        t = _step(p, i + 1, t, MS, _plain(10, 8, 1), step=i, **mark)
    p.write(tmp_path)
    result = document(_checked(analyze(tmp_path)))
    assert len(result["ledger"]["steps"]) == 50
    assert result["evaluation"]["seconds"] == pytest.approx(before / S if use else 0)
    assert result["startup"]["seconds"] == pytest.approx(0 if use else before / S)


def test_a_long_evaluation_is_the_headline(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for e in range(3):
        for i in range(10):
            t = _step(p, i + 1, t, MS, _plain(10, 8, 1), epoch=e)
        p.span("pipeline", "test", t, S)
        t += S
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("evaluation", None)
    assert a.bound is not None
    assert a.bound.part.share == pytest.approx(2 / 2.58)  # the third lies after the last step


def test_a_gap_in_each_epoch_is_the_headline(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for e in range(3):
        for i in range(20):
            t = _step(p, i + 1, t, MS, _plain(10, 8, 1), epoch=e)
        t += 4 * S if e < 2 else 0
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("between_steps", None)
    assert document(a)["outside"]["seconds"] == pytest.approx(8)
    assert head(a)[1].endswith("2 gaps of 4.00 s between or after steps.")


def test_a_checkpoint_after_the_last_step_is_seen_whole(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(100):
        t = _step(p, i + 1, t, MS, _plain(10, 8, 1))
    p.span("checkpoint", "capture", t, 4 * S)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("checkpoint", "checkpoint")
    assert a.run_s == pytest.approx(6.0)
    assert a.bound is not None
    assert a.bound.part.seconds == pytest.approx(4.0)
    assert a.bound.part.share == pytest.approx(4 / 6)


def test_one_checkpoint_after_the_last_step_does_not_hide_those_in_steps(tmp_path: Path) -> None:
    """Shares of one sentence are of one time."""
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        saves = [("checkpoint", "capture", 90 * MS)] if i % 5 == 4 else []
        t = _step(p, i + 1, t, 0, [*_plain(30, 20, 10), *saves], step=i)
    p.span("checkpoint", "capture", t, 90 * MS)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.verdict == "Forward is the largest part (38 %); 24 % is checkpointing."


def test_a_first_epoch_that_takes_longer_than_all_others_is_the_reason(tmp_path: Path) -> None:
    """Items are kept in memory from the second epoch on."""
    p = Process(10, rank=0)
    t = 0
    for e in range(5):
        for i in range(32):
            wait = 400 * MS if e == 0 else 0
            if wait:
                p.span("data", "item", t + 1, wait - MS)
            t = _step(p, i + 1, t, wait, _plain(10, 8, 2), epoch=e)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("compute", "forward")
    why = "Warm-up: the first 33 steps take 20 times as long as a usual one (mostly preprocessing)"
    assert head(a)[1].startswith(why)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_reading_once_per_epoch_is_no_reading_again(tmp_path: Path, labelled: bool, times: int) -> None:
    p = Process(10, rank=0)
    t = 0
    for e in range(4):
        for i in range(10):
            for k in range(times):
                at = t + 10 * k * MS
                p.io("open", at, MS, f"/data/{i}", ret=3, flags=0)
                p.io("fdopen", at + MS, 10, f"/data/{i}", cat="STDIO")
                p.io("read", at + 2 * MS, 6 * MS, f"/data/{i}", ret=1 << 20, count=1 << 20)
            labels = {"epoch": e} if labelled else {}
            t = _step(p, i + 1, t, 30 * MS, _plain(5, 4, 1), **labels)
    p.spans.sort(key=lambda s: s.cat in {"POSIX", "STDIO"})
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert ("rereads" in _ids(a)) == (times > 1)
    if times > 1:
        assert "12 opens in 4 epochs" in _finding(a, "rereads").title


def test_a_slow_first_epoch_without_io_is_not_a_cold_cache(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for e in range(3):
        for i in range(20):
            p.io("read", t, MS, f"/data/{i}", ret=1 << 20, count=1 << 20)
            t = _step(p, i + 1, t, (20 if e == 0 else 2) * MS, _plain(5, 4, 1), epoch=e)
    p.spans.sort(key=lambda s: s.cat == "POSIX")
    p.write(tmp_path)
    assert "cold_first_epoch" not in _ids(_checked(analyze(tmp_path)))


def test_alternating_steps_do_not_drift(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(103):
        t = _step(p, i + 1, t, (40 if i % 4 < 2 else 1) * MS, _plain(5, 4, 1), step=i)
    p.write(tmp_path)
    assert "step_drift" not in _ids(_checked(analyze(tmp_path)))


def test_a_drift_is_found_with_its_change_point(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(100):
        t = _step(p, i + 1, t, MS, _plain(20 if i < 60 else 40, 4, 1), step=i)
    p.write(tmp_path)
    found = _finding(_checked(analyze(tmp_path)), "step_drift")
    assert found.evidence["change_point_step_index"] == 60
    assert found.evidence["stage"] == "forward"


def test_a_slow_file_comes_first_and_keeps_its_loss(tmp_path: Path) -> None:
    main = Process(10, rank=0)
    workers = [Process(11 + w, ppid=10) for w in range(4)]
    t = 0
    for i in range(40):
        slow = i % 8 == 3
        wait = (400 if slow else 2) * MS
        w = workers[i % 4]
        w.span("data", "item", t, wait)
        w.io("read", t, wait - 100, f"/data/{i % 8}", ret=1 << 16, count=1 << 16)
        t = _step(main, i + 1, t, wait, _plain(10, 8, 2))
    for p in (main, *workers):
        p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("input", "read")
    assert a.findings[0].id == "slow_file"
    assert a.findings[0].seconds == pytest.approx(5 * 0.4, rel=0.05)
    assert "/data/3" in head(a)[1]


def test_a_slow_worker_comes_first(tmp_path: Path) -> None:
    main = Process(10, rank=0)
    workers = [Process(11 + w, ppid=10) for w in range(4)]
    t = 0
    for i in range(80):
        w = i % 4
        wait = (120 if w == 2 else 4) * MS
        workers[w].span("data", "item", t, wait)
        t = _step(main, i + 1, t, wait, _plain(10, 8, 2))
    for p in (main, *workers):
        p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.findings[0].id == "straggler_worker"
    assert a.findings[0].evidence["pid"] == 13
    assert "pid 13" in head(a)[1]
    assert "step_drift" not in _ids(a)


def test_who_died_is_named_with_the_last_step(tmp_path: Path) -> None:
    main = Process(10, rank=0, world_size=2)
    other = Process(20, rank=1, world_size=2, end={"recovered": True})
    worker = Process(11, ppid=10, end=None)
    t = 0
    for i in range(30):
        if i < 12:
            worker.span("data", "item", t, 5 * MS)
        if i < 21:
            _step(other, i + 1, t, MS, _plain(10, 8, 1), step=100 + i)
        t = _step(main, i + 1, t, MS, _plain(10, 8, 1), step=100 + i)
    for p in (main, other, worker):
        p.write(tmp_path)
    found = _finding(_checked(analyze(tmp_path)), "incomplete_trace")
    assert "rank 1 (pid 20, last step 120)" in found.title
    assert "loader worker 0 of rank 0 (pid 11, last step 111)" in found.title
    died = {d["pid"]: d for d in found.evidence["died"]}
    assert (died[20]["rank"], died[20]["last_step"]) == (1, 120)
    assert (died[11]["worker"], died[11]["last_step"]) == (0, 111)


def test_a_step_marked_as_compute_is_compute(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 6 * MS, [("compute", "compute", 94 * MS)])
    assert _bound(a) == ("compute", None)
    assert a.verdict == "No bottleneck outside compute: compute is 94 % of the steady time."
    assert a.au == pytest.approx(94.0)


def test_compute_step_around_a_whole_step_is_no_optimizer(tmp_path: Path) -> None:
    a = _run(tmp_path, 30, 3 * MS, [(*UPDATE, 97 * MS)])
    assert _bound(a) == ("compute", None)
    assert a.ledger["total"]["optimizer"] == 0
    assert "optimizer" not in a.verdict


def test_opening_to_write_is_no_reading(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        p.io("open", t + 20 * MS, 10 * MS, f"/out/{i}", ret=3, flags=0o1101)
        p.io("openat", t + 30 * MS, 5 * MS, f"/in/{i}", ret=3, flags=0o2000000)
        t = _step(p, i + 1, t, 0, [*_plain(10, 8, 2), ("user", "log", 20 * MS)])
    p.spans.sort(key=lambda s: s.cat == "POSIX")
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.ledger["total"]["read"] == pytest.approx(0.15)
    assert a.ledger["total"]["other"] == pytest.approx(0.45)
    assert a.file_table is not None
    assert a.file_table["opens"].sum() == 60
    assert a.file_table["opens_to_write"].sum() == 30


def test_the_window_of_a_profiler_is_not_the_run(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(200):
        profiled = 50 <= i < 55
        if profiled:
            p.span("PP", f"ProfilerStep#{i}", t, 30 * MS)
        t = _step(p, i + 1, t, MS, _plain(20 if profiled else 10, 8, 1), step=i)
    p.spans.sort(key=lambda s: s.cat != "PP")
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.bound is not None
    assert a.judged is not None
    assert int(a.judged.rank.main.steps.steady.sum()) == 194
    assert a.bound.part.share == pytest.approx(0.95, abs=0.01)
    assert document(a)["profiled"]["seconds"] == pytest.approx(0.05)
    # Only profiler steps: what the process did outside of them is not measured against their window.
    q = Process(11, rank=0)
    for i in range(400):
        q.span("user", "load", i * 10 * MS, 9 * MS)
        q.io("open", i * 10 * MS, 5 * MS, f"/data/{i}", ret=3)
        q.io("read", i * 10 * MS + 5 * MS, MS, f"/data/{i}", ret=100, count=100)
    for i in range(4):
        q.span("PP", f"ProfilerStep#{i}", i * 10 * MS, 10 * MS)
    q.spans.sort(key=lambda s: s.cat != "PP")
    (tmp_path / "q").mkdir()
    q.write(tmp_path / "q")
    a = _checked(analyze(tmp_path / "q"))
    assert a.run_s == pytest.approx(4.0, abs=0.02)
    assert all(f.percent <= 100 for f in a.findings)


def test_what_cannot_be_seen_is_the_verdict_when_it_is_most(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        p.span(*FORWARD, t + MS, 10 * MS)
        t = p.step(i + 1, t, MS, 40 * MS)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert _bound(a) == ("unseen", None)
    assert a.verdict.startswith("Most of the step cannot be seen: 73 %")


def test_what_comes_after_pipeline_train_is_a_part_of_the_run(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.span("pipeline", "train", 0, 5 * S)
    t = S
    for i in range(100):
        t = _step(p, i + 1, t, MS, _plain(10, 8, 1))
    p.span("checkpoint", "restart", 6 * S, S)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.run_s == pytest.approx(7)
    assert document(a)["startup"]["seconds"] == pytest.approx(1)
    assert document(a)["outside"]["seconds"] == pytest.approx(4)
    assert document(a)["outside"]["after_s"] == pytest.approx(4)


def test_stages_that_automatic_tracing_did_not_see_are_null(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = _step(p, i + 1, t, MS, _plain(10, 8, 1), auto=1)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    total = a.ledger["total"]
    assert total["transfer"] is None
    assert total["comm"] is None
    assert total["forward"] == pytest.approx(0.3)
    assert a.ledger["steps"][0]["stages"]["transfer"] is None
    assert a.ledger["ranks"]["0"] == total


def test_no_wait_is_claimed_where_loading_was_not_seen(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for i in range(30):
        p.span("dataloader", "fetch.block", 200 * i * MS, 200 * MS, auto=1, step=i)
        p.span(*FORWARD, 200 * i * MS, 180 * MS, auto=1)
        p.span(*BACKWARD, (200 * i + 180) * MS, 20 * MS, auto=1)
    p.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert head(a)[1] == "Of each 0.20 s step: forward 0.18 s, backward 20 ms."


def test_fetches_without_steps_are_told(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for i in range(30):
        p.span("dataloader", "fetch.iter", 100 * i * MS, 10 * MS)
        p.span(*FORWARD, (100 * i + 10) * MS, 60 * MS)
    p.write(tmp_path)
    assert head(analyze(tmp_path))[1] == (
        "30 batches were fetched, but no training step was recorded (a `fetch.iter` loop body, a profiler step"
        " or `compute.step`)."
    )


def test_samples_per_second_and_utilisation(tmp_path: Path) -> None:
    main, worker = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for e in range(2):
        for i in range(11):
            for k in range(4):
                worker.span("data", "item", t + k * MS, MS)
            t = _step(main, i + 1, t, (500 if i == 0 else 20) * MS, _plain(50, 20, 10), epoch=e)
    main.write(tmp_path)
    worker.write(tmp_path)
    a = _checked(analyze(tmp_path))
    assert a.au == pytest.approx(80)
    assert a.samples_per_s == pytest.approx(40)


def test_steps_of_microseconds_are_judged_by_their_largest_part(tmp_path: Path) -> None:
    """Together they are less than a millisecond."""
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        start = t
        t = p.step(i + 1, t, 1, 10, step=i)
        p.span("compute", "forward", start + 1, 1)
    p.write(tmp_path)
    bound = analyze(tmp_path).bound
    assert bound is not None
    assert (bound.part.id, bound.part.share > 0.8) == ("unseen", True)
