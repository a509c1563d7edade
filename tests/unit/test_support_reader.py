"""The reader of the tests is strict: each kind of damage fails."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from support.trace import read_directory, read_file
from support.tree import assert_nested, parent

GOOD = '{"id":1,"name":"a","cat":"c","pid":1,"tid":1,"ts":10,"dur":5,"ph":"X","args":{"p_idx":-1,"level":1}}'
CHILD = '{"id":2,"name":"b","cat":"c","pid":1,"tid":1,"ts":11,"dur":3,"ph":"X","args":{"p_idx":1,"level":2}}'


def _write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.pfw", "t.pfw.gz"])
def test_good_files(name: str, tmp_path: Path) -> None:
    """Both spellings, closed or cut after a record."""
    file = read_file(_write(tmp_path / name, f"[\n{GOOD}\n{CHILD}\n]\n"))
    assert file.closed
    assert [e.name for e in file.events] == ["a", "b"]
    trace = read_directory(tmp_path)
    assert parent(trace, trace.one("b")) == trace.one("a")
    assert_nested(trace)
    assert not read_file(_write(tmp_path / name, f"[\n{GOOD}\n")).closed


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD}\n]\n",
        f"[\n{GOOD}\n{GOOD}\n]\n",
        f"[\n{GOOD},\n]\n",
        f"[\n{GOOD[:-5]}\n]\n",
        f"[\n{GOOD}",
        "[\n" + GOOD.replace('"dur":5', '"dur":NaN') + "\n]\n",
        "[\n" + GOOD.replace('"level":1', '"level":1,"level":2') + "\n]\n",
        "[\n" + GOOD.replace('"name":"a"', '"name":"a\tb"') + "\n]\n",
        f"[\n\n{GOOD}\n]\n",
        "[\n3\n]\n",
    ],
    ids=[
        "no bracket",
        "id twice",
        "comma",
        "cut record",
        "cut line",
        "NaN",
        "key twice",
        "raw tab",
        "blank line",
        "no object",
    ],
)
def test_damage(text: str, tmp_path: Path) -> None:
    """A single fault anywhere is an error."""
    with pytest.raises((AssertionError, json.JSONDecodeError)):
        read_file(_write(tmp_path / "t.pfw", text))


def test_damaged_gzip(tmp_path: Path) -> None:
    """A cut member, or bytes after the last one."""
    data = gzip.compress(f"[\n{GOOD}\n]\n".encode())
    for broken in (data[:-3], data + b"xx"):
        (tmp_path / "t.pfw.gz").write_bytes(broken)
        with pytest.raises((AssertionError, EOFError, OSError)):
            read_file(tmp_path / "t.pfw.gz")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"dur":3', '"dur":9'), ('"ts":11', '"ts":9'), ('"level":2', '"level":1'), ('"p_idx":1', '"p_idx":7')],
)
def test_wrong_nesting(old: str, new: str, tmp_path: Path) -> None:
    """A child outside of its parent, on a wrong level, or of an unknown one."""
    _write(tmp_path / "t.pfw", f"[\n{GOOD}\n{CHILD.replace(old, new)}\n]\n")
    with pytest.raises(AssertionError):
        assert_nested(read_directory(tmp_path))
