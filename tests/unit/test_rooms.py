"""The native rooms form one flow: a file includes only its own room and those to the left of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# Left to right; the headers in `native/` itself are the leftmost room.
FLOW = ("", "format", "record", "write", "intercept", "session", "module")
# Readers of finished traces: they know the format and nothing of the recorder.
READERS = ("load", "link")
INCLUDE = re.compile(r'^\s*#include\s+"([^"]+)"', re.MULTILINE)


def _room(path: Path) -> str:
    parts = path.relative_to(NATIVE).parts
    return parts[0] if len(parts) > 1 else ""


def _sources() -> list[Path]:
    return sorted(p for p in NATIVE.rglob("*") if p.suffix in {".cpp", ".hpp", ".def"} and not _foreign(p))


def _foreign(path: Path) -> bool:
    return "third_party" in path.relative_to(NATIVE).parts


def _included(source: Path) -> list[Path]:
    found = []
    for name in INCLUDE.findall(source.read_text()):
        places = [NATIVE / name, source.parent / name]
        target = next((p for p in places if p.is_file()), None)
        assert target is not None, f"{source.relative_to(NATIVE)} includes {name}: no room has it"
        found.append(target)
    return found


@pytest.mark.parametrize("source", _sources(), ids=lambda p: str(p.relative_to(NATIVE)))
def test_includes_go_left(source: Path) -> None:
    room = _room(source)
    allowed = {"", "format", room} if room in READERS else set(FLOW[: FLOW.index(room) + 1])
    wrong = [str(t.relative_to(NATIVE)) for t in _included(source) if _room(t) not in allowed]
    assert not wrong, f"{source.relative_to(NATIVE)} includes {', '.join(wrong)}"


def test_every_folder_is_a_room() -> None:
    assert {p.name for p in NATIVE.iterdir() if p.is_dir()} == {*FLOW[1:], *READERS, "third_party"}


def test_one_style() -> None:
    """Integers without `std::`, casts between numbers like constructors, nullptr for null."""
    numbers = r"size_t|u?int\d+_t|int|unsigned|char|double|Py_ssize_t"
    unlike = re.compile(rf"std::(?:size_t|u?int\d+_t)\b|static_cast<(?:{numbers})>|\W(?:NULL|typedef)\b")
    found = {str(s.relative_to(NATIVE)): unlike.findall(s.read_text()) for s in _sources()}
    assert {name: hits for name, hits in found.items() if hits} == {}


def test_python_is_seen_through_one_header() -> None:
    seen = [str(s.relative_to(NATIVE)) for s in _sources() if "<Python.h>" in s.read_text()]
    assert seen == ["python.hpp"]
