"""docs/performance.md and the figures of the README are what the saved results say."""

from __future__ import annotations

from bench import report
from bench.results import Results
from bench.rounds import ROOT


def test_the_performance_page_is_generated_from_the_saved_results() -> None:
    results = Results.load(ROOT / "bench" / "results.json")
    assert (ROOT / "docs" / "performance.md").read_text() == report.markdown(results)


def test_the_figures_of_the_readme_are_those_of_the_page() -> None:
    results = Results.load(ROOT / "bench" / "results.json")
    readme = (ROOT / "README.md").read_text()
    assert readme == report.with_figures(readme, results), "run: python -m bench --render"
