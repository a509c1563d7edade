"""Files of DFTracer's newest format, made by hand from its documents: every command reads them."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dftracer.cli.main import main
from dftracer.format.reader import read_trace

FILES = Path(__file__).parents[1] / "data" / "conformance"
VARIANTS = sorted(path.stem for path in FILES.glob("*.pfw"))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code = main([str(w) for w in words])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def report(capsys: pytest.CaptureFixture[str], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(capsys, "report", path, "--json"))
    return found


def named(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Calls and their time in us, by name."""
    events = [e for e in found["names"] if e["cat"] != "dftracer"]
    return {e["name"]: (e["count"], round(e["total_s"] * 1e6)) for e in events}


def packed(name: str, directory: Path) -> Path:
    """As DFTracer compresses it: one stream, without an index of members."""
    path = directory / f"{name}.pfw.gz"
    path.write_bytes(gzip.compress((FILES / f"{name}.pfw").read_bytes()))
    return path


@pytest.fixture(params=[(name, gz) for name in VARIANTS for gz in (False, True)])
def variant(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, gz = request.param
    (tmp_path / "traces").mkdir()
    if gz:
        return packed(name, tmp_path / "traces")
    return Path(shutil.copy(FILES / f"{name}.pfw", tmp_path / "traces"))


def test_every_command_reads_every_variant(
    variant: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a copy, a part and a repaired file say is what the file says."""
    here = tmp_path
    run(capsys, "validate", variant)
    assert "complete" in run(capsys, "info", variant)
    wanted = named(report(capsys, variant))
    assert wanted
    (here / "merged").mkdir()
    run(capsys, "merge", variant, "-o", here / "merged" / "m.pfw.gz")
    run(capsys, "slice", variant, "--time", "0:100", "-o", here / "part.pfw")
    for copy in (here / "merged" / "m.pfw.gz", here / "part.pfw"):
        assert named(report(capsys, copy)) == wanted
    for kind in ("chrome", "perfetto", "csv", "parquet", "arrow"):
        run(capsys, "export", variant, "--to", kind, "-o", here / f"out.{kind}")
    assert run(capsys, "top", "--once", variant)
    run(capsys, "repair", variant, "-o", here / "repaired")
    assert named(report(capsys, here / "repaired")) == wanted
    listed = json.loads(run(capsys, "runs", variant.parent, "--json"))
    assert [r["steps"] for r in listed] == [int(variant.name.startswith("complete."))]
    run(capsys, "goodput", variant.parent, "--json")
    told = run(capsys, "query", "select distinct name from events where ph = 'X'", variant, "--json")
    assert {r["name"] for r in json.loads(told)} <= {*wanted, "start", "end"}


@pytest.mark.parametrize("gz", [False, True])
def test_commands_that_need_steps_read_those_of_other_tracers(
    gz: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = packed("complete", tmp_path) if gz else FILES / "complete.pfw"
    told = json.loads(run(capsys, "compare", trace, trace, "--json"))
    assert told["answer"] == "cannot_tell"  # of a single step
    directory = tmp_path / "only"
    directory.mkdir()
    shutil.copy(trace, directory)
    (rank,) = json.loads(run(capsys, "postmortem", directory, "--json"))["ranks"]
    assert (rank["rank"], rank["state"], rank["step"]) == (0, "ended", 0)


def test_calls_bytes_and_time_of_sums(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, FILES / "aggregated.pfw")
    assert named(found) == {"openat": (2, 1232), "creat64": (1, 185), "read": (1010, 5031), "step": (5, 1000)}
    by_name = {e["name"]: e for e in found["names"]}
    assert (by_name["read"]["min_us"], by_name["read"]["max_us"]) == (2, 90)
    (file,) = found["files"]
    assert (file["opens"], file["reads"], file["read_bytes"]) == (3, 1010, 4091904 + 10 * 512)


def test_detail_and_sums_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, FILES / "selective.pfw")
    assert named(found) == {"read": (41, 30200), "forward": (1, 4000)}
    (file,) = found["files"]
    assert (file["path"], file["read_bytes"]) == ("/data/a.bin", 65536 + 40 * 4096)


def test_sums_in_another_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert named(report(capsys, FILES / "seconds.pfw")) == {"predict": (1, 3_000_000), "read": (3, 2_000_000)}


def test_a_self_describing_end() -> None:
    """The reader keeps what `end` says: configuration, layers, the program's own facts."""
    records = read_trace(FILES / "complete.pfw").records
    (end,) = [r for r in records if r["name"] == "end"]
    assert end["args"]["app"] == {"batch_size": 32, "model": "resnet50"}
    assert end["args"]["used"] == {"PYTHON": 1, "LIBC_IO": 1}
    assert {r["type"] for r in records} == {1, 3, 6, 9, 12}


def test_sums_are_counters_in_a_viewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    run(capsys, "export", FILES / "selective.pfw", "-o", out)
    rows = json.loads(out.read_text())["traceEvents"]
    (counter,) = [r for r in rows if r["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("read /data/a.bin", {"calls": 40, "us": 200})
    assert {r["ph"] for r in rows} <= {"X", "M", "C"}
