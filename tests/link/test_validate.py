"""`dftracer validate` on a directory made by hand says what is wrong with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from link.test_directory import command, edit


def problems(ddp: Path) -> tuple[int, dict[str, Any], str]:
    result = command("validate", ddp, "--json")
    value: dict[str, Any] = json.loads(result.stdout)
    text = " ".join([*value.get("problems", []), *(p for r in value.get("ranks", []) for p in r["problems"])])
    return result.returncode, value, text


def test_a_good_directory(ddp: Path) -> None:
    code, result, text = problems(ddp)
    assert (code, text, result["ok"], result["missing_ranks"]) == (0, "", True, [])
    assert [r["coverage"] for r in result["ranks"]] == [1.0, 1.0]
    # Our own trace files are checked as before.
    assert len(result["files"]) == 2
    assert command("validate", ddp).returncode == 0


def test_missing_rank(ddp: Path) -> None:
    for path in ddp.glob("*_1.*"):
        path.unlink()
    code, result, _ = problems(ddp)
    assert code == 1
    assert result["missing_ranks"] == [1]


def test_truncated_file(ddp: Path) -> None:
    path = ddp / "torch_et_1.json"
    path.write_bytes(path.read_bytes()[:-20_000])
    code, _, text = problems(ddp)
    assert code == 1
    assert "torch_et_1.json: truncated" in text


def test_wrong_pair(ddp: Path) -> None:
    shutil.copy(ddp / "torch_et_1.json", ddp / "torch_et_0.json")
    code, result, text = problems(ddp)
    assert code == 1
    assert "wrong pair" in text
    assert result["ranks"][0]["coverage"] == 0.0


def test_one_of_the_two_files_is_missing(ddp: Path) -> None:
    (ddp / "torch_et_0.json").unlink()
    (ddp / "kineto_trace_1.json").unlink()
    code, _, text = problems(ddp)
    assert code == 1
    assert "no execution trace" in text
    assert "no profiler trace" in text


def test_a_file_with_another_ranks_name(ddp: Path) -> None:
    """Both profiles are of rank 1: the name is ignored."""
    shutil.copy(ddp / "kineto_trace_1.json", ddp / "kineto_trace_0.json")
    code, _, text = problems(ddp)
    assert code == 1
    assert "the file says it belongs to rank 1" in text


def test_the_reason_and_what_to_do(ddp: Path) -> None:
    def move(trace: dict[str, Any]) -> None:
        for n in trace["nodes"][100:300]:
            for a in n["attrs"]:
                if a["name"] == "tid":
                    a["value"] = 77
                if a["name"] == "rf_id" and a["value"]:
                    a["value"] += 1_000_000

    edit(ddp / "torch_et_0.json", move)
    code, _, text = problems(ddp)
    assert code == 1
    assert "profile_all_threads=True" in text


def test_a_directory_without_any_trace(tmp_path: Path) -> None:
    assert command("validate", tmp_path).returncode == 2
