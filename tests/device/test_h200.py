"""Real runs on an H200: busy time is what a naive union says, idle time goes where the timers say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze
from dftracer.analyze.device import device_document

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
