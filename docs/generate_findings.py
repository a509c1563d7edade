"""Writes docs/findings.md from the catalogue of findings and the thresholds.

python docs/generate_findings.py            rewrite it
python docs/generate_findings.py --check    exit 1 if it is not fresh
"""

from __future__ import annotations

import sys
from pathlib import Path

from dftracer.analyze.say.catalog import KINDS, ADVICE_TABLE
from dftracer.analyze.thresholds import FINDING_SHARE, HIGH_PERCENT, LOW_PERCENT, MEDIUM_PERCENT

PAGE = Path(__file__).resolve().parent / "findings.md"

HEAD = f"""# Findings

What `dftracer report` can say about a run. This page is generated from the catalogue in the code
(`src/dftracer/analyze/say/catalog.py`, the numbers in `thresholds.py`) by `python docs/generate_findings.py`.

`seconds` of a finding is what a perfect fix would save; its share of the run sets the severity: `high` from
{HIGH_PERCENT:.0f} %, `medium` from {MEDIUM_PERCENT:.0f} %, `low` from {LOW_PERCENT:.0f} %, otherwise `info`.
Findings that cost less than {100 * FINDING_SHARE:.0f} % of the run are not reported. The most expensive comes
first. Seconds are compared to two digits; if two findings are about equal, the more specific one comes
first, in the order of this page, and a specific finding that explains most of a general one comes before it.
Each cause is one finding: its other effects (slow steps, too few workers) are its `symptoms`. With few
steps or items the confidence is lower.
"""

ADVICE = """## What to try, by case

Advice is given only where it fits. This is the whole table, read top to bottom: the first row of a kind whose case
holds. Kinds are parts of the verdict; `input.*` is waiting for data by what takes most of it, `straggler.*` a late rank by
the stage in which it is late.

| kind | case | try |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for kind in KINDS:
        parts.append(
            f"## `{kind.id}`\n{kind.meaning}\n\n"
            f"- Reported when: {kind.reported_when}.\n- Evidence: {kind.evidence}.\n- Try: {kind.advice}\n"
        )
    rows = [f"| `{row.kind}` | {row.case} | {row.advice} |" for row in ADVICE_TABLE]
    return "\n".join([*parts, ADVICE + "\n".join(rows) + "\n"])


def main() -> int:
    """Write or check."""
    fresh = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/findings.md is not fresh; run python docs/generate_findings.py")
        return 1
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
