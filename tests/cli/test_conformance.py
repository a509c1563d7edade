"""Files of DFTracer's newest format, made by hand from its documents: every command reads them."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import analyze, io_over_time
from dftracer.cli.main import main
from dftracer.format.reader import read_trace
from support.process import clean_environment
from support.s3 import environment, store

FILES = Path(__file__).parents[1] / "data" / "conformance"
VARIANTS = sorted(path.stem for path in FILES.glob("*.pfw"))


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    code = main([str(w) for w in words])
    output = capsys.readouterr()
    assert code == 0, output.err
    return output.out


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
    result = run(capsys, "query", "select distinct name from events where ph = 'X'", variant, "--json")
    assert {r["name"] for r in json.loads(result)} <= {*wanted, "start", "end"}


@pytest.mark.parametrize("gz", [False, True])
def test_commands_that_need_steps_read_those_of_other_tracers(
    gz: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = packed("complete", tmp_path) if gz else FILES / "complete.pfw"
    result = json.loads(run(capsys, "compare", trace, trace, "--json"))
    assert result["answer"] == "cannot_tell"  # of a single step
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


@pytest.mark.parametrize("gz", [False, True])
def test_sums_stand_for_the_interval_that_the_end_names(
    gz: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """10 ms here: 101 calls within 30 ms of the start and 50 nearly a second later, and nothing in between."""
    trace = packed("interval", tmp_path) if gz else FILES / "interval.pfw"
    run(capsys, "merge", trace, "-o", tmp_path / "merged.pfw.gz")
    for file in (trace, tmp_path / "merged.pfw.gz"):
        over_time = io_over_time(analyze(file).job)
        assert over_time is not None
        assert over_time["ops"].to_list() == [101, 50]
        assert over_time["read_bytes"].to_list() == [406_016, 204_800]
        start, later = over_time["start_s"]
        assert later - start > 0.9
        for time, kept in (
            ("0:0.005", 0),
            ("0.005:0.0095", 0),
            ("0.012:0.015", 1),
            ("0.015:0.5", 2),
            ("0.96:1.5", 1),
        ):
            out = tmp_path / "part"
            code = main(["slice", str(file), "--time", time, "-f", "-o", str(out), "--json"])
            printed = capsys.readouterr().out
            assert (json.loads(printed)["files"][0]["events"] if code == 0 else 0) == kept, time


def test_sums_in_another_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert named(report(capsys, FILES / "seconds.pfw")) == {"predict": (1, 3_000_000), "read": (3, 2_000_000)}


def test_a_self_describing_end() -> None:
    """The reader keeps what `end` says: configuration, layers, the program's own facts."""
    records = read_trace(FILES / "complete.pfw").records
    (end,) = [r for r in records if r["name"] == "end"]
    assert end["args"]["app"] == {"batch_size": 32, "model": "resnet50"}
    assert end["args"]["used"] == {"PYTHON": 1, "LIBC_IO": 1}
    assert {r["type"] for r in records} == {1, 3, 6, 9, 12}


@pytest.mark.parametrize("verb", ["merge", "slice", "repair"])
def test_copies_keep_entities(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Entities, their types and relations as they were; an event's relations are one of its arguments."""
    trace, out = FILES / "entities.pfw", tmp_path / ("copy.pfw" if verb == "merge" else "copy")
    run(capsys, verb, trace, *(["--time", "0:100"] if verb == "slice" else []), "-o", out)
    (copy,) = [out] if out.is_file() else out.iterdir()
    kinds = ("EH", "ET", "ER")
    wanted, found = ([r for r in read_trace(each).records if r["name"] in kinds] for each in (trace, copy))
    assert [(r["name"], r["args"]) for r in found] == [(r["name"], r["args"]) for r in wanted]
    assert [r["name"] for r in wanted] == [*kinds]
    (row,) = json.loads(
        run(capsys, "query", "select args from events where name = 'predict'", copy, "--json")
    )
    assert json.loads(row["args"])["relations"] == {"used": ["8f0de68c04eea0bf"]}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_limit_is_checked(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is a step; a run without any does not pass for a fast one."""
    for trace in (FILES / f"{name}.pfw", packed(name, tmp_path)):
        code = main(["check", str(trace), "--limit", "run_s < 100", "--json"])
        output = capsys.readouterr()
        if name == "complete":
            assert code == 0, output.err
            assert main(["check", str(trace), "--limit", "run_s < 0.001", "-q"]) == 1
            capsys.readouterr()
        else:
            assert code == 2
            assert "has no training step" in output.err


@pytest.mark.parametrize("name", VARIANTS)
def test_linking_says_what_is_missing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no execution trace and no profile beside them: nothing to link, and no traceback."""
    packed(name, tmp_path)
    assert main(["link", str(tmp_path), "-o", str(tmp_path / "linked")]) == 2
    assert "no execution trace, profiler trace or nsys export" in capsys.readouterr().err
    assert not (tmp_path / "linked").exists()


def test_shipping_keeps_what_it_sent(tmp_path: Path) -> None:
    """To a server that speaks S3, and back: the same bytes, which reports read where they are."""
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    here = tmp_path / "traces"
    here.mkdir()
    for name in VARIANTS:
        shutil.copy(FILES / f"{name}.pfw", here) if name == "complete" else packed(name, here)
    before = {path.name: path.read_bytes() for path in here.iterdir()}
    with store() as port:
        env = clean_environment(**environment(port))

        def dftracer(*words: str) -> str:
            command = [sys.executable, "-m", "dftracer.cli", *words]
            done = subprocess.run(command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        dftracer("ship", "--keep", "traces", "s3://bucket/theirs")
        kept = {path.name: path.read_bytes() for path in here.iterdir() if path.name in before}
        assert kept == before
        for name in ("complete.pfw", "selective.pfw.gz"):
            url = f"s3://bucket/theirs/{name}"
            there, local = (
                json.loads(dftracer("report", each, "--json")) for each in (url, str(here / name))
            )
            assert named(there) == named(local) != {}


def test_sums_are_counters_in_a_viewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "t.json"
    run(capsys, "export", FILES / "selective.pfw", "-o", out)
    rows = json.loads(out.read_text())["traceEvents"]
    (counter,) = [r for r in rows if r["ph"] == "C"]
    assert (counter["name"], counter["args"]) == ("read /data/a.bin", {"calls": 40, "us": 200})
    assert {r["ph"] for r in rows} <= {"X", "M", "C"}
