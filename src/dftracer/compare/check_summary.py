"""The answer of `dftracer check` for people, for a job summary, and as JUnit XML for test reports."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from dftracer._units import plural
from dftracer.compare.checks import Check
from dftracer.compare.markdown import plain

__all__ = ["check_junit", "check_lines", "check_markdown", "headline_of"]

# Characters that XML 1.0 cannot contain, escaped or not.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def headline_of(run: str, checks: list[Check]) -> str:
    failed = [c for c in checks if not c.ok]
    if failed and all(c.cannot_tell for c in failed):
        return f"{run}: cannot tell in {len(failed)} of {plural(len(checks), 'check')}."
    if failed:
        return f"{run} fails {len(failed)} of {plural(len(checks), 'check')}."
    return f"{run} passes {'its check' if len(checks) == 1 else f'all {len(checks)} checks'}."


def check_lines(run: str, checks: list[Check]) -> list[str]:
    """Failures first."""
    out = [headline_of(run, checks)]
    for c in sorted(checks, key=lambda c: c.ok):
        out.append(f"  {'ok    ' if c.ok else 'UNSURE' if c.cannot_tell else 'FAILED'}  {c.reason}")
        out += [f"          {line}" for line in c.details]
    return out


def check_markdown(run: str, checks: list[Check], notes: list[str]) -> str:
    mark = "❌" if any(not c.ok for c in checks) else "✅"
    lines = [f"### {mark} {plain(headline_of(run, checks))}", "", "| | check | result |", "|---|---|---|"]
    for c in sorted(checks, key=lambda c: c.ok):
        lines.append(f"| {'✅' if c.ok else '❌'} | {plain(c.name)} | {plain(c.reason)} |")
    details = [f"- {plain(line)}" for c in checks for line in c.details]
    lines += ["", *details] if details else []
    lines += ["", *(f"{plain(note)}\n" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def check_junit(run: str, checks: list[Check]) -> str:
    """One test case for each check."""
    failed = sum(not c.ok for c in checks)
    counts = {"tests": str(len(checks)), "failures": str(failed), "errors": "0", "skipped": "0"}
    root = ElementTree.Element("testsuites", {"name": "dftracer check", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(run), **counts, "time": "0"})
    for c in checks:
        case = ElementTree.SubElement(
            suite, "testcase", {"classname": "dftracer.check", "name": _xml(c.name), "time": "0"}
        )
        if c.ok:
            ElementTree.SubElement(case, "system-out").text = _xml(c.reason)
        else:
            told = ElementTree.SubElement(case, "failure", {"message": _xml(c.reason), "type": "limit"})
            told.text = _xml("\n".join([c.reason, *c.details]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _xml(text: str) -> str:
    return _NO_XML.sub(lambda m: m[0].encode("unicode_escape", "surrogatepass").decode(), text)
