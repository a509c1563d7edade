"""Metrics of a running training, as real receivers see them."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import importlib
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer import _config, _session
from dftracer.metrics._exporter import wanted
from dftracer.metrics._figures import Figures, labels
from dftracer.metrics._targets import address, exposition
from support.process import clean_environment
from support.trace import read_directory

ANNOTATED = """\
import os, sys, time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(None, None, -1)

def steps(n):
    for i in ai.dataloader.fetch.iter(range(n)):
        with ai.compute:
            with ai.compute.forward:
                time.sleep(0.001)
            with ai.compute.backward:
                time.sleep(0.001)

def wait():
    print("ready", flush=True)
    sys.stdin.readline()

"""
TORCH = """\
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 78
    def __getitem__(self, i): return torch.full((4,), float(i))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in DataLoader(Numbers(), batch_size=8, num_workers=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
with torch.no_grad():
    for batch in DataLoader(Numbers(), batch_size=8, num_workers=1):
        model(batch)
"""
FAMILIES = {
    "dftracer_step_seconds",
    "dftracer_steps_total",
    "dftracer_samples_total",
    "dftracer_stage_seconds_total",
    "dftracer_last_step_timestamp_seconds",
    "dftracer_goodput_ratio",
    "dftracer_dropped_events_total",
    "dftracer_running",
}
_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)")


def _environment(tmp_path: Path, metrics: str, **more: str) -> dict[str, str]:
    return clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_LOG_FILE=str(tmp_path / "traces" / "trace"),
        DFTRACER_METRICS=metrics,
        DFTRACER_METRICS_MS="100",
        **more,
    )


def _run(tmp_path: Path, program: str, metrics: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=_environment(tmp_path, metrics, **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


@contextlib.contextmanager
def _waiting(tmp_path: Path, program: str, metrics: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The program once it is ready; it goes on when its input is closed."""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=_environment(tmp_path, metrics, **more),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
        child.stdin.close()
        assert child.wait(120) == 0
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def _values(text: str) -> dict[str, float]:
    """Each sample by its name, the stage behind it."""
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            stage = re.search(r'stage="(\w+)"', found[2])
            out[found[1] + (f"/{stage[1]}" if stage else "")] = float(found[3])
    return out


def _check_figures(values: dict[str, float], steps: int) -> None:
    assert values["dftracer_steps_total"] == values["dftracer_step_seconds_count"] == steps
    stages = sum(v for name, v in values.items() if name.startswith("dftracer_stage_seconds_total/"))
    assert stages == pytest.approx(values["dftracer_step_seconds_sum"], abs=1e-5)
    assert 0 < values["dftracer_goodput_ratio"] <= 1
    assert values["dftracer_dropped_events_total"] == 0


def _free_port(in_a_row: int = 1) -> int:
    """The first of so many: below those that the system hands to clients, which come and go."""
    while True:
        first = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + in_a_row):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def _get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def _metrics_of_rank(port: int) -> dict[str, float]:
    """What is served once the first step is known."""
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError):
            return _values(_get(port)[1])
        assert time.monotonic() < until
        time.sleep(0.05)


# --- Prometheus


def test_text_file(tmp_path: Path) -> None:
    before = time.time()
    _run(tmp_path, ANNOTATED + "steps(30)", f"textfile:{tmp_path}/out/m.prom", DFTRACER_RUN_NAME='a "b"\\')
    text = (tmp_path / "out" / "m.prom").read_text()
    values = _values(text)
    _check_figures(values, 30)
    assert values["dftracer_stage_seconds_total/forward"] >= 30 * 0.001
    assert before <= values["dftracer_last_step_timestamp_seconds"] <= time.time()
    assert values["dftracer_running"] == 0
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == FAMILIES
    assert r'{job="a \"b\"\\",run="' in text
    assert 'rank="0"' in text
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["m.prom"]


@pytest.mark.parametrize(("place", "name"), [("m.prom", "m-3.prom"), ("d/", "d/dftracer-job7-3.prom")])
def test_every_rank_has_a_text_file(tmp_path: Path, place: str, name: str) -> None:
    ranks = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "DFTRACER_RUN": "job7"}
    _run(tmp_path, ANNOTATED + "steps(5)", f"textfile:{tmp_path}/{place}", **ranks)
    assert 'run="job7",rank="3"' in (tmp_path / name).read_text()


def test_scrapes(tmp_path: Path) -> None:
    port = _free_port()
    program = ANNOTATED + "steps(20); wait(); steps(10)"
    with _waiting(tmp_path, program, f"prometheus:{port}"):
        first = _metrics_of_rank(port)
        assert first["dftracer_running"] == 1
        until = time.monotonic() + 120
        while first["dftracer_steps_total"] < 20:  # the writer looks for them now and then
            assert time.monotonic() < until
            first = _metrics_of_rank(port)
        _check_figures(first, 20)
        assert _get(port, "/other")[0] == 404
        assert _get(port, "/metrics", "POST")[0] == 405
        assert _get(port, "/metrics", "HEAD") == (200, "")
        # One that sends nothing does not keep the others out for long.
        with socket.create_connection(("127.0.0.1", port)):
            assert _get(port)[0] == 200
    with pytest.raises(OSError, match="refused"):
        _get(port)
    reported = [
        r.raw["args"]["value"]
        for r in read_directory(tmp_path / "traces").records
        if r.name == "CM" and r.raw["args"]["name"] == "metrics.prometheus"
    ]
    assert reported == [f"127.0.0.1:{port}"]


def test_ranks_of_a_host_have_ports_of_their_own(tmp_path: Path) -> None:
    port = _free_port(in_a_row=3)
    with contextlib.ExitStack() as stack:
        for rank in (0, 1):
            environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
            program = ANNOTATED + f"steps({10 + rank}); wait()"
            stack.enter_context(_waiting(tmp_path, program, f"prometheus:{port}", **environment))
        _metrics_of_rank(port)
        _metrics_of_rank(port + 1)
        assert 'rank="0"' in _get(port)[1]
        assert 'rank="1"' in _get(port + 1)[1]
        # Another job on the same host takes the next port that is free.
        stack.enter_context(_waiting(tmp_path, ANNOTATED + "steps(5); wait()", f"prometheus:{port}"))
        _metrics_of_rank(port + 2)


def test_a_forked_child_does_not_hold_the_port(tmp_path: Path) -> None:
    port = _free_port()
    program = ANNOTATED + (
        "steps(5)\n"
        "import http.client\n"
        "def answers():\n"
        "    client = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]))\n"
        "    try: client.request('GET', '/')\n"
        "    except OSError: return False\n"
        "    return True\n"
        "while not answers(): time.sleep(0.01)\n"
        "gone, tell = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.close(tell); os.read(gone, 1)\n"
        "    print('refused' if not answers() else 'answered', flush=True)\n"
        "    os._exit(0)\n"
        "dftracer.get_instance().finalize()\n"
        "os.close(tell); os.wait()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(port)],
        env=_environment(tmp_path, f"prometheus:{port}"),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "refused\n"


@pytest.mark.parametrize(
    ("where", "meant"),
    [
        ("", ("127.0.0.1", 9464)),
        ("9500", ("127.0.0.1", 9500)),
        ("0.0.0.0:9500", ("0.0.0.0", 9500)),
        ("[::]:9500", ("::", 9500)),
        ("localhost:", ("localhost", 9464)),
    ],
)
def test_addresses(where: str, meant: tuple[str, int]) -> None:
    assert address(where) == meant


def test_what_data_and_checkpoints_take_is_no_progress() -> None:
    stages = {"forward": 1.0, "preprocess": 0.5, "fetch_wait": 0.5, "checkpoint": 0.5}
    assert Figures(7, 56, 2.5, stages, None, 6, 1.7e9, 5.0, 0).goodput == pytest.approx(0.2)


def test_promtool_finds_nothing_wrong() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    figures = Figures(7, 56, 1.5, {"forward": 1.0, "fetch_wait": 0.5}, 0.7, 6, 1.7e9, 10.0, 0)
    text = exposition(figures, {"job": 'a "b"\\\n', "run": "r", "rank": "0"})
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("file", ["alerts.yml", "alerts-test.yml"])
def test_alert_rules(file: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    folder = Path(__file__).parents[2] / "docs" / "assets" / "metrics"
    words = ["test", "rules"] if file.endswith("-test.yml") else ["check", "rules"]
    done = subprocess.run([promtool, *words, file], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_what_is_exported(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "docs" / "assets" / "metrics"
    board = json.loads((folder / "grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in re.findall(r"dftracer_\w+", expr)}
    exported = {
        name + end for name in (*FAMILIES, "dftracer_device_busy_ratio") for end in ("", "_sum", "_count")
    }
    assert names <= exported
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(asked)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    words = [promtool, "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


THREE_RANKS = """\
import os, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank = dist.get_rank()

class Numbers(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, i):
        time.sleep(0.06 if rank == 1 else 0.035)
        return torch.full((4,), float(i))

model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in DataLoader(Numbers(), batch_size=2):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    go_on = torch.tensor([float(not os.path.exists("enough"))])
    dist.broadcast(go_on, 0)
    if not go_on.item():
        break
while not os.path.exists("end"):
    time.sleep(0.1)
dist.barrier()
dist.destroy_process_group()
"""


class _Prometheus:
    """A server that scrapes these ports every second and evaluates the alert rules."""

    def __init__(self, folder: Path, ports: list[int], rules: Path) -> None:
        self._port = _free_port()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [
                {
                    "job_name": "training",
                    "honor_labels": True,
                    "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}],
                }
            ],
            "rule_files": [str(rules)],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder}/prometheus.yml", "--log.level=error"),
                *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{self._port}"),
            ]
        )

    def api(self, path: str, **query: str) -> Any:
        """What it answers."""
        status, text = _get(self._port, f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
        assert status == 200, text
        return json.loads(text)["data"]

    def values(self, expression: str) -> dict[tuple[str, ...], float]:
        """Of an expression, now; by rank or stage where there are any."""
        return {
            tuple(each["metric"][label] for label in ("rank", "stage") if label in each["metric"]): float(
                each["value"][1]
            )
            for each in self.api("query", query=expression)["result"]
        }

    def until(self, expression: str, true: Callable[[dict[tuple[str, ...], float]], bool]) -> None:
        deadline = time.monotonic() + 240
        found: object = None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, AssertionError):  # it starts
                if true(found := self.values(expression)):
                    return
            time.sleep(0.5)
        raise AssertionError(f"{expression}: {found}")


@pytest.mark.thorough
def test_a_real_prometheus_answers_the_dashboard_and_the_alerts(tmp_path: Path) -> None:
    """Three ranks, the second slow to make its batches; every expression of the documentation is asked."""
    pytest.importorskip("torch")
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    (tmp_path / "train.py").write_text(THREE_RANKS)
    folder = Path(__file__).parents[2] / "docs" / "assets" / "metrics"
    first = _free_port(in_a_row=3)
    ports = [first, first + 1, first + 2]
    with contextlib.ExitStack() as stack:
        job = subprocess.Popen(
            [
                *(sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(tmp_path / "traces")),
                *("--name", "numbers", "--", sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "3", "train.py"),
            ],
            cwd=tmp_path,
            env=clean_environment(OMP_NUM_THREADS="1", DFTRACER_METRICS=f"prometheus:{first}"),
        )
        stack.callback(job.wait)
        stack.callback(job.terminate)
        server = _Prometheus(tmp_path, ports, folder / "alerts.yml")
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)

        server.until(
            "count_over_time(dftracer_steps_total[5m]) > 5 and dftracer_steps_total > 20",
            lambda found: set(found) == {("0",), ("1",), ("2",)},
        )
        (tmp_path / "enough").touch()
        server.until("max_over_time(deriv(dftracer_steps_total[5s])[5s:1s])", lambda found: len(found) == 3)
        server.until("changes(dftracer_steps_total[6s])", lambda found: set(found.values()) == {0})
        _check_dashboard(server, json.loads((folder / "grafana.json").read_text()))
        _check_alerts(server)
        scraped = [_values(_get(port)[1])["dftracer_steps_total"] for port in ports]
        assert list(server.values("dftracer_steps_total").values()) == scraped
        (tmp_path / "end").touch()
        assert job.wait(240) == 0
        server.until("up", lambda found: set(found.values()) == {0})


def _check_dashboard(server: _Prometheus, board: dict[str, Any]) -> None:
    """As Grafana would ask: first for the values of its variables, then with them."""
    chosen: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", _filled(variable["query"]["query"], chosen))
            assert asked is not None
            values = server.api(f"label/{asked[2]}/values", **{"match[]": asked[1]})
            assert values
            chosen[variable["name"]] = f"({'|'.join(values)})"
    assert chosen["job"] == "(numbers)"
    assert chosen["rank"] == "(0|1|2)"
    found = {
        panel["title"]: server.values(_filled(target["expr"], chosen))
        for panel in board["panels"]
        for target in panel["targets"]
    }
    assert [title for title, values in found.items() if not values] == ["Device busy"]  # there is none here
    # Each rate is extrapolated on its own to the edges of its window.
    assert sum(found["Where the time of a step goes"].values()) == pytest.approx(1, rel=0.05)
    own = next(values for title, values in found.items() if title.startswith("Own work by rank"))
    assert max(own, key=lambda rank: own[rank]) == ("1",)
    assert found["Dropped events"] == {(): 0}


def _check_alerts(server: _Prometheus) -> None:
    rules = {rule["name"]: rule for group in server.api("rules")["groups"] for rule in group["rules"]}
    assert len(rules) == 6
    assert {(rule["health"], rule.get("lastError")) for rule in rules.values()} == {("ok", None)}
    # Without the minutes that they wait, and the ten that a job may stand still.
    assert list(server.values(rules["TrainingStraggler"]["query"])) == [("1",)]
    assert len(server.values(rules["TrainingInputBound"]["query"])) == 1
    assert server.values(rules["TrainingStuck"]["query"]) == {}
    still = rules["TrainingStuck"]["query"].replace("> 600", "> 1")
    assert set(server.values(still)) == {("0",), ("1",), ("2",)}
    assert server.values(rules["TraceDropsEvents"]["query"]) == {}


def _filled(expression: str, chosen: dict[str, str]) -> str:
    for name, value in chosen.items():
        expression = expression.replace(f"${name}", value)
    assert "$" not in expression
    return expression


# --- What a training without a line of code exports


ANSWERED = "answered"


class _Receiver(http.server.BaseHTTPRequestHandler):
    """What an OpenTelemetry collector understands."""

    received: list[Any]
    place: Path

    def do_POST(self) -> None:
        service = importlib.import_module("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/metrics"
        self.received.append(service.ExportMetricsServiceRequest.FromString(body))
        answer = service.ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        (self.place / ANSWERED).touch()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _collector(tmp_path: Path) -> Iterator[tuple[int, list[Any]]]:
    class Handler(_Receiver):
        received: list[Any] = []  # noqa: RUF012
        place = tmp_path

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], Handler.received
        server.shutdown()


def test_torch_to_everything(tmp_path: Path) -> None:
    """One process exports: neither workers of the loader nor the evaluation count."""
    pytest.importorskip("torch")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with _collector(tmp_path) as (port, received):
        targets = f"textfile:{tmp_path}/d/,tensorboard:{tmp_path}/tb,otlp:http://127.0.0.1:{port}"
        # The end of a program waits for targets that have answered, not for packages that are being imported.
        written = f"os.path.isdir('tb') and os.listdir('tb') and os.path.exists('{ANSWERED}')"
        program = TORCH + f"import os, time\nwhile not ({written}): time.sleep(0.01)\n"
        done = _run(tmp_path, program, targets, DFTRACER_AUTO="torch", DFTRACER_RUN_NAME="numbers")
    assert done.stderr == ""
    (file,) = (tmp_path / "d").iterdir()
    values = _values(file.read_text())
    _check_figures(values, 10)
    assert values["dftracer_samples_total"] == 78
    assert received
    last: dict[str, float] = {}
    for family in received[-1].resource_metrics[0].scope_metrics[0].metrics:
        for point in [*family.sum.data_points, *family.gauge.data_points]:
            attributes = {a.key: a.value.string_value for a in point.attributes}
            assert (attributes["job"], attributes["rank"]) == ("numbers", "0")
            name = family.name + (f"/{attributes['stage']}" if "stage" in attributes else "")
            last[name] = point.as_int if point.HasField("as_int") else point.as_double
        if family.HasField("sum"):
            assert family.sum.is_monotonic
    # The age of the process is the only thing that is not the same for all.
    assert {k: v for k, v in last.items() if "goodput" not in k} == pytest.approx(
        {k: v for k, v in values.items() if "goodput" not in k}
    )
    (events,) = (tmp_path / "tb").iterdir()
    seen = [
        (event.step, {v.tag: v.tensor.float_val[0] for v in event.summary.value})
        for event in loader.EventFileLoader(str(events)).Load()
        if event.HasField("summary")
    ]
    step, point = seen[-1]
    assert step == 9
    assert point["dftracer/step_seconds"] > 0
    assert sum(v for tag, v in point.items() if "stage_share" in tag) == pytest.approx(1, abs=1e-3)


# --- Endpoints that fail


def test_dead_endpoints_cost_one_line_each(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    port = _free_port()
    (tmp_path / "file").write_text("")
    targets = f"otlp:http://127.0.0.1:{port},textfile:{tmp_path}/file/below.prom,textfile:{tmp_path}/m.prom"
    program = (
        "steps(50)\nfrom dftracer import _messages\n"
        "while not any('otlp' in line for line in _messages._printed): time.sleep(0.01)\nsteps(50)"
    )
    done = _run(tmp_path, ANNOTATED + program, targets)
    assert sorted(line.split(":")[2].strip() for line in done.stderr.splitlines()) == ["otlp", "textfile"]
    assert _values((tmp_path / "m.prom").read_text())["dftracer_steps_total"] == 100


def test_warnings_of_packages_do_not_reach_the_program(tmp_path: Path) -> None:
    """Those that a target imports warn on its thread; the program's own warnings are shown as ever."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    # urllib3 imports this if it is there.
    (tmp_path / "socks.py").write_text("import warnings\nwarnings.warn('of a package')\nraise ImportError")
    program = ANNOTATED + (
        "import warnings\nwarnings.simplefilter('always')\n"
        "before = warnings._showwarnmsg.__code__\nsteps(20)\n"
        "while 'requests' not in sys.modules: time.sleep(0.01)\n"
        "warnings.warn('of the program')\n"
        f"while not os.path.exists('{ANSWERED}'): time.sleep(0.01)\n"
        "if os.fork() == 0:\n"
        "    print(warnings._showwarnmsg.__code__ is before, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\nlog.finalize()\nprint(warnings._showwarnmsg.__code__ is before)"
    )
    with _collector(tmp_path) as (port, received):
        done = _run(tmp_path, program, f"otlp:http://127.0.0.1:{port}")
    assert received
    assert "of a package" not in done.stderr
    assert done.stderr.count("of the program") >= 1
    assert done.stdout == "True\nTrue\n"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nonsense:1", "nonsense is not one of prometheus"),
        ("textfile", "textfile needs a destination"),
        ("prometheus:x", "x is not a port"),
        ("otlp:ftp://h", "is not an http"),
    ],
)
def test_mistakes_cost_one_line(tmp_path: Path, text: str, part: str) -> None:
    done = _run(tmp_path, ANNOTATED + "steps(5)", f"{text},textfile:{tmp_path}/m.prom")
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "m.prom").exists()


@pytest.mark.parametrize(
    ("target", "hidden", "command"),
    [
        ("tensorboard:board", "tensorboard", "pip install tensorboard"),
        ("otlp:http://127.0.0.1:9", "opentelemetry", "pip install 'pydftracer[otel]'"),
    ],
)
def test_a_missing_package_costs_one_line_that_says_what_to_install(
    tmp_path: Path, target: str, hidden: str, command: str
) -> None:
    hide = f"import sys\nsys.modules[{hidden!r}] = None\n"
    done = _run(tmp_path, hide + ANNOTATED + "steps(5)", f"{target},textfile:{tmp_path}/m.prom")
    assert command in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "m.prom").exists()


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({"DFTRACER_RUN_NAME": "mine", "SLURM_JOB_NAME": "theirs"}, "mine"),
        ({"SLURM_JOB_NAME": "theirs"}, "theirs"),
        ({"TORCHELASTIC_RUN_ID": "elastic"}, "elastic"),
        ({"TORCHELASTIC_RUN_ID": "none"}, "program"),
        ({"TORCHELASTIC_RUN_ID": "9a1967b0-9551-40a1-82dd-899e593d2723"}, "program"),
    ],
)
def test_what_the_job_is_called(
    environment: dict[str, str], job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DFTRACER_RUN_NAME", "SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_session, "SETTINGS", _config.load_settings())
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/a/program.py", raising=False)
    assert labels()["job"] == job


def test_the_job_is_called_as_the_configuration_file_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DFTRACER_RUN_NAME", raising=False)
    monkeypatch.setenv("SLURM_JOB_NAME", "theirs")
    file = tmp_path / "settings.yaml"
    file.write_text("run_name: mine\n")
    monkeypatch.setattr(_session, "SETTINGS", _config.load_settings({"DFTRACER_CONFIGURATION": str(file)}))
    assert labels()["job"] == "mine"


def test_several_targets() -> None:
    assert wanted("prometheus:1, textfile:/a:b ,,otlp:http://h:1/x") == [
        ("prometheus", "1"),
        ("textfile", "/a:b"),
        ("otlp", "http://h:1/x"),
    ]


def test_the_program_has_no_more_threads_of_its_own(tmp_path: Path) -> None:
    program = ANNOTATED + (
        "steps(5)\nwhile not os.path.exists('m.prom'): time.sleep(0.01)\n"
        "import threading; print(threading.active_count(), len(threading.enumerate()))"
    )
    assert _run(tmp_path, program, f"textfile:{tmp_path}/m.prom").stdout == "1 1\n"


# --- Trackers of experiments


def test_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    program = ANNOTATED + (
        "import wandb\n"
        "run = wandb.init(mode='offline', project='p')\n"
        "steps(20); time.sleep(1); run.log({'mine': 1}); print(run.step)\n"
        "summary = dict(run.summary)\nprint(sorted(k for k in summary if k.startswith('dftracer/'))[:2])\n"
        "run.finish()\n"
    )
    done = _run(tmp_path, program, "wandb", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    step, names = done.stdout.splitlines()[-2:]
    assert step == "1"
    assert "dftracer/" in names


def test_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    program = ANNOTATED + (
        "import mlflow\n"
        "mlflow.set_tracking_uri('file:' + os.getcwd() + '/ml')\n"
        "run = mlflow.start_run()\n"
        "steps(20); time.sleep(2)\n"
        "found = mlflow.MlflowClient().get_run(run.info.run_id).data.metrics\n"
        "print('dftracer/step_seconds' in found)\n"
        "mlflow.end_run()\n"
    )
    done = _run(tmp_path, program, "mlflow", MLFLOW_ALLOW_FILE_STORE="true")
    assert done.stdout.splitlines()[-1] == "True"
