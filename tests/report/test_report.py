"""The report's forms agree with each other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from dftracer.analyze import STAGES, Analysis, analyze, views
from dftracer.load.synthetic import Process, training_run
from dftracer.report import SCHEMA, document, html_page, markdown, print_report


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return analyze(training_run(tmp_path_factory.mktemp("run"), events=20_000, ranks=2, workers=2).directory)


def test_the_document_is_json_and_its_steps_add_up(analysis: Analysis) -> None:
    told = json.loads(json.dumps(document(analysis)))
    assert told["schema"] == SCHEMA
    for rank, stages in told["ledger"]["ranks"].items():
        rows = [s for s in told["ledger"]["steps"] if s["rank"] == int(rank)]
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
    assert "trained nothing" in out.getvalue()
    assert document(a)["ledger"]["total"]["forward"] == 0
    assert "<html" in html_page(a)


def test_views_are_tables_that_agree(analysis: Analysis) -> None:
    job = analysis.job
    steps, epochs, ranks = views.steps(job), views.epochs(job), views.ranks(job)
    assert steps.height == sum(len(r.main.steps) for r in job.ranks)
    assert epochs["wall_s"].sum() == pytest.approx(steps["wall_s"].sum())
    assert ranks["wall_s"].sum() == pytest.approx(steps["wall_s"].sum())
    files, folders, sizes, over_time = (
        views.files(job),
        views.directories(job),
        views.file_sizes(job),
        views.io_over_time(job, 1.0),
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
    assert views.workers(job).height == 4
    assert views.threads(job)["events"].sum() == analysis.trace_facts["events"] - 2 * 6  # less start and end
    busy = views.concurrency(job, 50)
    assert all(busy["worker"] <= 4 + 1e-9)
