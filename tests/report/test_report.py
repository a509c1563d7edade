"""The report's forms agree with each other."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dftracer.analyze import STAGES, Analysis, analyze, frames
from dftracer.report import SCHEMA, document, html_page, markdown, print_report
from dftracer.testing.synthetic import Process, training_run


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(training_run(tmp_path_factory.mktemp("run"), events=20_000, ranks=2, workers=2).directory)


def test_the_document_is_json_and_its_steps_add_up(analysis: Analysis) -> None:
    result = json.loads(json.dumps(document(analysis)))
    assert result["schema"] == SCHEMA
    for rank, stages in result["ledger"]["ranks"].items():
        rows = [s for s in result["ledger"]["steps"] if s["rank"] == int(rank)]
        assert sum(stages.values()) == pytest.approx(sum(r["wall_s"] for r in rows), abs=1e-3)
        for stage in STAGES:
            assert stages[stage] == pytest.approx(sum(r["stages"][stage] for r in rows), abs=1e-3)


def test_terminal_and_markdown_say_the_verdict(analysis: Analysis) -> None:
    out = io.StringIO()
    print_report(analysis, Console(file=out, width=100))
    assert analysis.verdict.split(":")[0] in out.getvalue()
    assert markdown(analysis).startswith(f"**{analysis.verdict}**")


def test_an_empty_trace_has_a_report_too(tmp_path: Path) -> None:
    Process(5).write(tmp_path)
    a = analyze(tmp_path)
    out = io.StringIO()
    print_report(a, Console(file=out, width=100))
    assert "did no training" in out.getvalue()
    assert document(a)["ledger"]["total"]["forward"] == 0
    assert "<html" in html_page(a)


def test_views_are_tables_that_agree(analysis: Analysis) -> None:
    job = analysis.job
    steps, epochs, ranks = frames.steps(job), frames.epochs(job), frames.ranks(job)
    assert steps.height == sum(len(r.main.steps) for r in job.ranks)
    assert epochs["wall_s"].sum() == pytest.approx(steps["wall_s"].sum())
    assert ranks["wall_s"].sum() == pytest.approx(steps["wall_s"].sum())
    files, folders, sizes, over_time = (
        frames.files(job),
        frames.directories(job),
        frames.file_sizes(job),
        frames.io_over_time(job, 1.0),
    )
    assert files is not None
    assert folders is not None
    assert sizes is not None
    assert over_time is not None
    assert (
        files["read_bytes"].sum()
        == folders["read_bytes"].sum()
        == sizes["bytes"].sum()
        == over_time["read_bytes"].sum()
    )
    assert files["ops"].sum() == over_time["ops"].sum()
    assert frames.workers(job).height == 4
    assert frames.threads(job)["events"].sum() == analysis.trace_facts["events"] - 2 * 6  # less start and end
    busy = frames.concurrency(job, 50)
    assert all(busy["worker"] <= 4 + 1e-9)


def test_samples_of_own_code_are_a_table_and_a_flame_graph(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    at = 0
    for step in range(10):
        begun = at
        at = p.step(step, at, 1_000, 99_000)
        log: dict[str, Any] = {
            "where": "log train.py:81",
            "stack": "main train.py:9;fit train.py:40;log train.py:81",
        }
        p.span("sample", "own_code", begun + 1_000, 30_000, **log)
        p.span(
            "sample",
            "own_code",
            begun + 31_000,
            10_000,
            where="fit train.py:44",
            stack="main train.py:9;fit train.py:44",
        )
    p.write(tmp_path)
    a = analyze(tmp_path)
    result = document(a)["own_code"]
    assert [(place["where"], place["seconds"]) for place in result["places"]] == [
        ("log train.py:81", pytest.approx(0.3)),
        ("fit train.py:44", pytest.approx(0.1)),
    ]
    (main,) = result["flame"]["children"]
    assert main["name"] == "main train.py:9"
    assert main["seconds"] == pytest.approx(0.4)
    assert [child["name"] for child in main["children"]] == ["fit train.py:40", "fit train.py:44"]
    out = io.StringIO()
    print_report(a, Console(file=out, width=100))
    assert "log train.py:81" in out.getvalue()
    assert "log train.py:81" in html_page(a)
