"""The reference pages of the command, of the events and of the report match the program."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from dftracer.analyze import FINDING_IDS, STAGES, analyze
from dftracer.load.arrow import schema
from dftracer.report import document
from dftracer.testing.synthetic import training_run

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_of_the_command_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == generator.page(), (
        "run: python docs/generate_cli.py"
    )


def test_every_column_of_events_is_documented() -> None:
    text = (DOCS / "api-analysis.md").read_text(encoding="utf-8")
    assert [c for c in schema().names if f"`{c}`" not in text] == []


def test_every_key_of_the_report_is_documented(tmp_path: Path) -> None:
    text = (DOCS / "report.md").read_text(encoding="utf-8")
    result = document(analyze(training_run(tmp_path, events=3000).directory))
    keys = {
        *result,
        *result["trace"],
        *result["ledger"],
        *result["findings"][0],
        *result["names"][0],
        *result["files"][0],
    }
    keys |= {*result["files"][0], *result["workers"][0], *result["ledger"]["steps"][0], *STAGES, *FINDING_IDS}
    missing = sorted(k for k in keys if not re.search(rf"\b{k}\b", text))
    assert missing == []
