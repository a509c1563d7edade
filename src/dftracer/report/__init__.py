"""SHOW: an analysis as JSON, on the terminal, as one HTML file, and as Markdown."""

from dftracer.report.contents import SCHEMA, document, head
from dftracer.report.html import html_page
from dftracer.report.terminal import markdown, print_report

__all__ = ["SCHEMA", "document", "head", "html_page", "markdown", "print_report"]
