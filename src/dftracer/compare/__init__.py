"""COMPARE: two or more runs side by side, and limits that a run must meet."""

import dftracer.analyze  # noqa: F401 - names the extra before a bare ImportError can
from dftracer.compare.comparison import (
    Comparison,
    NotComparable,
    Side,
    compare,
    compare_all,
    is_report,
    read_report,
    side_of,
)
from dftracer.compare.showing import html_page, markdown, print_comparison, to_json

__all__ = [
    "Comparison",
    "NotComparable",
    "Side",
    "compare",
    "compare_all",
    "html_page",
    "is_report",
    "markdown",
    "print_comparison",
    "read_report",
    "side_of",
    "to_json",
]
