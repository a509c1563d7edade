"""Traces on their way to a store: nothing is lost, nothing arrives twice, whoever dies meanwhile."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from dftracer.cli import shipping
from dftracer.cli.main import main
from dftracer.cli.shipping import NOTE, Shipper
from dftracer.format.members import member_index
from dftracer.format.trace_names import find_files, find_rows
from dftracer.load import Trace
from dftracer.load.find import here as brought_here
from dftracer.load.rows import parse_rows, read_row_files
from dftracer.testing.synthetic import training_run
from support.process import clean_environment
from support.s3 import Front, environment, store

DFTRACER = [sys.executable, "-m", "dftracer.cli"]
# Whatever is final is sent at once, however little it is.
IMPATIENT = [
    sys.executable,
    "-c",
    "import sys; from dftracer.cli import main, shipping; shipping._PATIENCE_S = -1;"
    " shipping._ROWS_WORTH_SENDING = 0;"
    " sys.exit(main(sys.argv[1:]))",
]
TRAINS = """\
import itertools, sys, threading, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
for i in ai.dataloader.fetch.iter(itertools.count()):
    ai.update(step=i)
    with ai.compute.forward:
        time.sleep(0.002)
    if over.is_set():
        break
"""
SECRET = "hunter2-Zz9"
PROGRAM = """\
import sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)
for i in range(int(sys.argv[1])):
    with ai.compute.forward:
        pass
print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DFTRACER_SPOOL", str(tmp_path / "spool"))
    fsspec.filesystem("memory").store.clear()


def _local_bytes(directory: Path) -> dict[str, bytes]:
    files = [*find_files([directory]), *map(Path, find_rows([directory]))]
    return {str(f.relative_to(directory)): f.read_bytes() for f in files}


def _read_back(url: str) -> dict[str, bytes]:
    traces = Trace(url).files
    files = [*traces, *map(Path, find_rows(brought_here(url)))]
    folder = Path(os.path.commonpath([f.parent for f in files]))
    return {str(f.relative_to(folder)): f.read_bytes() for f in files}


# --- In memory: what is sent, and when


def test_everything_arrives_and_goes_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = tmp_path / "traces"
    training_run(here, events=4000)
    before = _local_bytes(here)
    assert main(["ship", str(here), "memory://bucket/job", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["files"], result["failures"], result["left"]) == (len(before), 0, [])
    assert result["bytes"] >= sum(map(len, before.values()))
    assert _read_back("memory://bucket/job") == before
    assert [p.name for p in here.iterdir()] == [NOTE]
    # A second time there is nothing to send, and nothing is forgotten.
    assert main(["ship", str(here), "memory://bucket/job"]) == 0
    assert _read_back("memory://bucket/job") == before


def test_kept_files_are_sent_once(tmp_path: Path) -> None:
    here = tmp_path / "traces"
    training_run(here, events=4000)
    before = _local_bytes(here)
    for _ in range(2):
        shipper = Shipper(here, "memory://bucket/job")
        assert shipper.finish(keep=True) is None
    assert shipper.sent_bytes == 0
    assert _local_bytes(here) == before
    training_run(here / "more", events=1000)
    assert main(["ship", "--keep", str(here), "memory://bucket/job"]) == 0
    assert _read_back("memory://bucket/job") == _local_bytes(here)


def test_a_lost_note_forgets_nothing(tmp_path: Path) -> None:
    """The manifest in the store is asked for by its name before it is replaced."""
    here = tmp_path / "traces"
    training_run(here, events=4000)
    before = _local_bytes(here)
    assert main(["ship", str(here), "memory://bucket/job"]) == 0
    (here / NOTE).unlink()
    training_run(here / "more", events=1000)
    later = {f"more/{name}": data for name, data in _local_bytes(here / "more").items()}
    assert main(["ship", str(here), "memory://bucket/job"]) == 0
    assert _read_back("memory://bucket/job") == before | later


def _end_of_a_member(data: bytes, number: int) -> int:
    at = 0
    for _ in range(number):
        index = member_index(data[at : at + 64])
        assert index is not None
        at += index.member_size
    return at


def test_a_file_that_was_renamed_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was sent whole, and one of which a part was sent; another file has their names since."""
    monkeypatch.setattr(shipping, "_PART", 1 << 13)
    here = tmp_path / "traces"
    training_run(here, events=8000, member_text=1 << 14)
    whole, half = find_files([here])[:2]
    all_of_it = half.read_bytes()
    half.write_bytes(all_of_it[: _end_of_a_member(all_of_it, 3)])
    assert Shipper(here, "memory://bucket/job").sweep(ended=True)
    for file in (whole, half):
        file.rename(file.with_name(f"aside-{file.name}"))
    with half.with_name(f"aside-{half.name}").open("r+b") as grown:
        grown.write(all_of_it)
    training_run(tmp_path / "other", events=3000)
    for file, other in zip((whole, half), find_files([tmp_path / "other"]), strict=False):
        file.write_bytes(other.read_bytes())
    before = _local_bytes(here)
    shipper = Shipper(here, "memory://bucket/job")
    assert shipper.sweep(ended=True)
    assert _read_back("memory://bucket/job") == before
    sent = [name for name, kept in shipper._note["files"].items() if "aside" in name]
    assert len(sent) == 2
    parts = [part for name in sent for part in shipper._note["files"][name]["parts"]]
    cut = _end_of_a_member(all_of_it, 3)
    assert {("aside" in part["object"], part["start"] >= cut) for part in parts} == {
        (False, False),
        (True, True),
    }


def test_a_new_file_of_a_name_that_was_sent_and_deleted_replaces_nothing(tmp_path: Path) -> None:
    here = tmp_path / "traces"
    expected: list[bytes] = []
    for events in (8000, 2000, 5000):  # shorter than the one before, and longer
        training_run(here, events=events)
        expected += _local_bytes(here).values()
        assert main(["ship", str(here), "memory://bucket/job"]) == 0
        assert not find_traces(here)
    assert sorted(_read_back("memory://bucket/job").values()) == sorted(expected)


def test_parts_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "_PART", 1 << 13)
    here = tmp_path / "traces"
    training_run(here, events=8000, member_text=1 << 14)
    training_run(here / "plain", events=2000, gz=False)
    before = _local_bytes(here)
    assert main(["ship", str(here), "memory://bucket/job"]) == 0
    objects = [p for p in fsspec.filesystem("memory").find("/bucket/job") if not p.endswith(".json")]
    assert len(objects) > 2 * len(before)
    assert _read_back("memory://bucket/job") == before


def test_a_part_that_was_not_noted_is_sent_again_under_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_PART", 1 << 13)
    here = tmp_path / "traces"
    training_run(here, events=8000, member_text=1 << 14)
    before = _local_bytes(here)
    note = Shipper._write_note
    calls = 0

    def dies(self: Shipper) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise KeyboardInterrupt
        note(self)

    monkeypatch.setattr(Shipper, "_write_note", dies)
    for _ in range(200):
        try:
            assert Shipper(here, "memory://bucket/job").finish(keep=True) is None
            break
        except KeyboardInterrupt:
            continue
    else:
        pytest.fail("it makes no progress")
    assert _read_back("memory://bucket/job") == before


def test_a_running_process_ships_what_is_final_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_PATIENCE_S", -1.0)
    here = tmp_path / "traces"
    program = (
        "import sys\nfrom dftracer.python import ai, dftracer\n"
        "log = dftracer.initialize_log(None, None, -1)\n"
        "for i in ai.dataloader.fetch.iter(range(20000)):\n    with ai.compute.forward: pass\n"
        "print('half', flush=True)\nsys.stdin.readline()\n"
        "for i in ai.dataloader.fetch.iter(range(20000)):\n    with ai.compute.forward: pass\n"
    )
    env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(here / "trace"))
    child = subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "half\n"
    shipper = Shipper(here, "memory://bucket/job")
    _until(lambda: bool(find_traces(here)))
    _until(lambda: any(len(parse_rows(f.read_bytes()).steps) >= 10_000 for f in here.glob("*.rows")))
    assert shipper.finish(keep=False) is None
    assert shipper.left  # its process is running
    assert find_files([here])
    (sent,) = read_row_files("memory://bucket/job")
    assert len(sent.steps) >= 10_000
    assert sent.damaged == 0
    child.stdin.write("\n")
    child.stdin.close()
    child.stdout.close()
    assert child.wait(120) == 0
    before = _local_bytes(here)
    shipper = Shipper(here, "memory://bucket/job")
    assert shipper.finish(keep=False) is None
    assert not shipper.left
    assert _read_back("memory://bucket/job") == before
    assert not list(here.glob("*.pfw*"))


def find_traces(here: Path) -> list[Path]:
    return list(here.glob("*.pfw*"))


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nowhere", "memory://b"], "nowhere does not exist"),
        ([".", "somewhere"], "is not a URL"),
        ([".", "nonsense://b"], "nonsense"),
    ],
)
def test_mistakes_are_one_line(words: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ship", *words]) == 2
    output = capsys.readouterr().err
    assert part in output
    assert len(output.splitlines()) == 1


def test_output_to_a_url_makes_no_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "traces"
    training_run(here, events=1000)
    monkeypatch.chdir(tmp_path)
    assert main(["merge", str(here), "-o", "s3://bucket/x.pfw.gz"]) == 2
    assert "dftracer ship" in capsys.readouterr().err
    assert not list(tmp_path.glob("s3:*"))


def test_a_log_file_in_a_store_waits_in_the_spool(tmp_path: Path) -> None:
    env = clean_environment(
        DFTRACER_ENABLE="1", DFTRACER_LOG_FILE="s3://bucket/../job/trace", DFTRACER_SPOOL=str(tmp_path / "sp")
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "10"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    folder = tmp_path / "sp" / "s3" / "bucket" / "__" / "job"
    assert len(find_files([folder])) == 1
    assert f"dftracer ship {folder} s3://bucket/../job" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["sp"]


@pytest.mark.thorough
def test_google_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcsfs itself, against an emulator; both are installed by hand: gcsfs, gcp-storage-emulator."""
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        here = tmp_path / "traces"
        training_run(here, events=4000)
        before = _local_bytes(here)
        assert main(["ship", str(here), "gs://bucket/job"]) == 0
        assert not find_traces(here)
        assert _read_back("gs://bucket/job") == before
        assert main(["report", "gs://bucket/job", "-q", "-o", str(tmp_path / "report.json")]) == 0
        assert main(["runs", "gs://bucket/"]) == 0
    finally:
        server.stop()


class _Hdfs(http.server.BaseHTTPRequestHandler):
    """HDFS's HTTP interface, as far as it is needed, over a directory.

    For contents the name node sends to a data node, which is the same server here.
    """

    root: ClassVar[Path]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _asked(self) -> tuple[Path, dict[str, str]]:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path).partition("/webhdfs/v1")[2]
        return self.root / path.lstrip("/"), dict(urllib.parse.parse_qsl(url.query))

    def _redirected(self, query: dict[str, str]) -> bool:
        if "datanode" in query:
            return False
        host = self.headers["Host"]
        self._answer(307, Location=f"http://{host}{self.path}&datanode=1")
        return True

    def do_GET(self) -> None:
        path, query = self._asked()
        if not path.exists():
            missing = {"exception": "FileNotFoundException", "message": f"{path} does not exist"}
            self._answer(404, json.dumps({"RemoteException": missing}).encode())
        elif query["op"] == "GETFILESTATUS":
            self._answer(200, json.dumps({"FileStatus": _hdfs_status(path, "")}).encode())
        elif query["op"] == "LISTSTATUS":
            inside = [_hdfs_status(each, each.name) for each in sorted(path.iterdir())]
            self._answer(200, json.dumps({"FileStatuses": {"FileStatus": inside}}).encode())
        elif query["op"] == "OPEN" and not self._redirected(query):
            data = path.read_bytes()[int(query.get("offset", 0)) :]
            self._answer(200, data[: int(query.get("length", len(data)))])

    def do_PUT(self) -> None:
        self._write("wb", 201)

    def do_POST(self) -> None:  # appends
        self._write("ab", 200)

    def _write(self, mode: str, code: int) -> None:
        path, query = self._asked()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._redirected(query):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open(mode) as file:
                file.write(body)
            self._answer(code)


def _hdfs_status(path: Path, name: str) -> dict[str, object]:
    kind = "DIRECTORY" if path.is_dir() else "FILE"
    size = 0 if path.is_dir() else path.stat().st_size
    changed = int(path.stat().st_mtime * 1000)
    return {"pathSuffix": name, "type": kind, "length": size, "modificationTime": changed}


def test_hdfs_over_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """fsspec's own client; the server is a stand-in, for there is no package of Hadoop's."""
    pytest.importorskip("requests")
    _Hdfs.root = tmp_path / "hdfs"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hdfs)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"webhdfs://127.0.0.1:{server.server_port}/jobs/one"
    try:
        here = tmp_path / "traces"
        training_run(here, events=4000)
        before = _local_bytes(here)
        assert main(["ship", str(here), url]) == 0
        assert not find_traces(here)
        assert _read_back(url) == before
        assert main(["report", url, "-q", "-o", str(tmp_path / "report.json")]) == 0
        capsys.readouterr()
        assert main(["runs", url, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["path"] == url  # which can be given to the next command
        assert main(["info", f"{url}/missing"]) == 2
    finally:
        server.shutdown()
        server.server_close()


def test_a_store_whose_client_is_missing_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow.fs")
    code = main(["info", "hdfs://nowhere:1/x"])
    output = capsys.readouterr().err
    if code != 3:
        pytest.skip("Hadoop's client is installed here")
    assert "libhdfs" in output
    assert "pydftracer[remote]" in output
    assert len(output) < 400
    assert len(output.splitlines()) == 1


# --- Against a server


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with store() as port:
        yield port


def _run(port: int, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment(**environment(port))
    return subprocess.run(
        [*DFTRACER, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )


def test_run_to_s3(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["run", "-o", "s3://bucket/one", "--", sys.executable, str(program), "500", "--password", SECRET]
    done = _run(server, tmp_path, *words)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "next: dftracer report s3://bucket/one" in done.stderr
    # Nothing is left, and nothing is named like the URL.
    assert not [p for p in (tmp_path / "spool").rglob("*") if p.is_file()]
    assert not list(tmp_path.glob("s3:*"))
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    trace = Trace("s3://bucket/one")
    assert trace.sql("select count(*) from events where name = 'forward'").item() == 500
    texts = [gzip.decompress(f.read_bytes()) for f in trace.files]
    assert all(SECRET.encode() not in text for text in texts)
    assert any(b"--password [redacted]" in text for text in texts)


def test_with_a_dead_store_everything_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("s3fs")
    here = tmp_path / "traces"
    training_run(here, events=1000)
    before = _local_bytes(here)
    for name, value in environment(9).items():  # nobody listens there
        monkeypatch.setenv(name, value)
    shipper = Shipper(here, "s3://bucket/dead")
    problem = shipper.finish(keep=False, patience_s=0.0)
    assert problem is not None
    assert shipper.failures > 0
    assert _local_bytes(here) == before
    assert len(shipper.left) == len(before)


def _ship_through_deaths(server: int, tmp_path: Path, kills: int, front_dies: bool) -> None:
    here = tmp_path / "traces"
    training_run(here, events=20_000, ranks=2, workers=2)
    before = _local_bytes(here)
    trains = subprocess.Popen(
        [sys.executable, "-c", TRAINS],
        env=clean_environment(DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(here / "live" / "trace")),
        stdin=subprocess.PIPE,
    )
    _until(lambda: any((here / "live").glob("*.rows")))
    front = Front(server, 0.5, tmp_path / "requests")
    front.start()
    url = f"s3://bucket/deaths-{kills}-{int(front_dies)}"
    env = clean_environment(**environment(front.port))
    command = [*IMPATIENT, "ship", str(here), url]
    try:
        killed = 0
        while killed < kills:
            parts = _parts_noted(here)
            child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Somewhere in the middle: after it has made some progress.
            _until(lambda: _parts_noted(here) > parts or child.poll() is not None)  # noqa: B023
            if front_dies:
                front.kill()
            child.send_signal(signal.SIGKILL)
            child.wait()
            killed += 1
            if front_dies:
                front.start()
        _until(lambda: _parts_noted(here, ".rows") > 1 or _shipped(command, env))
        trains.communicate(timeout=100)
        before |= {f"live/{name}": data for name, data in _local_bytes(here / "live").items()}
        for _ in range(10):
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        front.kill()
        trains.kill()
        trains.wait()
    assert not find_traces(here)
    assert _parts_noted(here, ".rows") > 1  # while it was running
    asked = front.log.read_text().splitlines()
    assert {line.split()[0] for line in asked} == {"GET", "HEAD", "PUT"}
    assert not [line for line in asked if "list-type" in line or "?prefix" in line]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(server).items():
            patch.setenv(name, value)
        assert _read_back(url) == before
        (rows,) = read_row_files(url)
    assert rows.column("step").tolist() == list(range(len(rows.steps)))


def _shipped(command: list[str], env: dict[str, str]) -> bool:
    """Sends once more; the answer is never that this was enough."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr
    return False


def _parts_noted(here: Path, suffix: str = "") -> int:
    try:
        note = json.loads((here / NOTE).read_text())
    except (OSError, ValueError):
        return 0
    return sum(len(each["parts"]) for name, each in note["files"].items() if name.endswith(suffix))


def test_half_of_the_requests_refused_and_the_sender_killed(server: int, tmp_path: Path) -> None:
    _ship_through_deaths(server, tmp_path, kills=2, front_dies=False)


@pytest.mark.thorough
def test_half_of_the_requests_refused_and_both_sides_killed_ten_times(server: int, tmp_path: Path) -> None:
    _ship_through_deaths(server, tmp_path, kills=10, front_dies=True)
