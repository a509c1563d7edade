"""Nobody outside of the two homes of the format spells a record or the header of a member."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEYS = "id|name|cat|pid|tid|ts|dur|ph|args|hhash|p_idx|level|fhash"
# A key as it stands in a line of text, the arguments that every record has, the bytes of a gzip member.
PYTHON = re.compile(rf'"(?:{KEYS})":[^\s]|"(?:hhash|p_idx)":|\\x1f\\x8b|struct\.Struct\("<IIIIQQ|\("M", 4\)')
NATIVE = re.compile(
    rf'\\"(?:{KEYS})\\":|\("(?:hhash|p_idx|fhash)"|== "(?:hhash|p_idx|fhash)"|\\x1f\\x8b|0x1f\b'
)
FOREIGN = {
    "src/dftracer/link/execution_trace.py": "reads torch's execution trace",
    "src/dftracer/link/timeline.py": "writes the JSON of Chrome's viewer, whose keys are the same",
    "native/module/values.cpp": '"args" there is an argument of the user',
}


def _found(pattern: re.Pattern[str], folder: str, suffixes: set[str]) -> dict[str, list[str]]:
    sources = [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in suffixes]
    assert len(sources) > 50
    found = {}
    for source in sources:
        name = source.relative_to(ROOT).as_posix()
        if "third_party" not in source.parts and not name.startswith(f"{folder}/format/"):
            found[name] = pattern.findall(source.read_text(encoding="utf-8"))
    return {name: hits for name, hits in found.items() if hits and name not in FOREIGN}


@pytest.mark.parametrize(
    ("pattern", "folder", "suffixes"),
    [(PYTHON, "src/dftracer", {".py"}), (NATIVE, "native", {".cpp", ".hpp", ".def"})],
    ids=["python", "native"],
)
def test_only_the_homes_spell_the_format(pattern: re.Pattern[str], folder: str, suffixes: set[str]) -> None:
    assert _found(pattern, folder, suffixes) == {}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (PYTHON, """f'{{"id":{n},"name":"read"'"""),
        (PYTHON, '{"hhash": host}'),
        (PYTHON, r'b"\x1f\x8b"'),
        (NATIVE, r'out += ",\"dur\":";'),
        (NATIVE, "head[0] == 0x1f"),
        (NATIVE, 'case key("hhash")'),
    ],
)
def test_a_spelling_is_noticed(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)
