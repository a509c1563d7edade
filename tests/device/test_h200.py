"""Real runs on an H200: busy time is what a naive union says, idle time goes where the timers say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.analyze.device.summary import device_document
from dftracer.cli.main import main
from dftracer.report import document, head, html_page, markdown
from dftracer.report.device import _WORDS
from dftracer.testing.synthetic import EPOCH_US, Process

DATA = Path(__file__).parents[1] / "data" / "h200"


def naive_busy(spans: list[tuple[int, int]]) -> int:
    total = reach = 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def device(path: Path) -> dict[str, Any]:
    return device_document(analyze(path).job)


def rows(case: str) -> list[dict[str, Any]]:
    text = gzip.decompress((DATA / "cases" / case / "run.pfw.gz").read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("case", ["input", "device"])
def test_busy_time_of_a_window_is_the_union_of_its_device_work(case: str) -> None:
    spans = [
        (r["ts"] * 1000, r["ts"] * 1000 + r["args"]["dur_ns"])
        for r in rows(case)
        if r.get("args", {}).get("type") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    rank = device(DATA / "cases" / case)["ranks"]["0"]
    assert rank["busy_s"] == pytest.approx(naive_busy(spans) / 1e9, rel=1e-9)


def test_the_device_waits_for_data() -> None:
    rank = device(DATA / "cases" / "input")["ranks"]["0"]
    assert rank["busy_share"] == pytest.approx(0.013, abs=0.001)
    assert rank["idle"]["input"] > 0.85 * rank["observed_s"]


def test_the_device_is_busy_and_the_host_runs_ahead() -> None:
    found = device(DATA / "cases" / "device")
    rank = found["ranks"]["0"]
    assert rank["busy_share"] > 0.95
    assert rank["kernels"]["gemm/conv"] > 0.9 * rank["busy_s"]
    assert max(s["lag_us"] for s in found["steps"]) > 20_000
    assert found["top_kernels"][0]["kind"] == "gemm/conv"
    assert found["top_kernels"][0]["operator"] in ("aten::mm", "aten::addmm")
    assert found["top_kernels"][0]["phase"] in ("forward", "backward")


def kineto_spans() -> list[tuple[int, int]]:
    events = json.loads(gzip.decompress((DATA / "kineto_trace_0_w0.json.gz").read_bytes()))["traceEvents"]
    return [
        (round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000))
        for e in events
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]


def test_a_kineto_file_alone_is_a_report() -> None:
    found = device(DATA / "kineto_trace_0_w0.json.gz")
    rank = found["ranks"]["0"]
    assert found["source"] == "profiler"
    assert rank["busy_s"] == pytest.approx(naive_busy(kineto_spans()) / 1e9, abs=2e-9)
    assert rank["launches"] == 460
    assert sum(rank["idle"].values()) == pytest.approx(rank["idle_s"], rel=1e-6)
    assert len(found["steps"]) == 2
    assert {"backward", "optimizer"} <= {t["phase"] for t in found["top_kernels"]}
    assert rank["kernels"]["attention"] > 0
    assert any("profiler's files alone" in note for note in found["notes"])


def test_a_window_of_two_steps_is_judged_by_its_device() -> None:
    a = analyze(DATA / "kineto_trace_0_w0.json.gz")
    result = document(a)
    assert result["bound"]["id"] == "host"
    assert a.verdict.startswith("The GPU is idle 97 % of the time: 76 % while the host launches work")
    assert "460 launches" in head(a)[1]
    assert "CUDA graphs" in head(a)[2]
    ids = [f["id"] for f in result["findings"]]
    assert "not_enough_evidence" not in ids
    assert "user_stage" not in ids  # operators outside of backward and optimizer are not a user's stage
    assert result["ledger"]["total"]["forward"] == pytest.approx(0.0177, abs=0.001)  # as DDP marks it


@pytest.mark.parametrize(
    ("path", "why", "helps"),
    [
        (
            "cases/input",
            "99 % of the profiled time, mostly waiting for data.",
            "Preprocessing is the slow part",
        ),
        (
            "kineto_trace_0_w0.json.gz",
            "97 % of the profiled time, mostly waiting for the host to launch work.",
            "Launch fewer kernels, and earlier",
        ),
    ],
)
def test_an_idle_device_is_reported_with_its_reason(path: str, why: str, helps: str) -> None:
    found = next(f for f in analyze(DATA / path).findings.every() if f.id == "device_idle")
    assert found.title == f"The device idles {why}"
    assert found.advice.startswith(helps)


def test_short_kernels_have_a_time_in_markdown() -> None:
    (line,) = [t for t in markdown(analyze(DATA / "cases" / "input")).splitlines() if "_foreach_add_" in t]
    assert "| optimizer | 0.629 | 37.4 |" in line


def test_a_kineto_file_without_profiler_steps_is_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(gzip.decompress((DATA / "kineto_trace_0_w0.json.gz").read_bytes()))
    kept = [e for e in content["traceEvents"] if not str(e.get("name", "")).startswith("ProfilerStep#")]
    file = tmp_path / "trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps({**content, "traceEvents": kept}).encode()))
    a = analyze(file)
    result = document(a)
    rank = result["device"]["ranks"]["0"]
    assert rank["busy_s"] == pytest.approx(naive_busy(kineto_spans()) / 1e9, abs=2e-9)
    assert result["device"]["steps"] == []
    assert a.verdict.startswith("The GPU is idle 97 % of the time: ")
    assert "while the host launches work or runs Python" in a.verdict
    assert "not_enough_evidence" in [f["id"] for f in result["findings"]]
    assert main(["report", "-q", str(file)]) == 0
    assert "The device of rank 0" in capsys.readouterr().out
    assert "device of rank 0" in markdown(a)
    assert "device" in html_page(a)


def test_a_kineto_file_beside_our_trace_knows_what_the_host_did(tmp_path: Path) -> None:
    file = "kineto_trace_0_w0.json.gz"
    (tmp_path / file).write_bytes((DATA / file).read_bytes())
    content = json.loads(gzip.decompress((DATA / file).read_bytes()))
    steps = [
        (content["baseTimeNanoseconds"] // 1000 + int(e["ts"]), int(e["dur"]))
        for e in content["traceEvents"]
        if e.get("ph") == "X" and e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"
    ]
    first = min(s for s, _ in steps)
    process = Process(398, rank=0, start=0)
    for i, (start, dur) in enumerate(sorted(steps)):
        # The first 2 ms of each step wait for data, the rest is forward.
        process.step(i + 1, start - first, 2000, dur - 2000, step=i)
        process.span("compute", "forward", start - first + 2000, dur - 2000, step=i)
    path = process.write(tmp_path)
    text = gzip.decompress(path.read_bytes()).decode()
    moved = [shifted(json.loads(line), first) if line.startswith("{") else line for line in text.splitlines()]
    path.write_bytes(gzip.compress(("\n".join(moved) + "\n").encode()))
    found = device(tmp_path)
    rank = found["ranks"]["0"]
    assert found["notes"] == []
    assert rank["idle"]["unknown"] < 1e-3
    assert 0 < rank["idle"]["input"] <= 0.004
    assert rank["host_phases"]["forward"] > 0.05
    assert {t["phase"] for t in found["top_kernels"]} == {"forward"}


def test_linked_tables_alone_are_a_report(tmp_path: Path) -> None:
    assert main(["link", str(DATA), "-o", str(tmp_path / "out"), "-q"]) == 0
    for extra in (tmp_path / "out").glob("*.json*"):
        extra.unlink()
    rank = device(tmp_path / "out")["ranks"]["0"]
    assert rank["busy_s"] == pytest.approx(naive_busy(kineto_spans()) / 1e9, abs=2e-9)
    assert rank["launches"] == 460


def shifted(record: dict[str, Any], first: int) -> str:
    if "ts" in record:
        record["ts"] += first - EPOCH_US
    return json.dumps(record, separators=(",", ":"))


def test_operators_of_the_profiler_are_no_work_of_the_user() -> None:
    titles = [f.title for f in analyze(DATA / "kineto_trace_0_w0.json.gz").findings]
    assert not any("aten::" in t for t in titles), titles


@pytest.mark.parametrize(("case", "row"), [("device", "busy"), ("input", "input")])
def test_the_row_of_the_culprit_is_marked(case: str, row: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "-q", str(DATA / "cases" / case)]) == 0
    result = capsys.readouterr().out.partition("The device of rank 0")[2]
    (marked,) = [line for line in result.splitlines() if "◀" in line]
    assert marked.startswith(f"{_WORDS[row]} ")
    assert main(["report", "-q", "--md", str(DATA / "cases" / case)]) == 0
    assert f"**{_WORDS[row]}**" in capsys.readouterr().out


@pytest.mark.parametrize("case", ["device", "input"])
def test_launching_is_no_utilisation_of_the_accelerator(case: str) -> None:
    assert analyze(DATA / "cases" / case).au is None


@pytest.mark.parametrize(
    ("case", "share", "within"),
    [("ckpt", 0.94, 0.03), ("transfer", 0.94, 0.03), ("input", 0.89, 0.05), ("devsync", 0.94, 0.07)],
)
def test_unannotated_runs_have_the_verdict_of_their_construction(
    case: str, share: float, within: float
) -> None:
    """By the program's construction and a profiler's window; no loud finding contradicts."""
    line = {"ckpt": "checkpoint", "devsync": "device"}.get(case, case)
    a = analyze(DATA / "zero" / case)
    result = document(a)
    assert result["bound"]["id"] == line
    assert result["account"][line]["share"] == pytest.approx(share, abs=within)
    assert max(result["account"], key=lambda name: result["account"][name]["seconds"]) == line
    assert sum(row["seconds"] for row in result["account"].values()) == pytest.approx(
        result["account_s"], rel=1e-3
    )
    loud = {f["id"] for f in result["findings"] if f["severity"] != "info"}
    expected = {"ckpt": "checkpoint_stall", "transfer": "transfer_bound", "input": "input_bound"}
    assert loud - {"before_first_step"} == ({expected[case]} if case in expected else set())
    assert "at most 100" not in " ".join(a.head)


@pytest.mark.parametrize(
    ("case", "bound", "share", "within"),
    [
        ("own_code", ("own_code", "log_metrics zero_program.py:142"), 0.88, 0.05),
        ("evaluate", ("evaluation", None), 0.546, 0.03),  # by the program's own clock
        ("item", ("device", None), 1.0, 0.03),
        ("graph", ("device", None), 1.0, 0.2),
        ("device_resident", ("device", None), 1.0, 0.08),
        ("ckpt_loader", ("checkpoint", "checkpoint"), 0.81, 0.05),
    ],
)
def test_plain_programs_with_calls_of_cuda(
    case: str, bound: tuple[str, str | None], share: float, within: float
) -> None:
    """What the host waited for is known from the calls, what it did itself from samples."""
    result = document(analyze(DATA / "plain" / case))
    assert (result["bound"]["id"], result["bound"]["stage"]) == bound
    assert result["account"][bound[0]]["share"] == pytest.approx(share, abs=within)
    assert "at most 100" not in result["verdict"]
    if bound[0] == "device":  # what a step waits for at its end is the work of several
        serious = {f["id"] for f in result["findings"] if f["severity"] != "info"}
        assert not {"slow_steps", "step_drift"} & serious
