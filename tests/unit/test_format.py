"""The one home of the trace format: its readers agree, and its tables are those of the recorder."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dftracer import _config_file
from dftracer.format import io_calls, reader
from dftracer.format.members import ROW_FLAGS, gzip_member, member_index
from dftracer.format.reader import read_trace
from dftracer.format.records import string_hash
from dftracer.format.trace_names import NoTraces, find_files, find_traces
from dftracer.load import Trace
from dftracer.testing.synthetic import Process

ROOT = Path(__file__).resolve().parents[2]


def test_the_roles_of_io_calls_are_fresh() -> None:
    path = ROOT / "native" / "format" / "io_call_roles.py"
    spec = importlib.util.spec_from_file_location("io_call_roles", path)
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert maker.TARGET.read_text(encoding="utf-8") == maker.module(), (
        "run: python native/format/io_call_roles.py"
    )


def test_the_flags_of_step_rows_are_the_recorders() -> None:
    text = (ROOT / "native" / "format" / "step_row.hpp").read_text(encoding="utf-8")
    native = {
        re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(): int(value)
        for name, value in re.findall(r"^  kRow(\w+) = (\d+),", text, re.M)
    }
    assert native == ROW_FLAGS


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *(
            (n, "read")
            for n in ("read", "pread64", "__read_chk", "fread_unlocked", "preadv64v2", "fgets", "READ")
        ),
        *((n, "write") for n in ("write", "pwrite64", "fwrite", "fprintf", "__fprintf_chk", "writev")),
        *((n, "open") for n in ("open", "open64", "openat64", "fopen64", "creat", "fdopen")),
        *(
            (n, "metadata")
            for n in ("readdir", "readlink", "opendir", "lseek64", "__xstat64", "mmap", "ftruncate64")
        ),
        *((n, "process") for n in ("fork", "waitpid", "posix_spawn", "execve")),
        ("fclose", "close"),
        ("sendfile64", "transfer"),
        ("fsync", "sync"),
        ("something else", "metadata"),
    ],
)
def test_calls_are_known_by_any_of_their_symbols(name: str, role: str) -> None:
    assert io_calls.role_of(name) == role
    result = (io_calls.is_read, io_calls.is_write, io_calls.is_open, io_calls.is_metadata)
    expected = [role == r for r in ("read", "write", "open")] + [role in ("metadata", "sync")]
    assert [f(name) for f in result] == expected


def test_all_readers_find_the_same_files(tmp_path: Path) -> None:
    """Hidden files and folders, unfinished files, pipes and folders of a trace's name are no traces."""
    for folder in ("a", ".hidden", "deep/er"):
        (tmp_path / folder).mkdir(parents=True)
        Process(7, rank=0).write(tmp_path / folder, "t")
    (tmp_path / "folder.pfw").mkdir()
    os.mkfifo(tmp_path / "pipe.pfw")
    for name in (".t.pfw", "t.tmp.pfw.gz", ".dftracer-1-0.part", "t.pfw.gz.original"):
        (tmp_path / name).write_bytes(b"[\n")
    (tmp_path / os.fsdecode(b"\xff\xfe.pfw")).write_bytes(b"[\n")
    wanted = sorted(["a/t.pfw.gz", "deep/er/t.pfw.gz", os.fsdecode(b"\xff\xfe.pfw")])
    assert sorted(str(p.relative_to(tmp_path)) for p in find_files(tmp_path)) == wanted
    assert sorted(os.path.relpath(p, tmp_path) for p in find_traces(tmp_path)) == wanted
    assert sorted(str(p.relative_to(tmp_path)) for p in Trace(tmp_path).files) == wanted
    with pytest.raises(NoTraces, match="regular"):
        find_files(tmp_path / "pipe.pfw")
    with pytest.raises(NoTraces, match="exist"):
        find_files("a\0b")


def test_a_file_with_several_names_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links, other spellings, and what is left by a process that is killed while its file is renamed."""
    file = Process(7, rank=0).write(tmp_path, "t")
    (tmp_path / "t-0123456789abcdef-app.pfw.gz").hardlink_to(file)
    (tmp_path / "latest.pfw.gz").symlink_to(file)
    monkeypatch.chdir(tmp_path)
    for given in (tmp_path, [file, tmp_path], [".", str(tmp_path), "./t.pfw.gz"]):
        assert len(find_files(given)) == len(find_traces(given)) == 1
        assert len(read_trace(given).records) == len(read_trace(file).records)
    other = Process(8, rank=1).write(tmp_path, "u")
    assert {p.stat().st_ino for p in find_files(tmp_path)} == {file.stat().st_ino, other.stat().st_ino}


def test_a_line_beyond_the_limit_is_left_out_by_both_readers(tmp_path: Path) -> None:
    before = '{"id":1,"name":"a","cat":"c","pid":7,"tid":7,"ts":10,"dur":5,"ph":"X","args":{}}\n'
    long = before.replace('"a"', '"' + "x" * (reader.LINE_LIMIT + 10) + '"')
    data = ("[\n" + before + long + before + "]\n").encode()
    for name, content in (
        ("plain.pfw", data),
        ("member.pfw.gz", gzip_member(data, 5, 10, 10)),
    ):
        (tmp_path / name).write_bytes(content)
        read = read_trace(tmp_path / name)
        assert len(read.records) == 2
        assert read.problems.skipped == {"longer than 16 MiB": 1}
        trace = Trace(tmp_path / name)
        assert sum(chunk.rows for _, _, chunk in trace.chunks()) == 2
        assert trace.processes[0].counts["bad_lines"] == 1


def test_the_index_of_a_member_holds_any_time(tmp_path: Path) -> None:
    index = member_index(gzip_member(b"x", 1, -5, 1 << 80)[:64])
    assert index is not None
    assert (index.first_ts, index.last_ts) == (0, (1 << 64) - 1)


def test_hashes_of_names_that_are_no_text() -> None:
    assert len(string_hash(os.fsdecode(b"/data/\xff"))) == 16


@pytest.mark.parametrize("aliases", [1, 9])
def test_aliases_in_settings_are_refused(tmp_path: Path, aliases: int) -> None:
    """Nine levels of ten would be a billion values."""
    lines = ["a0: &a0 x"]
    for level in range(1, aliases + 1):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    path = tmp_path / "settings.yaml"
    path.write_text("\n".join([*lines, f"log_file: *a{aliases}"]), encoding="utf-8")
    mistakes: list[str] = []
    assert list(_config_file.read(str(path), {"log_file": None}, mistakes.append, mistakes.append)) == []
    assert len(mistakes) == 1
    assert "malformed" in mistakes[0]


def test_the_format_needs_the_standard_library_only() -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('numpy', 'polars', 'pyarrow', 'rich', 'msgspec'):\n"
        "            raise ImportError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import pkgutil, importlib, dftracer.format\n"
        "for m in pkgutil.iter_modules(dftracer.format.__path__):\n"
        "    importlib.import_module('dftracer.format.' + m.name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
