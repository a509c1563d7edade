"""`dftracer compare` from traces to every form of output."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import analyze
from dftracer.analyze.ledger import MAX_STEPS
from dftracer.cli.main import main as command
from dftracer.compare import compare, side_of
from dftracer.report import document
from dftracer.testing.synthetic import Process, training_run
from support import commands
from support.noisy_runs import noisy_times


def write_run(
    folder: Path,
    seed: int,
    slower: dict[str, float] | None = None,
    steps: int = 120,
    late_rank: int | None = None,
    ranks: int = 1,
) -> Path:
    """A trace of noisy steps; with several ranks they meet at the end of each backward pass."""
    folder.mkdir(parents=True)
    times = [
        {
            k: np.round(1e6 * v).astype(int)
            for k, v in noisy_times(
                10 * seed + r, steps, "in_a_row", slower if late_rank in (None, r) else None
            ).items()
        }
        for r in range(ranks)
    ]
    record = {"value": f"run-{seed}", "start": 1_760_000_000_000_000 + seed, "command": "python train.py"}
    mains = [
        Process(100 + r, rank=r, world_size=ranks, run={**record, "host": "node0", "version": "3.0.0"})
        for r in range(ranks)
    ]
    t = 0
    for i in range(steps):
        own = [{k: int(v[i]) for k, v in x.items()} for x in times]
        before = [x["fetch_wait"] + x["read"] + x["preprocess"] + x["forward"] for x in own]
        met = max(b + x["backward"] for b, x in zip(before, own, strict=True))
        for main, x, done in zip(mains, own, before, strict=True):
            backward = met - done
            body = done - x["fetch_wait"] + backward + x["optimizer"]
            main.step(i + 1, t, x["fetch_wait"], body, epoch=0, step=i)
            at = t + x["fetch_wait"]
            main.io("read", at, x["read"], "/data/</script><script>alert(1)</script>", ret=1 << 20)
            at += x["read"]
            main.span("data", "preprocess", at, x["preprocess"])
            main.span("compute", "forward", at + x["preprocess"], x["forward"])
            main.span("compute", "backward", t + done, backward)
            main.span("compute", "step", t + met, x["optimizer"])
        t += met + max(x["optimizer"] for x in own)
    for main in mains:
        main.write(folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    return {
        "a": write_run(base / "a", 1),
        "same": write_run(base / "same", 2),
        "slow": write_run(base / "slow", 3, {"preprocess": 1.5}),
        "short": write_run(base / "short", 4, steps=6),
    }


def dftracer(*args: object, ok: int = 0, **env: str) -> str:
    ran = commands.dftracer(*args, env=env)
    assert ran.returncode == ok, ran.stdout + ran.stderr
    return ran.stderr if ok == 2 else ran.stdout


def test_equal_runs_and_a_slower_stage(runs: dict[str, Path]) -> None:
    same = json.loads(dftracer("compare", runs["a"], runs["same"], "--json"))
    assert same["difference"] is False
    assert same["changed"] == []
    assert "No difference: " in dftracer("compare", runs["a"], runs["same"])
    slow = json.loads(dftracer("compare", runs["a"], runs["slow"], "--json"))
    assert slow["difference"] is True
    assert slow["changed"] == ["preprocess"]
    for entry in (slow["step"], *slow["stages"].values()):
        assert set(entry) == {"a_s", "b_s", "change", "interval"}
    low, high = slow["stages"]["preprocess"]["interval"]
    assert low < 0.5 < high
    steps = analyze(runs["a"]).job.ranks[0]
    steady = steps.main.steps.steady
    assert slow["step"]["a_s"] == pytest.approx(np.median(steps.wall_us[steady]) / 1e6)
    assert slow["stages"]["forward"]["a_s"] == pytest.approx(
        np.median(steps.stage_us("forward")[steady]) / 1e6
    )
    text = dftracer("compare", runs["a"], runs["slow"], COLUMNS="60")
    assert "B is slower by " in text
    assert max(map(len, text.splitlines())) <= 60
    assert slow["io"]["read_bytes_per_step"] == {"a": 1 << 20, "b": 1 << 20, "change": 0.0}


def test_a_saved_report_says_the_same_as_its_trace(runs: dict[str, Path], tmp_path: Path) -> None:
    saved = tmp_path / "a.json"
    dftracer("report", runs["a"], "-o", saved)
    by_trace = json.loads(dftracer("compare", runs["a"], runs["slow"], "--json"))
    by_report = json.loads(dftracer("compare", saved, runs["slow"], "--json"))
    for each in (by_trace, by_report):
        each["runs"][0].pop("path")
    assert by_report == by_trace
    assert dftracer("compare", runs["a"], runs["slow"], "--json") == dftracer(
        "compare", runs["a"], runs["slow"], "--json"
    )


def test_what_cannot_be_compared_is_said(runs: dict[str, Path], tmp_path: Path) -> None:
    result = document(analyze(runs["a"]))
    old = tmp_path / "old.json"
    old.write_text(json.dumps({k: v for k, v in result.items() if k != "steady_steps"}))
    assert "was saved by an older dftracer" in dftracer("compare", old, runs["a"], ok=2)
    later = tmp_path / "later.json"
    later.write_text(json.dumps({**result, "schema": "dftracer.report/9"}))
    assert "a report of another version (dftracer.report/9)" in dftracer("compare", later, runs["a"], ok=2)
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(result)[:2000])
    assert "is truncated or damaged" in dftracer("compare", cut, runs["a"], ok=2)
    empty = tmp_path / "empty"
    empty.mkdir()
    Process(5).write(empty)
    assert "has no training step" in dftracer("compare", empty, runs["a"], ok=2)
    assert "give at least two runs" in dftracer("compare", runs["a"], ok=2)
    assert "the name must end in" in dftracer(
        "compare", runs["a"], runs["same"], "-o", tmp_path / "x.pdf", ok=2
    )
    few = json.loads(dftracer("compare", runs["a"], runs["short"], "--json"))
    assert few["enough_steps"] is False


def test_groups_of_runs(runs: dict[str, Path]) -> None:
    result = json.loads(
        dftracer("compare", "--json", runs["a"], runs["same"], "--", runs["slow"], runs["slow"])
    )
    assert [(r["name"], r["runs"]) for r in result["runs"]] == [("A", 2), ("B", 2)]
    assert result["answer"] == "different"
    assert result["changed"][0] == "preprocess"
    text = dftracer("compare", runs["a"], runs["same"], "--", runs["slow"])
    assert "2 runs" in text
    assert "both sides of --" in dftracer("compare", runs["a"], runs["same"], "--", ok=2)


def test_every_form_of_output(runs: dict[str, Path], tmp_path: Path) -> None:
    for ending, expected in (
        (".html", "<h1>B is slower by"),
        (".md", "**B is slower by"),
        (".json", '"changed": ['),
        (".txt", "B is slower by"),
    ):
        out = tmp_path / f"compare{ending}"
        dftracer("compare", runs["a"], runs["slow"], "-o", out)
        text = out.read_text(encoding="utf-8")
        assert expected in text
        assert "<script" not in text or ending != ".html"
    assert "exists; use -f" in dftracer(
        "compare", runs["a"], runs["slow"], "-o", tmp_path / "compare.md", ok=2
    )
    assert "**preprocess**" in dftracer("compare", runs["a"], runs["slow"], "--md")


def test_a_straggler_is_named_by_its_own_stage(tmp_path: Path) -> None:
    """Ranks that wait for the late one spend longer in their backward pass; that is not what changed."""
    a = write_run(tmp_path / "a", 5, ranks=3)
    same = write_run(tmp_path / "same", 6, ranks=3)
    late = write_run(tmp_path / "late", 7, {"forward": 2.0}, ranks=3, late_rank=2)
    sides = [side_of(p.name, document(analyze(p))) for p in (a, same, late)]
    assert compare(sides[0], sides[1]).changed == []
    assert compare(sides[0], sides[2]).changed[0] == "forward"


def test_a_long_run_is_kept_small(tmp_path: Path) -> None:
    """Of many steps a choice is kept, the same each time."""
    run = write_run(tmp_path / "long", 8, steps=MAX_STEPS + 500)
    result = document(analyze(run))
    kept = result["steady_steps"]
    assert kept["steps"] == MAX_STEPS + 499
    assert len(kept["wall_us"]) == len(kept["index"]) == MAX_STEPS
    assert sorted(set(kept["index"])) == kept["index"]
    assert document(analyze(run))["steady_steps"] == kept
    whole = analyze(run).job.ranks[0].wall_us
    assert np.median(kept["wall_us"]) == pytest.approx(np.median(whole), rel=0.01)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    first = enumerate(value[:1]) if isinstance(value, list) else ()
    inside = value.items() if isinstance(value, dict) else first
    for key, each in inside:
        yield (*at, key)
        yield from _places(each, (*at, key))


def test_a_saved_report_with_missing_or_wrong_keys_is_refused_or_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever it is damaged: one line and exit code 2, or the comparison without it."""
    run = training_run(tmp_path / "run", events=1500, ranks=2, workers=1)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    assert command(["report", str(run.directory), "--json", "-o", str(good)]) == 0
    text = good.read_text()
    wrong: list[Any] = ["x", [1], {"a": 1}, 1e308]
    codes = set()
    read = {
        "run",
        "run_s",
        "au",
        "samples_per_s",
        "steady",
        "steady_steps",
        "io",
        "findings",
        "model",
        "device",
    }
    for n, place in enumerate(p for p in _places(json.loads(text)) if p[0] in read or len(p) == 1):
        for value in (None, wrong[n % 4]):
            document = json.loads(text)
            holder = functools.reduce(lambda holder, key: holder[key], place[:-1], document)
            if value is None:
                del holder[place[-1]]
            else:
                holder[place[-1]] = value
            bad.write_text(json.dumps(document))
            for argv in (["compare", str(good), str(bad)], ["check", str(bad), "--baseline", str(good)]):
                capsys.readouterr()
                codes.add(code := command(argv))
                printed = capsys.readouterr().err
                assert code in {0, 1, 2}, (place, value, printed)
                assert code != 2 or printed.count("\n") == 1, printed
    assert 2 in codes
