"""SHOW: an analysis as JSON, on the terminal, as one HTML file, and as Markdown."""

from dftracer.report.document import SCHEMA, document
from dftracer.report.head import head
from dftracer.report.html import html_page
from dftracer.report.markdown import markdown
from dftracer.report.terminal import print_report

__all__ = ["SCHEMA", "document", "head", "html_page", "markdown", "print_report"]
