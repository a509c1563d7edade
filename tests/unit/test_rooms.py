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


# Functions and variables outside classes and functions: their lines begin at the margin.
DECLARED = re.compile(r"^[a-zA-Z][^\n;{}()=]*[ *&](\w+)(?:\([^;{}]*\)[^;{}()]*)?;", re.MULTILINE)
DEFINED = re.compile(
    r"^(?!extern )[a-zA-Z_][^\n;{}()=]*[ *&](\w+)(?:\([^;{}]*\)[^;{}()]*\{|\{|;| = |\[)", re.MULTILINE
)
NOT_CODE = re.compile(r"//.*|__attribute__\(\(.*?\)\)\)? ?")


def _names(pattern: re.Pattern[str], source: Path) -> set[str]:
    return set(pattern.findall(NOT_CODE.sub("", source.read_text())))


def test_what_a_header_declares_is_defined_in_its_room() -> None:
    """Otherwise the header depends on a room to its right, and no include shows it."""
    homes: dict[str, set[str]] = {}
    for source in (s for s in _sources() if s.suffix == ".cpp" and _room(s) in FLOW[1:]):
        for name in _names(DEFINED, source):
            homes.setdefault(name, set()).add(_room(source))
    headers = [s for s in _sources() if s.suffix == ".hpp" and _room(s) in FLOW[1:]]
    declared = {(name, header) for header in headers for name in _names(DECLARED, header) if name in homes}
    assert len(declared) > 200  # the patterns still see the code
    wrong = {
        f"{h.relative_to(NATIVE)}: {name}": homes[name] for name, h in declared if _room(h) not in homes[name]
    }
    assert wrong == {}


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


# A local static that is not constant is made on first use, under a guard that stays locked in a forked child.
MADE_ON_FIRST_USE = re.compile(
    r"^[ ]+static (?!constexpr |std::atomic|inline |thread_local )"
    r"[^;(){}=]*?(\w+)(?:\[\])?(?:;|\{| = (?!\"))",
    re.MULTILINE,
)


def test_nothing_that_the_writer_uses_is_made_on_first_use() -> None:
    """A fork while the writer makes it would leave the child waiting for a thread that it does not have."""
    found = {
        f"{source.relative_to(NATIVE)}: {name}"
        for source in _sources()
        if _room(source) in {"format", "record", "write"} or source.name == "counters.cpp"
        for name in MADE_ON_FIRST_USE.findall(source.read_text())
    }
    at_load = {"record/sanitizer.hpp: there"}  # by `g_careful` of session/fork.cpp
    before_the_writer = {
        "format/stage.cpp: rules": "stage_rules(",
        "record/descriptors.cpp: can": "can_have_own_descriptors()",
        "write/line.cpp: all": "make_line_tables()",
    }
    assert found == at_load | before_the_writer.keys()
    start = (NATIVE / "session" / "writer_thread.cpp").read_text().partition("bool start_writer_thread(")[2]
    before = start.partition("start_quiet_thread(")[0]
    for made in before_the_writer.values():
        assert f"  {made}" in before
