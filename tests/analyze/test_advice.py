"""Advice by case: the table, and traces in which the usual advice would not help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.analyze.say.catalog import ADVICE_TABLE, Case, advise
from dftracer.report import document
from dftracer.testing.synthetic import Process

MS = 1000
USUAL = Case()

# Kind, case, and what the advice must and must not say.
CASES: tuple[tuple[str, Case, str, str], ...] = (
    ("forward", USUAL, "torch.compile", ""),
    ("forward", replace(USUAL, compiled=True), "bf16", "torch.compile"),
    ("backward", USUAL, "torch.compile", ""),
    ("backward", replace(USUAL, compiled=True), "bf16", "torch.compile"),
    ("optimizer", USUAL, "fused=True", ""),
    ("compute", USUAL, "ai.compute.forward", ""),
    ("host", replace(USUAL, gpu=True, gpu_unseen=True), "DFTRACER_DEVICE_EVENTS", "torch.compile"),
    ("host", replace(USUAL, gpu=True, compiled=True), "CUDA graphs", "torch.compile"),
    ("host", replace(USUAL, gpu=True), "torch.compile or CUDA graphs", ""),
    ("device", replace(USUAL, gpu=True, compiled=True), "lower precision", "torch.compile"),
    ("device", replace(USUAL, gpu=True), "torch.compile", ""),
    ("dependency", replace(USUAL, gpu=True), "streams", ""),
    ("transfer", USUAL, "pin_memory=True", ""),
    ("comm", USUAL, "backward pass", ""),
    ("checkpoint", USUAL, "in the background", ""),
    ("checkpoint", replace(USUAL, background=True), "already", "async_save"),
    ("startup", USUAL, "Cache", ""),
    ("evaluation", USUAL, "inference_mode", ""),
    ("compilation", replace(USUAL, compiled=True), "Keep compiled code", "ecompil"),
    ("compilation", replace(USUAL, compiled=True, recompiled=True), "Avoid recompiling", ""),
    ("between_steps", replace(USUAL, automatic=True, place="f a.py:1"), "f a.py:1", "Annotate"),
    ("between_steps", replace(USUAL, place="f a.py:1", waiting=True), "f a.py:1 waits", "in another thread"),
    ("between_steps", replace(USUAL, automatic=True), "between its steps", "Annotate"),
    ("between_steps", USUAL, "Annotate", ""),
    ("other", USUAL, "overlap", ""),
    ("own_code", replace(USUAL, place="f train.py:8", waiting=True), "further ahead", "in another thread"),
    ("own_code", replace(USUAL, place="f train.py:8", model_unseen=True), "ai.compute.forward", "less"),
    ("own_code", replace(USUAL, model_unseen=True), "ai.compute.forward", "less"),
    ("own_code", replace(USUAL, place="log train.py:8"), "log train.py:8", ""),
    ("own_code", USUAL, "besides training", ""),
    ("unseen", replace(USUAL, automatic=True), "ai.compute.forward", "dftracer run"),
    ("unseen", USUAL, "dftracer run", ""),
    ("input.sampler", USUAL, "sampler", "num_workers"),
    ("input.read", replace(USUAL, short_items=True), "whole batches", "num_workers"),
    ("input.read", USUAL, "or loader workers", "more loader"),
    ("input.read", replace(USUAL, workers=2), "more loader workers", ""),
    ("input.preprocess", replace(USUAL, short_items=True), "whole batches", "num_workers"),
    ("input.preprocess", USUAL, "loader workers", "more loader"),
    ("input.collate", USUAL, "collate in loader workers", ""),
    ("input.collate", replace(USUAL, workers=2), "contiguous", "workers"),
    ("input.idle", replace(USUAL, workers=2), "prefetch_factor", ""),
    ("input.unseen", replace(USUAL, automatic=True), "DataLoader", "nnotate"),
    ("input.unseen", replace(USUAL, automatic=True, from_rows=True), "with all events", "DataLoader"),
    ("input.unseen", replace(USUAL, workers=2, items=True), "collate_fn", "ai.data.item"),
    ("input.unseen", USUAL, "ai.data.item", ""),
    ("straggler.input", USUAL, "loader", "temperature"),
    ("straggler.checkpoint", USUAL, "saves", "temperature"),
    ("straggler.own_code", USUAL, "Only this rank", "temperature"),
    ("straggler.compute", USUAL, "share a host", "temperature"),
    ("straggler.compute", replace(USUAL, same_host=False), "temperature", ""),
)


@pytest.mark.parametrize(("kind", "case", "says", "never"), CASES)
def test_advice_fits_the_case(kind: str, case: Case, says: str, never: str) -> None:
    result = advise(kind, case)
    assert says in result
    assert not never or never not in result
    assert "{" not in result


def test_every_row_of_the_table_has_a_case() -> None:
    used = {next(r for r in ADVICE_TABLE if r.kind == kind and r.applies(case)) for kind, case, _, _ in CASES}
    assert [row for row in ADVICE_TABLE if row not in used] == []


def _words(a: Analysis) -> str:
    return " ".join([*a.head, *(f"{f.title} {f.advice}" for f in a.findings.every())])


def test_who_traces_with_dftracer_run_is_not_told_to(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(20):
        t = p.step(i + 1, t, MS, 50 * MS, auto=1, forward_unseen=1)
        p.span("compute", "backward", t - 5 * MS, 5 * MS, auto=1)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.bound is not None
    assert a.bound.part.id == "own_code"
    assert "ai.compute.forward" in _words(a)
    assert "dftracer run" not in _words(a)


@pytest.mark.parametrize("workers", [0, 2])
def test_who_needs_workers_is_told_how_many_cores_there_are(tmp_path: Path, workers: int) -> None:
    """85 of 100 ms are waited for items that two workers, or none, always work at."""
    for cpus in (2, 64):
        p = Process(10, rank=0)
        makers = [Process(11 + k, ppid=10) for k in range(workers)]
        t = 0
        for i in range(40):
            for by in makers or [p]:
                by.span("data", "item", t + 1, (95 if workers else 80) * MS, image_idx=i)
            t = p.step(i + 1, t, 85 * MS, 15 * MS, step=i)
            p.span("compute", "forward", t - 15 * MS, 15 * MS)
        p.counter("host.cpu", t, user_us=t, system_us=0, cpus=cpus, runnable=1)
        directory = tmp_path / str(cpus)
        directory.mkdir()
        for each in (p, *makers):
            each.write(directory)
        a = analyze(directory)
        found = next(f for f in a.findings.every() if f.id == "too_few_workers")
        assert "num_workers" in found.advice
        assert (
            f"if the machine has the cores (it has {cpus})" if workers else f"has {cpus} cores"
        ) in found.advice


@pytest.mark.parametrize("loader", [True, False])
def test_who_has_no_loader_is_told_to_use_one(tmp_path: Path, loader: bool) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        first, t = t, t + 60 * MS
        read = first if loader else first + MS
        p.span("POSIX", "read", read, 45 * MS, fname="/data/shard", ret=1 << 20)
        if loader:
            p.span("dataloader", "fetch.iter", first, 46 * MS, count=str(i + 1), auto=1)
        p.span("compute", "forward", t - 10 * MS, 5 * MS, auto=1)
        p.span("compute", "backward", t - 5 * MS, 5 * MS, auto=1)
        body = first + 46 * MS if loader else first
        p.span("dataloader", "fetch.block", body, t - body, count=str(i + 1), auto=1)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert document(a)["bound"]["id"] == "input"
    assert ("with a DataLoader" in _words(a)) is not loader
    assert ("Use loader workers" in _words(a)) is loader


def test_a_slow_sampler_is_no_case_for_workers(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        p.span("data", "batch_sampler", t, 40 * MS, auto=1)
        p.span("data", "item", t + 40 * MS, 4 * MS, auto=1)
        t = p.step(i + 1, t, 45 * MS, 10 * MS, auto=1)
        p.span("compute", "forward", t - 10 * MS, 10 * MS, auto=1)
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert document(a)["bound"]["id"] == "input"
    assert document(a)["bound"]["stage"] == "sampler"
    assert "mostly the sampler" in a.verdict
    assert "num_workers" not in _words(a)
    assert "more workers do not help" in a.head[2]


def test_items_of_microseconds_are_no_case_for_workers(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        for k in range(400):
            p.span("data", "item", t + 50 * k, 45)
        t = p.step(i + 1, t, 20 * MS, 10 * MS)
        p.span("compute", "forward", t - 10 * MS, 10 * MS)
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert document(a)["bound"]["id"] == "input"
    assert "num_workers" not in _words(a)
    assert "whole batches" in a.head[2]


def test_who_writes_in_the_background_is_not_told_to(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        t = p.step(i + 1, t, MS, 60 * MS)
        p.span("compute", "forward", t - 60 * MS, 10 * MS)
        p.span("checkpoint", "capture", t - 50 * MS, 50 * MS)
        p.span("checkpoint", "capture", t - 50 * MS, 55 * MS, tid=77)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert document(a)["bound"]["id"] == "checkpoint"
    assert "async_save" not in _words(a)
    assert "already written in the background" in a.head[2]


@pytest.mark.parametrize("host", ["node0", "node1"])
@pytest.mark.parametrize("late", ["checkpoint", "own", "backward"])
def test_clocks_are_named_only_for_compute_on_another_host(tmp_path: Path, late: str, host: str) -> None:
    for rank in range(2):
        p = Process(10 + rank, rank=rank, world_size=2, host=host if rank else "node0")
        t = 0
        for i in range(30):
            extra = 60 * MS if rank else 0
            t = p.step(i + 1, t, MS, 100 * MS, auto=1)
            body = t - 100 * MS
            p.span("compute", "forward", body, 10 * MS, auto=1)
            p.span("compute", "backward", body + 10 * MS, 10 * MS + (extra if late == "backward" else 0))
            if late == "checkpoint" and extra:
                p.span("checkpoint", "save", body + 20 * MS, extra, auto=1)
            p.span("comm", "all_reduce", body + 20 * MS + extra, 80 * MS - extra)
        p.write(tmp_path)
    a = analyze(tmp_path)
    assert a.bound is not None
    assert (a.bound.part.id, a.bound.part.rank) == ("straggler", 1)
    assert a.bound.part.stage == {"own": "own_code"}.get(late, late)
    assert ("temperature" in _words(a)) == (late == "backward" and host == "node1")


def test_a_sampler_without_a_name_is_what_remains_of_loading_in_the_main_thread(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    t = 0
    for i in range(30):
        p.span("data", "item", t + 40 * MS, 4 * MS, auto=1)
        t = p.step(i + 1, t, 45 * MS, 10 * MS, auto=1)
        p.span("compute", "forward", t - 10 * MS, 10 * MS, auto=1)
    p.spans.sort(key=lambda s: s.cat == "data")
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert document(a)["bound"]["stage"] == "sampler"
    assert "num_workers" not in _words(a)
