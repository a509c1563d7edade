"""What a comparison says of runs whose truth is known: no alarm for equal ones, the slower stage is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dftracer.compare import Side, compare, compare_all, side_of, to_json
from dftracer.compare.comparison import group_of
from dftracer.compare.statistics import t_quantile
from support.noisy_runs import KINDS, noisy_run, noisy_times, report_of


def test_equal_noisy_runs_give_at_most_5_false_alarms_in_100() -> None:
    alarms = []
    for i in range(100):
        kind, n = KINDS[i % 4], (60, 100, 150, 300, 800)[i % 5]
        c = compare(noisy_run(2 * i, n, kind), noisy_run(2 * i + 1, n, kind))
        alarms += [(i, kind, n, c.changed)] if c.difference else []
    assert len(alarms) <= 5, alarms


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_is_10_percent_slower_is_found(kind: str) -> None:
    found = []
    for i in range(20):
        a = noisy_run(1000 + i, 300, kind)
        b = noisy_run(2000 + i, 300, kind, {"preprocess": 1.1})
        found.append("preprocess" in compare(a, b).changed)
    assert sum(found) >= 18


def test_the_slower_stage_and_no_other_is_named() -> None:
    a, b = noisy_run(1, 400, "independent"), noisy_run(2, 400, "independent", {"backward": 1.2})
    c = compare(a, b)
    assert c.changed == ["backward"]
    assert c.step_changed
    low, high = c.stages["backward"].interval or (0, 0)
    assert low < 0.2 < high
    # The other way round it is the same change.
    back = compare(b, a)
    assert back.changed == ["backward"]
    assert back.stages["backward"].interval == pytest.approx((1 / (1 + high) - 1, 1 / (1 + low) - 1))


def test_intervals_hold_the_true_change() -> None:
    truth = {"preprocess": 0.1, "forward": -0.05}
    missed = 0
    for i in range(60):
        a = noisy_run(3000 + i, 150, "in_a_row")
        b = noisy_run(4000 + i, 150, "in_a_row", {k: 1 + v for k, v in truth.items()})
        c = compare(a, b)
        for stage, change in c.stages.items():
            low, high = change.interval or (0, 0)
            if not low <= truth.get(stage, 0.0) <= high:
                missed += 1
                break
    assert missed <= 3


def test_identical_runs_and_exact_changes() -> None:
    steady = {"forward": np.full(50, 0.010), "backward": np.full(50, 0.020)}
    a = side_of("a", report_of(steady))
    same = to_json([compare(a, side_of("b", report_of(steady)))])
    assert same["difference"] is False
    assert same["changed"] == []
    # Steps that never vary still do not say how much the next run would differ: 1 % a run.
    reach = 1.96 * 0.01 * 2**0.5
    assert same["step"] == {"a_s": 0.03, "b_s": 0.03, "change": 0.0, "interval": same["step"]["interval"]}
    assert -0.04 < same["step"]["interval"][0] < -reach < reach < same["step"]["interval"][1] < 0.04
    slower = to_json([compare(a, side_of("b", report_of({**steady, "forward": np.full(50, 0.011)})))])
    assert slower["difference"] is True
    assert slower["changed"] == ["forward"]
    forward = slower["stages"]["forward"]
    assert (forward["a_s"], forward["b_s"], forward["change"]) == (0.01, 0.011, 0.1)
    assert 0.05 < forward["interval"][0] < 0.1 < forward["interval"][1] < 0.15
    # 0.9 % of the step is no change.
    little = compare(a, side_of("b", report_of({**steady, "forward": np.full(50, 0.01027)})))
    assert not little.difference


def test_two_equal_runs_differ_a_little_and_that_is_no_difference() -> None:
    """Seen with equal programs on a quiet machine: medians of 42.9 and 41.9 ms, each from steady steps."""

    def run(seed: int, milliseconds: float) -> Side:
        noise = 0.002 * np.random.default_rng(seed).normal(size=(2, 120))
        half = milliseconds / 2000
        return side_of(
            "run", report_of({"forward": half * (1 + noise[0]), "backward": half * (1 + noise[1])})
        )

    assert not compare(run(1, 42.9), run(2, 41.9)).difference
    assert compare(run(1, 42.9), run(2, 39.0)).step_changed
    # Several runs a side show how much they differ, so that less is enough.
    before, after = (group_of([run(10 * k + i, m) for i in range(4)]) for k, m in ((1, 42.9), (2, 42.0)))
    assert compare(before, after).step_changed


def test_a_run_that_waited_for_a_cpu_proves_nothing() -> None:
    def run(seed: int, milliseconds: float, waited: float) -> Side:
        noise = 1 + 0.002 * np.random.default_rng(seed).normal(size=120)
        document = report_of({"forward": milliseconds / 1000 * noise})
        return side_of("run", {**document, "machine": {"waited_for_cpu_share": waited}})

    assert compare(run(1, 40.0, 0.0), run(2, 46.0, 0.004)).answer == "different"
    assert compare(run(1, 40.0, 0.0), run(2, 46.0, 0.3)).answer == "cannot_tell"


def test_waiting_for_a_cpu_before_the_steps_says_nothing_about_them() -> None:
    def run(seed: int, milliseconds: float, in_steps: float) -> Side:
        noise = 1 + 0.002 * np.random.default_rng(seed).normal(size=120)
        machine = {"waited_for_cpu_share": 0.3, "waited_for_cpu_in_steps_share": in_steps}
        return side_of("run", {**report_of({"forward": milliseconds / 1000 * noise}), "machine": machine})

    assert compare(run(1, 40.0, 0.0), run(2, 46.0, 0.004)).answer == "different"
    assert compare(run(1, 40.0, 0.0), run(2, 46.0, 0.3)).answer == "cannot_tell"


def test_a_stage_that_was_not_there_before() -> None:
    steady = {"forward": np.full(50, 0.010), "checkpoint": np.zeros(50)}
    a = side_of("a", report_of(steady))
    b = side_of("b", report_of({**steady, "checkpoint": np.full(50, 0.002)}))
    c = to_json([compare(a, b)])
    assert c["changed"] == ["checkpoint"]
    assert c["stages"]["checkpoint"] == {"a_s": 0.0, "b_s": 0.002, "change": None, "interval": [None, None]}
    found = c["differences"]["checkpoint"]
    assert (found["seconds"], found["of_step"]) == (0.002, 0.2)
    assert 0.0019 < found["interval_s"][0] < 0.002 < found["interval_s"][1] < 0.0021
    gone = to_json([compare(b, a)])
    assert gone["changed"] == ["checkpoint"]
    assert gone["stages"]["checkpoint"]["change"] == -1.0


def test_a_stage_that_one_run_could_not_see_is_not_compared() -> None:
    steady = {"forward": np.full(50, 0.010)}
    blind = report_of(steady)
    blind["steady_steps"]["not_seen"] = ["collate"]
    seen = report_of({**steady, "collate": np.full(50, 0.001)})
    c = to_json([compare(side_of("a", blind), side_of("b", seen))])
    assert "collate" not in c["changed"]
    assert c["stages"]["collate"] == {"a_s": None, "b_s": 0.001, "change": None, "interval": [None, None]}
    assert "collate was not seen in a, so it is not compared." in c["notes"]


def _waiting(wait: float, seed: int, waits: np.ndarray) -> Side:
    times = noisy_times(seed, 400, "independent")
    noise = 1 + 0.05 * np.random.default_rng(seed).normal(size=400)
    times["fetch_wait"] = np.where(waits, wait, 0.0001) * noise
    return side_of("run", report_of(times))


def test_waiting_that_comes_at_a_rhythm_is_compared_over_the_rhythm() -> None:
    every = np.arange(400) % 4 == 0
    c = compare(_waiting(0.060, 1, every), _waiting(0.080, 2, every))
    assert c.block % 4 == 0
    assert c.changed == ["fetch_wait"]
    assert c.stages["fetch_wait"].relative == pytest.approx(1 / 3, abs=0.05)
    assert not compare(_waiting(0.060, 1, every), _waiting(0.060, 2, every)).difference


def test_waiting_that_comes_in_few_steps_is_compared_by_its_mean() -> None:
    now_and_then = [np.random.default_rng(s).random(400) < 1 / 8 for s in (1, 2, 3)]
    c = compare(_waiting(0.060, 1, now_and_then[0]), _waiting(0.240, 2, now_and_then[1]))
    assert c.changed_in_bursts == ["fetch_wait"]
    assert c.difference
    assert not compare(_waiting(0.060, 1, now_and_then[0]), _waiting(0.060, 2, now_and_then[2])).difference


def test_figures_of_the_device_and_of_throughput() -> None:
    def run(busy: float, rate: float) -> dict[str, Any]:
        r = np.random.default_rng(int(1e4 * busy))
        steps = [
            {"rank": k, "step": i, "busy_s": busy * (1 + 0.02 * r.normal())}
            for i in range(60)
            for k in (0, 1)
        ]
        idle = {"input": 3.0, "host": 0.0}
        account = {"source": "events", "observed_s": 10.0, "busy_s": 100 * busy, "idle": idle}
        more = {"exposed_comm_s": None, "steady": {"observed_s": 8.0, "busy_s": 80 * busy, "idle": idle}}
        return report_of(
            {"forward": np.full(60, 0.1)},
            samples_per_s=rate,
            au=90.0,
            model={"memory_peak_bytes": 1 << 30},
            device={"source": "events", "ranks": {"0": {**account, **more}}, "steps": steps},
            findings=[{"id": "device_idle", "title": "idle", "seconds": 1.0, "percent": 100 * busy}],
        )

    c = to_json([compare(side_of("a", run(0.05, 100.0)), side_of("b", run(0.06, 80.0)))])
    assert c["device"]["busy_share"] == {"a": 0.5, "b": pytest.approx(0.6), "change": pytest.approx(0.2)}
    assert c["device"]["idle.input"] == {"a": 0.375, "b": 0.375, "change": 0.0}
    assert c["device"]["memory_peak_bytes"]["a"] == 1 << 30
    low, high = c["device"]["busy_per_step"]["interval"]
    assert 0 < low < 0.2 < high
    assert c["throughput"]["samples_per_s"] == {"a": 100.0, "b": 80.0, "change": pytest.approx(-0.2)}
    assert c["findings"] == {
        "new": [],
        "gone": [],
        "both": [{"id": "device_idle", "title": "idle", "a_percent": 5.0, "b_percent": 6.0}],
    }


def test_runs_that_are_not_alike_are_told() -> None:
    a = report_of({"forward": np.full(50, 0.01)}, run={"id": "a", "host": "node0", "others": [{"id": "old"}]})
    b = report_of({"forward": np.full(50, 0.01)}, run={"id": "b", "host": "node1"})
    b["steady_steps"]["ranks"] = 4
    assert to_json([compare(side_of("a", a), side_of("b", b))])["notes"] == [
        "a also contains 1 other run; the newest is compared.",
        "The runs have 1 rank and 4 ranks.",
        "The runs have different hosts: node0 and node1.",
    ]


def test_too_few_steps_say_what_cannot_be_told() -> None:
    c = to_json([compare(noisy_run(1, 5, "independent", name="short"), noisy_run(2, 100, "independent"))])
    assert c["difference"] is False
    assert c["enough_steps"] is False
    assert c["step"]["interval"] == [None, None]
    assert c["verdict"] == ("Cannot tell whether A and B differ: short has 5 steady steps; 8 are needed.")


def test_more_runs_are_each_compared_with_the_first() -> None:
    sides = [
        noisy_run(i, 300, "independent", {"forward": f}, name=f"run{i}")
        for i, f in ((1, 1.0), (2, 1.0), (3, 1.3))
    ]
    c = to_json(compare_all(sides))
    assert c["difference"] is False
    assert [r["name"] for r in c["runs"]] == ["A", "B", "C"]
    assert c["others"][0]["name"] == "C"
    assert c["others"][0]["changed"] == ["forward"]


def _level(seed: int, level: float) -> Side:
    """A run on a machine that is a little faster or slower this time, as machines are."""
    r = np.random.default_rng(seed)
    return side_of(f"run{seed}", report_of({"forward": level * 0.03 * (1 + 0.01 * r.normal(size=200))}))


def test_the_spread_between_runs_counts() -> None:
    """Runs of one program differ by 4 %: two single runs look different, two groups of runs do not."""
    levels = 1 + 0.04 * np.random.default_rng(3).normal(size=60)
    singles = groups = 0
    for i in range(10):
        sides = [_level(6 * i + k, float(levels[6 * i + k])) for k in range(6)]
        singles += compare(sides[0], sides[3]).difference
        groups += compare(group_of(sides[:3]), group_of(sides[3:])).difference
    assert singles >= 5  # what repeated runs are for
    assert groups <= 1
    slower = [_level(100 + k, float(1.3 * levels[k])) for k in range(3)]
    c = compare(group_of([_level(200 + k, float(levels[10 + k])) for k in range(3)]), group_of(slower))
    assert c.answer == "different"
    low, high = c.step.interval or (0, 0)
    assert low < 0.3 < high


def test_a_stage_that_one_run_never_had_is_zero_there() -> None:
    """Automatic tracing does not overlook a checkpoint: none was written."""
    steady = {"forward": np.full(50, 0.010)}
    without = report_of(steady)
    without["steady_steps"]["not_seen"] = ["checkpoint", "comm"]
    c = compare(side_of("a", without), side_of("b", report_of({**steady, "checkpoint": np.full(50, 0.005)})))
    assert c.changed == ["checkpoint"]
    assert c.answer == "different"


def test_three_answers() -> None:
    steady = {"forward": np.full(50, 0.010)}
    a = side_of("a", report_of(steady))
    assert compare(a, side_of("b", report_of(steady))).answer == "same"
    assert compare(a, side_of("b", report_of({"forward": np.full(50, 0.012)}))).answer == "different"
    wild = [
        side_of("w", report_of({"forward": 0.01 * np.exp(np.random.default_rng(s).normal(size=30))}))
        for s in (1, 2)
    ]
    unsure = to_json([compare(wild[0], wild[1])])
    assert (unsure["answer"], unsure["difference"]) == ("cannot_tell", False)
    assert unsure["steps_needed"] is None or unsure["steps_needed"] > 30
    assert "Cannot tell whether A and B differ" in unsure["verdict"]


@pytest.mark.parametrize(
    ("freedom", "alpha", "expected"),
    [(1, 0.05, 12.7062), (5, 0.01, 4.0321), (11, 0.004, 3.6229), (22, 0.05, 2.0739), (3.5, 0.05, 2.9416)],
)
def test_quantiles_are_those_of_the_tables(freedom: float, alpha: float, expected: float) -> None:
    assert t_quantile(freedom, alpha) == pytest.approx(expected, rel=2e-3)
