"""COMPARE: two or more runs side by side, and limits that a run must meet."""

from dftracer.analyze import _requires  # noqa: F401 - names the extra before a bare ImportError can
from dftracer.compare.as_json import to_json
from dftracer.compare.comparison import Comparison, compare, compare_all
from dftracer.compare.markdown import markdown
from dftracer.compare.page import html_page
from dftracer.compare.side import NotComparable, Side, is_report, read_report, side_of
from dftracer.compare.terminal import print_comparison

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
