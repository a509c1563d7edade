"""The server: its address, who may ask, how it ends, what it keeps."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFORMANCE = Path(__file__).parents[1] / "data" / "conformance"
PATHS = ("", "static/app.js", "api/state", "api/picture", "nothing/here", "favicon.ico")


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        return e.code, e.read()


def test_the_printed_address_is_the_page_itself(server: Any) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", server.url)

    class Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            raise AssertionError("redirected")

    with urllib.request.build_opener(Straight).open(server.url, timeout=60) as answer:
        assert answer.status == 200
        assert "set-cookie" not in answer.headers
        assert b"<title>dftracer view</title>" in answer.read()
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_told_without_the_token(server: Any, path: str) -> None:
    for query in ("", "?token=", "?token=wrong", f"?{server.query}&token=x", f"?{server.query}x"):
        status, body = get(f"{server.base}{path}{query}")
        assert status == 403, (path, query)
        assert b"403" in body


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org:{port}", "localhost", "evil:{port}", ""]
)
def test_foreign_hosts_are_refused(server: Any, host: str) -> None:
    port = server.base.rpartition(":")[2].strip("/")
    assert server.fetch("", {"Host": host.format(port=port)})[0] == 403
    assert server.fetch("api/state", {"Host": host.format(port=port)})[0] == 403


@pytest.mark.parametrize("origin", ["http://example.org", "null", "https://127.0.0.1:1", "http://localhost"])
def test_foreign_origins_are_refused(server: Any, origin: str) -> None:
    assert server.fetch("", {"Origin": origin})[0] == 403
    assert server.fetch("api/state", {"Origin": origin})[0] == 403


def test_the_own_host_and_origin_are_welcome(server: Any) -> None:
    own = server.base.rstrip("/")
    assert server.fetch("api/state", {"Origin": own})[0] == 200
    port = own.rpartition(":")[2]
    assert server.fetch("api/state", {"Host": f"localhost:{port}"})[0] == 200


def test_it_listens_on_loopback_only(server: Any) -> None:
    port = int(server.base.rpartition(":")[2].strip("/"))
    listening = f"{port:04X}"
    found = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{listening}") and line.split()[3] == "0A"
    ]
    assert found == [f"0100007F:{listening}"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start: Callable[..., Any], job: Path, how: signal.Signals) -> None:
    server = start(job)
    assert server.fetch("")[0] == 200
    server.process.send_signal(how)
    assert server.process.wait(30) == 0
    assert server.process.stderr.read().strip() == "Press Ctrl-C to stop."


def test_a_port_can_be_chosen_and_one_in_use_is_named(start: Callable[..., Any], job: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert f":{port}/" in start(job, "--port", str(port)).url
    second = start(job, "--port", str(port))
    assert second.url == ""
    assert second.process.wait(30) == 2
    assert f"port {port} is in use" in second.process.stderr.read()


def _view(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dftracer.cli", "view", *map(str, arguments), "--no-open"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)


def test_without_a_trace_it_says_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, expected in (
        ([empty], "no .pfw"),
        ([tmp_path / "missing"], "missing"),
        ([empty] * 3, "two"),
    ):
        done = _view(*arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert expected in done.stderr
        assert "Traceback" not in done.stderr


def test_a_missing_package_is_named_with_its_extra(job: Path, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no uvicorn', name='uvicorn')\n")
    done = _view(job, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 3
    assert "uvicorn" in done.stderr
    assert "pydftracer[view]" in done.stderr


def test_the_trace_directory_is_left_alone_and_changes_are_seen(
    start: Callable[..., Any], job: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "job"
    shutil.copytree(job, copy)
    before = sorted(p.name for p in copy.rglob("*"))
    first = start(copy).ready().json("run", run=0)["events"]
    assert sorted(p.name for p in copy.rglob("*")) == before
    start(copy).ready()
    next(copy.glob("*-app.pfw.gz")).unlink()
    assert start(copy).ready().json("run", run=0)["events"] < first


def test_bad_questions_get_an_answer_not_an_error(server: Any) -> None:
    for path, query, expected in (
        ("api/picture", {}, 404),
        ("api/picture", {"t0": 5, "t1": 1, "w": 10, "rows": "0"}, 400),
        ("api/picture", {"t0": 0, "t1": 9, "w": 10, "rows": "99999"}, 404),
        ("api/picture", {"t0": 0, "t1": 9, "w": "x", "rows": "0"}, 400),
        ("api/event", {"part": 0, "span": 1 << 40}, 404),
        ("api/event", {"part": 99, "span": 0}, 404),
        ("api/run", {"run": 7}, 404),
        ("static/../app.py", {}, 404),
        ("static/index.html", {}, 404),
    ):
        assert server.fetch(path, **query)[0] == expected, (path, query)


def test_rows_can_be_asked_for_in_runs(server: Any) -> None:
    window = {"t0": 0, "t1": 10**8, "w": 500}
    one_by_one = server.fetch("api/picture", **window, rows="0,1,2,3,7,9,10")
    assert one_by_one[0] == 200
    assert server.fetch("api/picture", **window, rows="0-3,7,9-10") == one_by_one


def test_names_that_are_no_text_reach_the_page(start: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "odd-0000000000000001-app.pfw"
    record = (
        r'{"id":1,"name":"bad \ud800 ' + "\xff" + r'","cat":"user","pid":7,"tid":7,"ts":1760000000000000,'
        r'"dur":9,"ph":"X","args":{"x":"\ud800"}}'
    )
    file.write_bytes(b"[\n" + record.encode("latin-1") + b"\n]\n")
    server = start(tmp_path).ready()
    about = server.json("run", run=0)
    assert about["events"] == 1
    found = server.json("search", run=0, q="bad")
    assert found["total"] == 1
    assert json.dumps(server.json("event", run=0, part=0, span=0))


@pytest.mark.parametrize(
    "asked",
    [
        "at?row=0&t=inf&reach=1",
        "at?row=0&t=1&reach=nan",
        "picture?t0=0&t1=inf&w=9&rows=0",
    ],
)
def test_numbers_that_are_no_times_are_a_bad_request(server: Any, asked: str) -> None:
    status, body = get(f"{server.base}api/{asked}&{server.query}")
    assert status == 400, body
    assert body.startswith(b"bad request")


def test_a_list_of_many_ranges_is_bounded(server: Any) -> None:
    """Three thousand ranges of all rows: they are the same rows, and no more than there can be."""
    before = _peak(server.process.pid)
    ranges = ",".join(["0-9999999"] * 3000)
    get(f"{server.base}api/list?t0=0&t1=1000000&rows={ranges}&{server.query}")
    assert _peak(server.process.pid) - before < 200


def _peak(pid: int) -> float:
    """Of a process's memory, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    ("variant", "events", "name"),
    [
        ("complete", 9, "open64"),
        ("counters", 5, "forward"),
        ("entities", 3, "predict"),
        ("seconds", 4, "predict"),
        ("selective", 5, "forward"),
    ],
)
def test_files_of_the_newest_dftracer(
    variant: str, events: int, name: str, start: Callable[..., Any], tmp_path: Path
) -> None:
    """No brackets, numbers as `ph`, sums instead of events; plain and as one stream of gzip."""
    file = CONFORMANCE / f"{variant}.pfw"
    if variant == "complete":
        trace = Path(shutil.copy(file, tmp_path))
    else:
        trace = tmp_path / f"{variant}.pfw.gz"
        trace.write_bytes(gzip.compress(file.read_bytes()))
    server = start(trace).ready()
    assert server.json("run", run=0)["events"] == events
    assert server.json("search", run=0, q=name)["total"] == 1


@pytest.mark.parametrize("variant", ["aggregated", "interval"])
def test_files_with_nothing_but_sums(variant: str, start: Callable[..., Any]) -> None:
    """Nothing says when within an interval the calls ran, so there is no picture; the page says so."""
    server = start(CONFORMANCE / f"{variant}.pfw")
    deadline = time.monotonic() + 120
    while not (error := server.json("state")["runs"][0]["error"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert error.endswith("or only sums of calls, which `dftracer report` shows")


def test_no_variant_of_the_newest_dftracer_is_left_out() -> None:
    (drawn,) = test_files_of_the_newest_dftracer.pytestmark
    (sums,) = test_files_with_nothing_but_sums.pytestmark
    tested = {case[0] for case in drawn.args[1]} | {*sums.args[1]}
    assert tested == {path.stem for path in CONFORMANCE.glob("*.pfw")}
