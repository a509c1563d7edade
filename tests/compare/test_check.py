"""`dftracer check`: exit 0 or 1 with the reasons, and what CI systems read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from dftracer.compare import Side, compare, side_of
from dftracer.compare.checks import (
    BadLimit,
    against_baseline,
    answer_of,
    check_limit,
    parse_limit,
    parse_share,
    read_limits,
)
from dftracer.compare.showing import headline
from support.commands import dftracer
from support.noisy_runs import noisy_run, report_of


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of runs with a known truth: steps of 10 + 30 ms, and the same with a part 20 % slower."""
    folder = tmp_path_factory.mktemp("saved")
    noise = 1 + 0.02 * np.random.default_rng(1).normal(size=(4, 200))
    runs = {
        "base": {"fetch_wait": 0.010 * noise[0], "forward": 0.030 * noise[1]},
        "same": {"fetch_wait": 0.010 * noise[2], "forward": 0.030 * noise[3]},
        "slow": {"fetch_wait": 0.010 * noise[2], "forward": 0.036 * noise[3]},
        "short": {"fetch_wait": 0.010 * noise[2, :5], "forward": 0.036 * noise[3, :5]},
    }
    out = {}
    for name, times in runs.items():
        out[name] = folder / f"{name}.json"
        out[name].write_text(json.dumps(report_of(times, au=75.0, samples_per_s=800.0)))
    return out


def check(*args: object) -> tuple[int, str]:
    ran = dftracer("check", *args)
    return ran.returncode, ran.stdout + ran.stderr


def test_a_slower_run_fails_with_the_reason(saved: dict[str, Path]) -> None:
    code, output = check(saved["same"], "--baseline", saved["base"], "--max-regression", "5%")
    assert code == 0, output
    code, output = check(saved["slow"], "--baseline", saved["base"], "--max-regression", "5%")
    assert code == 1, output
    assert "step is slower by more than 5.0 %" in output
    assert "forward: " in output
    code, output = check(saved["slow"], "--baseline", saved["base"], "--max-regression", "25%")
    assert code == 0, output
    code, output = check(saved["base"], "--baseline", saved["slow"])
    assert code == 0, output
    code, output = check(saved["short"], "--baseline", saved["base"])
    assert code == 1
    assert "too few steps" in output


def test_limits_of_a_file_and_of_the_command_line(saved: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('[limits]\n"fetch_wait.share" = "< 0.3"\nstep.p95 = "< 0.5"\nau = "> 0.7"\n')
    code, output = check(saved["base"], "--limits", file)
    assert code == 0, output
    file.write_text('limits = ["fetch_wait.share < 0.1", "step.p95 < 500 ms", "au > 0.9"]\n')
    code, output = check(saved["base"], "--limits", file, "--json")
    assert code == 1, output
    answer = json.loads(output)
    assert [(c["name"], c["ok"]) for c in answer["checks"]] == [
        ("fetch_wait.share < 0.1", False),
        ("step.p95 < 500 ms", True),
        ("au > 0.9", False),
    ]
    assert answer["checks"][0]["value"] == pytest.approx(0.25, abs=0.005)
    assert answer["checks"][2]["value"] == 0.75
    file.write_text(f'baseline = "{saved["base"]}"\nmax_regression = "5%"\n')
    code, output = check(saved["slow"], "--limits", file)
    assert code == 1, output
    code, output = check(saved["base"], "--limit", "samples_per_s > 900", "--limit", "forward.median < 31 ms")
    assert code == 1
    assert "FAILED  samples_per_s is 800" in output
    assert "ok      forward.median is 29.9 ms, the limit is < 31.0 ms" in output


def test_what_ci_reads(saved: dict[str, Path], tmp_path: Path) -> None:
    summary, junit = tmp_path / "summary.md", tmp_path / "check.xml"
    summary.touch()  # as a job summary is before the job
    code, _ = check(
        saved["slow"],
        "--baseline",
        saved["base"],
        "--limit",
        "au > 70%",
        "--markdown",
        summary,
        "--junit",
        junit,
    )
    assert code == 1
    assert summary.read_text().startswith("### ❌ ")
    assert "| ✅ | au > 70% |" in summary.read_text().replace("\\", "")
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    failed = [c.get("name") for c in suite.findall("testcase") if c.find("failure") is not None]
    assert failed == ["step"]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((), "nothing to check"),
        (("--max-regression", "5%"), "needs a --baseline"),
        (("--limit", "fetch_wait.share"), "is not a limit"),
        (("--limit", "speed > 3"), "is not a figure of a run"),
        (("--limit", "step.p95 < 3 parsecs"), "unknown unit"),
        (("--baseline", "none", "--max-regression", "5"), "is that percent?"),
        (("--limits", "missing.toml"), "missing.toml"),
        (("--baseline", "missing"), "missing"),
    ],
)
def test_mistakes_are_told_from_failures(
    saved: dict[str, Path], args: tuple[str, ...], expected: str
) -> None:
    code, output = check(saved["base"], *args)
    assert code == 2, output
    assert expected in output


def test_bad_files(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    for text, expected in (
        ("[limits]\nstep.p95 = 0.5\n", "more or less"),
        ("[limit]\nstep.p95 = '< 0.5'\n", "unknown key 'limit'"),
        ("limits = [\n", "limits.toml"),
        ("max_regression = 'much'\n", "is not a share"),
    ):
        file.write_text(text)
        with pytest.raises(BadLimit, match=expected):
            read_limits(str(file))
    assert parse_share("5%") == parse_share(0.05) == 0.05


def test_a_figure_that_is_not_known_is_not_kept() -> None:
    run = side_of("run", report_of({"forward": np.full(20, 0.01)}))
    for text in ("au > 0.9", "device.busy_share > 0.5", "tokens_per_s > 1"):
        assert not check_limit(run, parse_limit(text)).ok
        assert "does not contain" in check_limit(run, parse_limit(text)).reason
    assert check_limit(run, parse_limit("checkpoint.share < 0.1")).ok
    assert check_limit(run, parse_limit("findings.input_bound < 5%")).ok
    assert check_limit(run, parse_limit("step.max <= 10 ms")).value == pytest.approx(0.01)


def test_equal_noisy_runs_do_not_fail() -> None:
    """The step may look slower by chance: that is no regression, but it may not pass for equal either."""
    answers = []
    for i in range(40):
        a, b = (noisy_run(5000 + 2 * i + k, 60, ("in_a_row", "drifting")[i % 2]) for k in (0, 1))
        c = compare(a, b)
        answers.append(answer_of(against_baseline(c, 0.0)))
        if (c.step_alone.interval or (0, 1))[1] > 0.02:
            assert answer_of(against_baseline(c, 0.02)) != "same"
    assert answers.count("different") <= 2
    assert answers.count("cannot_tell") >= 30  # nobody can tell a slowdown of nothing


def alternating(seed: int, n: int, wait: float = 0.3, ready: float = 0.005) -> dict[str, np.ndarray]:
    """Four workers that deliver together: one long wait, then three batches that are ready."""
    r = np.random.default_rng(seed)
    burst = np.arange(n) % 4 == seed % 4
    waits = np.where(burst, wait, ready) * (1 + 0.08 * r.normal(size=n))
    return {"fetch_wait": waits, "forward": 0.01 * (1 + 0.02 * r.normal(size=n))}


def test_a_gate_sees_runs_whose_steps_alternate() -> None:
    """Single steps vary by a factor of 20; four of them together by a few percent."""
    base = side_of("base", report_of(alternating(1, 200)))
    for seed in range(2, 22):
        same = compare(base, side_of("same", report_of(alternating(seed, 200))))
        assert same.block % 4 == 0
        assert not same.difference
        assert answer_of(against_baseline(same, 0.10)) == "same"
        slow = compare(base, side_of("slow", report_of(alternating(seed, 200, wait=0.39))))
        assert answer_of(against_baseline(slow, 0.10)) == "different"
    fast = compare(base, side_of("fast", report_of(alternating(3, 200, wait=0.02))))
    assert fast.answer == "different"
    assert fast.step_changed


def test_a_gate_that_cannot_see_does_not_open(tmp_path: Path) -> None:
    r = np.random.default_rng(5)
    files = []
    for name in ("a", "b"):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps(report_of({"forward": 0.03 * np.exp(0.2 * r.normal(size=40))})))
    code, output = check(files[1], "--baseline", files[0], "--max-regression", "5%")
    assert code == 1, output
    assert "cannot tell" in output
    assert "detecting a change of 5.0 % would take about " in output
    assert "steps, or several runs" in output
    code, output = check(files[1], "--baseline", files[0], "--max-regression", "5%", "--json")
    answer = json.loads(output)
    assert (answer["ok"], answer["answer"], answer["checks"][0]["answer"]) == (
        False,
        "cannot_tell",
        "cannot_tell",
    )
    assert answer["comparison"]["answer"] == "cannot_tell"
    assert answer["comparison"]["steps_needed"] > 40


def test_what_is_added_between_the_steps_is_a_regression() -> None:
    """The steps are equal; the second run evaluates half as long as it trains."""
    steps = {"forward": 0.03 * (1 + 0.01 * np.random.default_rng(1).normal(size=200))}

    def run(name: str, evaluation: float) -> Side:
        pieces = {"steady": 6.0, "evaluation": evaluation, "outside": 0.1}
        return side_of(name, report_of(steps, **{k: {"seconds": v, "share": 0.0} for k, v in pieces.items()}))

    c = compare(run("a", 0.0), run("b", 3.0))
    assert (c.answer, c.changed_parts, c.step_changed) == ("different", ["evaluation"], False)
    assert headline(c).startswith("B is slower by 49.2 % as a whole, because of evaluation: ")
    failed = [x for x in against_baseline(c, 0.05) if not x.ok]
    assert [x.name for x in failed] == ["run"]
    assert answer_of(against_baseline(compare(run("a", 3.0), run("b", 0.0)), 0.05)) == "same"
    assert not compare(run("a", 3.0), run("b", 3.1)).difference


def test_the_end_of_a_process_is_no_regression_unless_it_takes_seconds_longer() -> None:
    """Workers and the interpreter end at different speeds: seen with equal programs on a busy machine."""
    steps = {"forward": 0.03 * (1 + 0.01 * np.random.default_rng(1).normal(size=200))}

    def run(between: float, after: float) -> Side:
        outside = {"seconds": between + after, "between_s": between, "after_s": after}
        rest = {"steady": {"seconds": 6.0}, "evaluation": {"seconds": 0.0}}
        return side_of("run", report_of(steps, outside=outside, **rest))

    assert compare(run(0.1, 0.8), run(0.1, 1.3)).answer == "same"
    assert compare(run(0.1, 0.8), run(0.1, 4.0)).changed_parts == ["outside"]
    assert compare(run(0.1, 0.8), run(0.7, 0.8)).changed_parts == ["outside"]


def test_each_stage_can_have_a_limit() -> None:
    a, b = noisy_run(1, 300, "independent"), noisy_run(2, 300, "independent", {"read": 1.3})
    checks = against_baseline(compare(a, b), 0.10, 0.10)
    assert [c.name for c in checks if not c.ok] == ["read"]
