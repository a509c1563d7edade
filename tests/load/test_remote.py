"""Traces that are not on this machine: what is fetched of them, and that it is read like local ones."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dftracer.cli.main import main
from dftracer.format.members import gzip_member
from dftracer.load import NoTraces, Trace
from dftracer.load.remote import is_url, origin
from dftracer.load.rows import COLUMNS, pack_rows
from dftracer.testing.synthetic import training_run


class CountingStore(MemoryFileSystem):  # type: ignore[misc]
    """A store that counts the bytes it hands out."""

    protocol = ("counting",)
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    handed_out = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("counting://", "memory://")))

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: object
    ) -> bytes:
        found = bytes(super().cat_file(path, start=start, end=end, **kwargs))
        CountingStore.handed_out += len(found)
        return found


fsspec.register_implementation("counting", CountingStore, clobber=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    CountingStore.store.clear()
    CountingStore.handed_out = 0
    yield
    CountingStore.store.clear()


def _stored(folder: Path, url: str) -> None:
    fs, root = fsspec.core.url_to_fs(url)
    for file in sorted(folder.glob("*.pfw.gz")):
        fs.pipe_file(f"{root}/{file.name}", file.read_bytes())


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    training_run(folder, ranks=2, events=4000)
    return folder


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_a_url() -> None:
    assert all(is_url(u) for u in ("s3://b/k", "gs://b", "hdfs://h:1/x", "https://h/x", "memory://x"))
    assert not any(is_url(u) for u in ("traces", "/a/b", "C:/x", "file:///a/b", "a:b", Path("s3://b")))


def test_the_same_events_as_the_local_files(job: Path) -> None:
    _stored(job, "counting://bucket/job")
    there, here = Trace("counting://bucket/job"), Trace(job)
    assert (
        there.sql("select count(*), sum(dur), min(ts) from events").rows()
        == here.sql("select count(*), sum(dur), min(ts) from events").rows()
    )
    assert sorted(p.rank or 0 for p in there.processes) == sorted(p.rank or 0 for p in here.processes)


def test_the_same_report(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _stored(job, "counting://bucket/job")
    result = [_json(capsys, "report", place) for place in ("counting://bucket/job", str(job))]
    ledgers = [each["ledger"] for each in result]
    assert ledgers[0] == ledgers[1]


def test_a_second_command_fetches_nothing(job: Path) -> None:
    _stored(job, "counting://bucket/job")
    Trace("counting://bucket/job")
    before = CountingStore.handed_out
    assert before > 0
    Trace("counting://bucket/job")
    assert CountingStore.handed_out == before


def test_a_file_that_changed_is_fetched_again_and_one_that_went_goes(job: Path) -> None:
    _stored(job, "counting://bucket/job")
    first = Trace("counting://bucket/job").files
    fs, root = fsspec.core.url_to_fs("counting://bucket/job")
    names = sorted(fs.find(root))
    fs.pipe_file(names[0], fs.cat_file(names[0]) + gzip_member(b'{"name":"x"}\n', 1, 0, 0))
    fs.rm_file(names[1])
    second = Trace("counting://bucket/job").files
    assert len(second) == len(first) - 1
    assert (Path(second[0]).parent / Path(names[0]).name).read_bytes() == fs.cat_file(names[0])


def _large(job: Path, megabytes: int) -> bytes:
    """A trace of that size, between the first and the last member of a real one."""
    text = min(job.glob("*.pfw.gz")).read_bytes()
    lines = gzip.decompress(text).splitlines(keepends=True)
    head, tail = b"".join(lines[:20]), b"".join(lines[-3:])
    # Of random digits, which do not compress.
    middle = b'{"id":9,"name":"%s","cat":"c","pid":1,"tid":1,"ts":5,"dur":1,"ph":"X","args":{}}\n'
    member = gzip_member(b"".join(middle % os.urandom(400).hex().encode() for _ in range(2400)), 2400, 5, 5)
    return (
        gzip_member(head, 20, 1, 1) + member * ((megabytes << 20) // len(member)) + gzip_member(tail, 3, 9, 9)
    )


def test_info_of_a_large_file_reads_its_ends_only(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fs, root = fsspec.core.url_to_fs("counting://bucket/large")
    name = "trace-0123456789abcdef-app.pfw.gz"
    fs.pipe_file(f"{root}/{name}", _large(job, 64))
    (result,) = _json(capsys, "info", "counting://bucket/large")["files"]
    assert CountingStore.handed_out <= 0.01 * (64 << 20)
    local = _json(capsys, "info", str(sorted(job.rglob("*.pfw.gz"))[0]))["files"][0]
    assert result["bytes"] == fs.info(f"{root}/{name}")["size"]
    assert result["file"] == f"counting://bucket/large/{name}"
    assert {k: result[k] for k in ("rank", "pid", "host", "command", "end", "problems")} == {
        k: local[k] for k in ("rank", "pid", "host", "command", "end", "problems")
    }
    assert result["records"] == (local["end"] or {}).get("num_events")


def test_runs_of_large_files_are_told_by_their_ends_and_step_rows(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fs, root = fsspec.core.url_to_fs("counting://bucket/large")
    stem = f"{root}/trace-0123456789abcdef-app"
    fs.pipe_file(f"{stem}.pfw.gz", _large(job, 64))
    (result,) = _json(capsys, "runs", "counting://bucket/large")
    assert CountingStore.handed_out <= 0.01 * (64 << 20)
    # What only events could tell is not known.
    assert (result["steps"], result["samples_per_s"], result["bound"]) == (None, None, None)
    assert result["path"] == "counting://bucket/large"
    table = np.zeros((50, len(COLUMNS)), np.int64)
    table[:, COLUMNS.index("wall_us")] = 2000
    table[:, COLUMNS.index("fetch_wait_us")] = 1500
    table[:, COLUMNS.index("forward_us")] = 500
    table[:, COLUMNS.index("samples")] = 8
    table[:, COLUMNS.index("step")] = range(50)
    table[:, COLUMNS.index("start_us")] = [1_000_000 + i * 2000 for i in range(50)]
    fs.pipe_file(f"{stem}.rows", pack_rows(table, {"run": result["run"]}))
    (result,) = _json(capsys, "runs", "counting://bucket/large")
    assert (result["steps"], result["samples_per_s"], result["bound"]) == (50, 4000, "input")


def test_one_file_by_its_url(job: Path) -> None:
    file = sorted(job.rglob("*.pfw.gz"))[0]
    fs, root = fsspec.core.url_to_fs("counting://bucket/one")
    fs.pipe_file(f"{root}/{file.name}", file.read_bytes())
    (found,) = Trace(f"counting://bucket/one/{file.name}").files
    assert found.read_bytes() == file.read_bytes()
    copied = origin(found)
    assert copied is not None
    assert copied.whole
    assert copied.size == file.stat().st_size


class _Files(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, with or without ranges, and counts."""

    ranges = True
    sent = 0

    def copyfile(self, source: Any, outputfile: Any) -> None:
        data = source.read()
        type(self).sent += len(data)
        outputfile.write(data)

    def send_head(self) -> Any:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not self.ranges or asked is None or not path.is_file():
            return super().send_head()
        data = path.read_bytes()
        start, end = int(asked[1]), min(int(asked[2]) + 1, path.stat().st_size)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        return io.BytesIO(data[start:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("ranges", [True, False])
def test_a_web_server(job: Path, tmp_path: Path, ranges: bool, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("aiohttp")
    site = tmp_path / "site"
    site.mkdir()
    (site / "trace-0123456789abcdef-app.pfw.gz").write_bytes(_large(job, 24))
    handler = type("Files", (_Files,), {"ranges": ranges})
    serve = functools.partial(handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        (result,) = _json(capsys, "info", url)["files"]
        if ranges:
            assert handler.sent <= 0.01 * (24 << 20)  # type: ignore[attr-defined]
        server.shutdown()
    assert result["bytes"] == (site / "trace-0123456789abcdef-app.pfw.gz").stat().st_size
    assert result["file"] == f"{url}trace-0123456789abcdef-app.pfw.gz"


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("counting://bucket/nothing", "does not exist"),
        ("nonsense://bucket/job", "nonsense"),
    ],
)
def test_what_is_not_there_is_one_line(url: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NoTraces, match=part):
        Trace(url)
    assert main(["info", url]) == 2
    output = capsys.readouterr().err
    assert part in output
    assert len(output.splitlines()) == 1


def test_files_outside_the_copy_are_not_written(job: Path) -> None:
    """A manifest is input from elsewhere."""
    fs, root = fsspec.core.url_to_fs("counting://bucket/evil")
    result = {"files": [{"name": f"../../{n}", "parts": []} for n in ("a.pfw", "b.pfw")]}
    fs.pipe_file(f"{root}/dftracer-manifest-host.json", json.dumps(result).encode())
    with pytest.raises(NoTraces):
        Trace("counting://bucket/evil")
