"""A directory of ranks in one call: what is joined, what is said, what is written."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dftracer.cli.main import main
from dftracer.link import NothingToLink, link
from dftracer.link.chakra import read_chakra
from dftracer.load import Trace
from support.process import clean_environment

KEYS = {"rank", "et_nodes", "joined", "coverage", "name_agreement", "edges", "collectives", "seconds"}


def edit(path: Path, change: Any) -> None:
    """Rewrite a JSON file."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as f:
        value = json.load(f)
    change(value)
    with opener(path, "wt", encoding="utf-8") as f:
        json.dump(value, f)


@dataclass
class Done:
    """What a command has printed."""

    returncode: int
    stdout: str
    stderr: str


def command(*arguments: object) -> Done:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(a) for a in arguments])
    return Done(code, out.getvalue(), err.getvalue())


def test_the_command_prints_the_documented_keys(ddp: Path, tmp_path: Path) -> None:
    done = command("link", ddp, "-o", tmp_path / "linked", "--json", "--min-coverage", "0.99")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result) == {"ranks", "warnings"}
    assert result["warnings"] == []
    assert [r["rank"] for r in result["ranks"]] == [0, 1]
    for r in result["ranks"]:
        assert set(r) == KEYS
        assert r["coverage"] >= 0.998
        assert r["name_agreement"] == 1.0
        assert r["joined"] <= r["et_nodes"]
        assert {"call", "order", "data", "forward_backward", "comm"} <= set(r["edges"])
        assert r["collectives"] >= 4
    written = sorted(p.name for p in (tmp_path / "linked").iterdir())
    assert written == [
        "chakra.0.et", "chakra.1.et", "chakra_0.et", "chakra_1.et",
        "collectives.parquet", "edges_0.parquet", "edges_1.parquet",
        "linked_0.parquet", "linked_1.parquet", "timeline.json.gz",
    ]  # fmt: skip


def test_too_little_coverage_sets_the_exit_code(ddp: Path, tmp_path: Path) -> None:
    """Half of one rank's events are gone: the command says how many and why."""

    def halve(profile: dict[str, Any]) -> None:
        profile["traceEvents"] = profile["traceEvents"][: len(profile["traceEvents"]) // 2]

    edit(ddp / "kineto_trace_1.json", halve)
    done = command("link", ddp, "-o", tmp_path / "linked", "--min-coverage", "0.99")
    assert done.returncode == 1, done.stderr
    assert "not joined" in done.stdout
    assert command("link", ddp, "-o", tmp_path / "linked", "--min-coverage", "0.01").returncode == 0


def test_steps_epochs_and_phases_come_from_our_trace(recorded: Path, tmp_path: Path) -> None:
    """Every operator of the window is in the step whose region holds it."""
    link(recorded, tmp_path, workers=1)
    for rank in (0, 1):
        events = Trace(recorded, ranks=[rank]).polars()
        regions = events.filter(pl.col("cat").cast(pl.String).is_in(["compute", "pipeline", "comm"]))
        # What gloo did inside a call is no region of the program.
        regions = regions.filter(~pl.col("args").fill_null("").str.contains("below_python", literal=True))
        spans = list(regions.select("ts", "dur", "name", "cat", "step").iter_rows())
        frame = pl.read_parquet(tmp_path / f"linked_{rank}.parquet").filter(
            pl.col("in_et") & pl.col("start_ns").is_not_null()
        )
        assert frame.height
        checked = 0
        for row in frame.iter_rows(named=True):
            us = row["start_ns"] // 1000
            # Regions are in whole microseconds: a moment at a border may be in either.
            if any(abs(us - t) <= 1 for ts, dur, *_ in spans for t in (ts, ts + dur)):
                continue
            around = [s for s in spans if s[0] <= us < s[0] + s[1]]
            if not around:
                assert row["phase"] is None
                continue
            inner = min(around, key=lambda s: s[1])
            assert (row["step"], row["epoch"]) == (inner[4], 1)
            assert row["phase"] == f"{inner[3]}.{inner[2]}"
            checked += 1
        assert checked > frame.height // 2
        own = pl.read_parquet(tmp_path / f"linked_{rank}.parquet").filter(
            pl.col("kind").cast(pl.String) == "region"
        )
        assert {"forward", "backward"} <= set(own["name"].cast(pl.String))


def test_without_our_trace_the_profilers_steps_are_used(ddp: Path, tmp_path: Path) -> None:
    for path in ddp.glob("*.pfw.gz"):
        path.unlink()
    link(ddp, tmp_path / "l", workers=1)
    frame = pl.read_parquet(tmp_path / "l" / "linked_0.parquet").filter(pl.col("start_ns").is_not_null())
    assert set(frame["step"].drop_nulls()) == {2, 3}
    assert frame["phase"].null_count() == frame.height


def test_collectives_are_matched_across_ranks(recorded: Path, tmp_path: Path) -> None:
    """Each rank's n-th collective with the others', and who came how much later."""
    link(recorded, tmp_path)
    frame = pl.read_parquet(tmp_path / "collectives.parquet")
    assert frame.height
    for _, parts in frame.group_by("key"):
        assert sorted(parts["rank"]) == [0, 1]
        assert parts["type"].n_unique() == parts["bytes"].n_unique() == 1
        came = parts["start_ns"].to_list()
        assert parts["arrival_ns"].to_list() == [c - min(came) for c in came]
        assert set(parts["skew_ns"]) == {max(came) - min(came)}
        # Nobody leaves before all have come.
        assert min(parts["end_ns"]) >= max(came) - 1000


def test_more_ranks_than_processes(recorded: Path, tmp_path: Path) -> None:
    """Ranks that wait on disk for the second half give the same files."""
    one, many = tmp_path / "one", tmp_path / "many"
    link(recorded, one, workers=1)
    link(recorded, many, workers=2)
    for name in ("chakra_0.et", "chakra_1.et"):
        assert (one / name).read_bytes() == (many / name).read_bytes()
    assert not [p for p in one.iterdir() if p.name.startswith(".")]


def test_ranks_that_wait_on_disk_are_out_of_reach(recorded: Path, tmp_path: Path) -> None:
    """Whoever can write to the folder could leave a link, or objects that run code when they are read."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    for rank in (0, 1):
        for name in (f".rank_{rank}.part", f".timeline_{rank}.part"):
            (out / name).symlink_to(mine)
    link(recorded, out, workers=1)
    assert mine.read_text() == "mine"
    assert read_chakra(out / "chakra_1.et")[1]


def test_a_link_that_fails_leaves_the_earlier_results(h200: Path, tmp_path: Path) -> None:
    """Results appear together, when all are complete: here the disk has no room for them."""
    out = tmp_path / "out"
    link(h200, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    largest = max(map(len, before.values()))
    script = (
        "import resource, sys\nfrom dftracer.link import link\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({largest // 2}, {largest // 2}))\n"
        "link(sys.argv[1], sys.argv[2])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(h200), str(out)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert done.returncode != 0
    assert "File too large" in done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_a_script_without_a_main_guard_may_call_it(ddp: Path, tmp_path: Path) -> None:
    """Workers do not run the caller's main module again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom dftracer.link import link\nprint('once')\n"
        "report = link(sys.argv[1], sys.argv[2], workers=2)\nprint(len(report.ranks), report.covers(0.99))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), str(ddp), str(tmp_path / "l")],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["once", "2 True"], done.stderr


def test_two_windows_of_a_rank(h200: Path, ddp: Path, tmp_path: Path) -> None:
    """The second window has files of its own and a number in the tables."""
    folder = tmp_path / "windows"
    folder.mkdir()
    for kind in ("torch_et", "kineto_trace"):
        shutil.copy(ddp / f"{kind}_0.json", folder)
        shutil.copy(ddp / f"{kind}_0.json", folder / f"{kind}_0_w1.json")
    report = link(folder, tmp_path / "l")
    assert (tmp_path / "l" / "chakra_0_w1.et").exists()
    frame = pl.read_parquet(tmp_path / "l" / "linked_0.parquet")
    assert sorted(set(frame["window"])) == [0, 1]
    counts = frame.group_by("window").len()["len"].to_list()
    assert counts[0] == counts[1]
    assert report.ranks[0]["coverage"] == 1.0


def test_a_missing_rank_is_told(ddp: Path, tmp_path: Path) -> None:
    for path in ddp.glob("*_1.*"):
        path.unlink()
    report = link(ddp, tmp_path / "l")
    assert [r["rank"] for r in report.ranks] == [0]
    assert any("1 of 2 ranks have no trace here: 1" in w for w in report.warnings)


def test_foreign_file_names(ddp: Path, tmp_path: Path) -> None:
    """Files of other tools are told by their content: rank, and the process that both files name."""
    names = {
        "torch_et_0.json": "pytorch_et.json",
        "torch_et_1.json": "other_et.json",
        "kineto_trace_0.json": "host_4711.1794742810.pt.trace.json",
        "kineto_trace_1.json": "1794742811.9-TP-1.trace.json",
    }
    for old, new in names.items():
        os.rename(ddp / old, ddp / new)
    for path in ddp.glob("host_*.json"):
        with path.open("rb") as f, gzip.open(path.with_name(path.name + ".gz"), "wb") as out:
            shutil.copyfileobj(f, out)
        path.unlink()
    report = link(ddp, tmp_path / "l")
    assert [(r["rank"], r["coverage"]) for r in report.ranks] == [(0, 1.0), (1, 1.0)]


def test_a_directory_without_traces_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NothingToLink, match="dftracer collect"):
        link(tmp_path)
    done = command("link", tmp_path)
    assert done.returncode == 2
    assert "dftracer collect" in done.stderr


def test_the_tables_beside_a_trace_are_part_of_it(ddp: Path) -> None:
    """`Trace` of a linked directory offers the linked tables, also to SQL."""
    link(ddp)
    trace = Trace(ddp)
    assert trace.linked().select(pl.len()).collect().item() > 0
    result = trace.sql(
        "select count(*) n from linked join edges on linked.node = edges.target and linked.rank = 0"
    )
    assert result["n"][0] > 0
    # And it is not taken for input by a second run.
    assert link(ddp).warnings == []


def test_a_window_for_times_only_is_no_problem(h200: Path, tmp_path: Path) -> None:
    """The manifest says that a window was recorded without an execution trace on purpose."""
    folder = tmp_path / "out"
    folder.mkdir()
    shutil.copy(h200 / "torch_et_0_w0.json.gz", folder / "torch_et_0.json.gz")
    for name in ("kineto_trace_0.json.gz", "kineto_trace_0_w1.json.gz"):
        shutil.copy(h200 / "kineto_trace_0_w0.json.gz", folder / name)
    assert command("validate", folder).returncode == 1
    windows = [{"index": 0, "kind": "et+kineto"}, {"index": 1, "kind": "kineto"}]
    (folder / "manifest_0.json").write_text(json.dumps({"rank": 0, "world_size": 1, "windows": windows}))
    assert command("validate", folder).returncode == 0
    report = link(folder, tmp_path / "l")
    assert report.warnings == []
    assert report.ranks[0]["coverage"] == 1.0


def test_our_trace_in_an_older_dialect(ddp: Path, tmp_path: Path) -> None:
    """Integer kinds of events and no brackets: regions still name step and phase."""
    for path in ddp.glob("*.pfw.gz"):
        path.unlink()
    profile = json.loads((ddp / "kineto_trace_0.json").read_text())
    step = next(e for e in profile["traceEvents"] if e["name"] == "ProfilerStep#2")
    start = profile["baseTimeNanoseconds"] // 1000 + int(step["ts"])
    event = {"id": 1, "name": "forward", "cat": "compute", "type": 1, "pid": step["pid"], "tid": step["tid"],
             "ts": start, "dur": int(step["dur"]), "ph": 1, "args": {"step": 41, "epoch": 3}}  # fmt: skip
    (ddp / "old.pfw").write_text(json.dumps(event, separators=(",", ":")) + "\n")
    link(ddp, tmp_path / "l")
    frame = pl.read_parquet(tmp_path / "l" / "linked_0.parquet").filter(
        pl.col("kind").cast(pl.String) == "op"
    )
    assert {41} == set(frame.filter(pl.col("phase").cast(pl.String) == "compute.forward")["step"])
    assert frame.filter(pl.col("epoch") == 3).height > 100
