"""Unchanged programs against their twins annotated by hand: same steps, same shares, same verdict."""

from __future__ import annotations

from typing import Any

import pytest

from auto.conftest import RUNS, Nursery
from dftracer.testing import Event

# Training steps that a run has; where it fails, those that it completed.
STEPS = {
    "plain": 24,
    "accumulation": 6,
    "evaluation": 16,
    "exception": 6,
    "huggingface": 6,
    "lightning_auto": 6,
    "lightning_manual": 6,
    "zero-0": 6,
    "zero-1-accumulation": 6,
    "zero-2-ranks": 6,
    "zero-3-sub-groups": 6,
}
FAILS = ("exception",)
# The rest runs in `make test-all`.
USUAL = (
    "plain",
    "gan",
    "evaluation",
    "workers-fork",
    "ddp",
    "exception",
)
EVERY = [run if run in USUAL else pytest.param(run, marks=pytest.mark.thorough) for run in RUNS]


def _shares(report: dict[str, Any]) -> dict[str, float]:
    total = report["ledger"]["total"]
    wall = sum(v for v in total.values() if v)
    shares = {stage: 100 * (seconds or 0.0) / wall for stage, seconds in total.items()}
    # What is annotated of making a batch differs; together it is what the step waited for.
    shares["input"] = sum(shares.pop(s) for s in ("fetch_wait", "read", "preprocess", "collate"))
    return shares


def _steps(report: dict[str, Any]) -> int:
    counts = {len([s for s in report["ledger"]["steps"] if s["rank"] == r["rank"]]) for r in report["ranks"]}
    assert len(counts) == 1, counts
    return counts.pop()


@pytest.mark.parametrize("run", EVERY)
def test_the_program_as_it_stands_has_its_steps(run: str, nursery: Nursery) -> None:
    found = nursery.outcome(run)
    assert (found.code != 0) == (run in FAILS), found.err
    assert "dftracer" not in found.err
    assert _steps(found.report) == STEPS.get(run, 12)


@pytest.mark.parametrize("run", EVERY)
def test_what_is_deduced_is_what_is_said_by_hand(run: str, nursery: Nursery) -> None:
    twin = nursery.outcome(run, by_hand=True)
    assert (twin.code != 0) == (run in FAILS), twin.err
    deduced, output = twin.half(deduced=True), twin.half(deduced=False)
    assert _steps(deduced) == _steps(output) == STEPS.get(run, 12)
    seen, known = _shares(deduced), _shares(output)
    off = {stage: (round(seen[stage], 2), round(known[stage], 2)) for stage in known}
    # On a busy machine the program may lose its CPU between the two ways' looks at the clock.
    points = 1.0 + 100 * (output["machine"]["waited_for_cpu_share"] or 0.0)
    assert all(abs(a - b) <= points for a, b in off.values()), off
    verdicts = [(half["bound"] or {}).get("id") for half in (deduced, output)]
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("run", EVERY)
def test_the_program_is_none_the_wiser(run: str, nursery: Nursery) -> None:
    output = [
        [line for line in nursery.outcome(run, by_hand).out.splitlines() if line.startswith(("loss", "held"))]
        for by_hand in (False, True)
    ]
    assert output[0] == output[1]


@pytest.mark.parametrize("run", EVERY)
def test_everything_automatic_says_so(run: str, nursery: Nursery) -> None:
    words = ("compute", "dataloader", "data", "device", "pipeline", "checkpoint", "comm")
    # What gloo does below Python says that instead.
    events = [e for e in nursery.outcome(run).events if e.cat in words and "below_python" not in e.args]
    assert events
    assert all(e.args.get("auto") == 1 for e in events)


@pytest.mark.parametrize("run", ["ddp"])
def test_collectives_of_ddp_are_a_part_of_backward(run: str, nursery: Nursery) -> None:
    """Those that its reducer starts below Python are no calls: only the program's own is an event."""
    events = nursery.outcome(run).events
    calls = [e for e in events if e.cat == "comm" and "below_python" not in e.args]
    assert [(e.name, e.args["bytes"], e.args["ranks"]) for e in calls] == [("all_reduce", 4, 2)] * 2
    # No rank leaves a backward before the other, whose batches take longer, has come to its own.
    backward: dict[int, list[Event]] = {}
    for event in sorted(events, key=lambda e: e.ts):
        if (event.cat, event.name) == ("compute", "backward"):
            backward.setdefault(event.pid, []).append(event)
    ranks = list(backward.values())
    assert [len(each) for each in ranks] == [STEPS.get(run, 12)] * 2
    for one, other in zip(*ranks, strict=True):
        assert max(one.ts, other.ts) <= min(one.ts + one.dur, other.ts + other.dur)


@pytest.mark.parametrize("run", EVERY)
def test_the_rows_of_the_steps_are_the_ledger_of_the_report(run: str, nursery: Nursery) -> None:
    from dftracer.load.rows import STAGES, ranks_of, read_row_files

    found = nursery.outcome(run)
    files = read_row_files(found.directory)
    ledger = found.report["ledger"]
    assert sorted(str(rank) for rank in ranks_of(files)) == sorted(ledger["ranks"])
    for file, rank in zip(files, ranks_of(files), strict=True):
        assert file.damaged == 0
        assert len(file.steps) == sum(1 for step in ledger["steps"] if step["rank"] == rank)
        rows = dict(zip(STAGES, (file.stages.sum(axis=0) / 1e6).tolist(), strict=True))
        wall = sum(rows.values())
        for stage, seconds in ledger["ranks"][str(rank)].items():
            assert rows[stage] == pytest.approx(seconds or 0.0, rel=0.01, abs=0.001 * wall), stage
