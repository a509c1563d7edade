"""Calls as sums: counts, times, bytes and histograms are those of the calls, however the process ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dftracer.cli.main import main
from support.process import Run, recover
from support.trace import Record, read_file

FULL: dict[str, str | None] = {
    "DFTRACER_ENABLE_AGGREGATION": "1",
    "DFTRACER_DISABLE_IO": None,
    "DFTRACER_DATA_DIR": "all",
}
STORM = """
import os
os.makedirs("data", exist_ok=True)
for i in range(3):
    with open(f"data/{i}", "wb") as f:
        f.write(bytes(5000))
calls = 0
for k in range(600):
    fd = os.open(f"data/{k % 3}", os.O_RDONLY)
    for j in range(5):
        os.pread(fd, 1000, 1000 * j)
    try:
        os.stat(f"data/{k % 3}/none")
    except OSError:
        pass
    os.close(fd)
with ai.compute.forward:
    pass
"""


def sums(run: Run, name: str) -> list[Record]:
    return [r for f in run.trace.files for r in f.records if r.ph == "A" and r.name == name]


def total(found: list[Record], key: str) -> int:
    return sum(int(r.args.get(key, 0)) for r in found)


def test_every_call_of_a_storm_is_in_a_sum(traced: Callable[..., Run]) -> None:
    """Calls, bytes and errors by file; annotations stay single events."""
    run = traced(STORM, env=FULL)
    paths = {r.args["value"]: r.args["name"] for r in run.trace.metadata("FH")}
    reads = [r for r in sums(run, "pread") if "/data/" in paths[r.args["fhash"]]]
    by_file: dict[str, int] = {}
    for r in reads:
        by_file[r.args["fhash"]] = by_file.get(r.args["fhash"], 0) + r.args["dft_cnt"]
    assert list(by_file.values()) == [1000, 1000, 1000]
    assert total(reads, "bytes") == 3_000_000
    for r in reads:
        histogram = {int(low): n for low, n in r.args["dur_hist"].items()}
        assert sum(histogram.values()) == r.args["dft_cnt"]
        assert min(histogram) <= r.args["dur_min"] <= r.args["dur_max"] <= 2 * max(histogram) + 1
        assert r.args["dur_min"] * r.args["dft_cnt"] <= r.args["dur_sum"]
        assert r.ts % 1_000_000 == 0
    assert total(sums(run, "stat"), "errors") >= 600
    assert [e.name for e in run.trace.events if e.ph == "X"] == ["forward"]
    (file,) = run.trace.files
    assert file.end_record.args["aggregated"] >= 3000
    assert file.end_record.args["num_events"] == len(file.records) - 1


def test_the_trace_of_a_storm_is_bounded(traced: Callable[..., Run], tmp_path: Path) -> None:
    """By calls, files and commits, however often the calls are made."""
    storm = STORM.replace("range(600)", "range(18_000)")

    def written(**env: str) -> tuple[int, list[Record], Record]:
        out = tmp_path / f"traces{len(env)}"
        out.mkdir()
        traced(storm, env={**FULL, **env, "DFTRACER_LOG_FILE": str(out / "t")})
        (path,) = out.glob("*.pfw.gz")
        file = read_file(path)
        return path.stat().st_size, [r for r in file.records if r.ph == "A"], file.end_record

    size, records, end = written()
    assert end.args["aggregated"] >= 8 * 18_000
    names, files = {r.name for r in records}, {r.args.get("fhash") for r in records}
    intervals, commits = {r.ts for r in records}, end.args["members"]
    assert len(records) <= len(names) * len(files) * (len(intervals) + commits)
    # A call on a file is in one record of each commit, or two if an interval ended before it.
    for name in ("pread", "close"):
        mine = [r for r in records if r.name == name]
        assert len(mine) <= len({r.args.get("fhash") for r in mine}) * (len(intervals) + commits)
    detailed, _, _ = written(DFTRACER_ENABLE_AGGREGATION="0")
    assert size < detailed / 20


def test_reports_are_those_of_the_detail(
    traced: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same program twice: calls and bytes of each file are equal."""

    def files(**env: str) -> list[tuple[int, int, int, int]]:
        out = tmp_path / f"traces{len(env)}"
        out.mkdir()
        traced(STORM, env={**FULL, **env, "DFTRACER_LOG_FILE": str(out / "t")})
        assert main(["report", str(out), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        mine = [f for f in found["files"] if "/data/" in f["path"] and f["reads"]]
        return sorted((f["opens"], f["reads"], f["read_bytes"], f["write_bytes"]) for f in mine)

    summed = files()
    assert len(summed) == 3
    assert summed == files(DFTRACER_ENABLE_AGGREGATION="0")


def test_a_killed_process_loses_no_call(traced: Callable[..., Run]) -> None:
    """What was summed up is in the trace or still in the rings."""
    run = traced(STORM + "os.kill(os.getpid(), 9)", env=FULL, expect=-9)
    recover(run.trace_dir)
    events = [r for f in run.trace.files for r in f.records if r.name == "pread" and r.ph == "X"]
    assert len(events) + total(sums(run, "pread"), "dft_cnt") == 3000


@pytest.mark.parametrize(
    ("rules", "summed", "single"),
    [
        ("inclusion:\n  - \"cat == 'posix'\"\nexclusion:\n  - \"name LIKE '%read'\"\n", "close", "pread"),
        ("inclusion:\n- name IN {pread, close} AND NOT dur > 100000000\n", "pread", "stat"),
        ("inclusion:\n- name IN {pread, close} AND NOT dur > 1e8 AND dur > -0.5\n", "pread", "stat"),
        (
            "# all that is short\ninclusion:\n  - \"(dur < 0 OR name == 'forward')\"\nexclusion: []\n",
            "forward",
            "pread",
        ),
    ],
)
def test_rules_choose(
    rules: str, summed: str, single: str, traced: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(rules)
    selective = {**FULL, "DFTRACER_AGGREGATION_TYPE": "SELECTIVE", "DFTRACER_AGGREGATION_FILE": str(path)}
    run = traced(STORM, env=selective)
    assert run.stderr == ""
    assert total(sums(run, summed), "dft_cnt") >= 1
    assert not [e for e in run.trace.events if e.name == summed and e.ph == "X"]
    assert [e for e in run.trace.events if e.name == single and e.ph == "X"]
    assert not sums(run, single)


@pytest.mark.parametrize(
    ("rule", "rank", "is_summed"),
    [
        ("rank == 3 AND name == 'pread'", "3", True),
        ("rank == 3 AND name == 'pread'", "2", False),
        ("rank IN {1, 2} AND name == 'pread'", "2", True),
        ("rank >= 0 AND name == 'pread'", None, False),  # no launcher: -1
        ("name == 'pread' AND app LIKE 'python%'", None, True),
        ("name == 'pread' AND NOT app LIKE 'python%'", None, False),
        ("name == 'pread' AND app == 'ior'", "3", False),
    ],
)
def test_rules_choose_processes(
    rule: str, rank: str | None, is_summed: bool, traced: Callable[..., Run], tmp_path: Path
) -> None:
    """One file of rules for a whole job."""
    path = tmp_path / "rules.yaml"
    path.write_text(f'inclusion:\n  - "{rule}"\n')
    selective = {**FULL, "DFTRACER_AGGREGATION_TYPE": "SELECTIVE", "DFTRACER_AGGREGATION_FILE": str(path)}
    run = traced(STORM, env={**selective, "RANK": rank})
    assert run.stderr == ""
    assert total(sums(run, "pread"), "dft_cnt") == (3000 if is_summed else 0)
    assert not sums(run, "close")


def test_selective_without_rules_sums_up_short_events(traced: Callable[..., Run]) -> None:
    """As DFTracer's documents say: the rule is `dur < 100`."""
    run = traced(
        """
        import time
        with ai.compute.forward:
            pass
        with ai.compute.backward:
            time.sleep(0.001)
        """,
        env={**FULL, "DFTRACER_DISABLE_IO": "1", "DFTRACER_AGGREGATION_TYPE": "SELECTIVE"},
    )
    assert run.stderr == ""
    single = [e for e in run.trace.events if e.ph == "X"]
    assert "backward" in {e.name for e in single}
    assert all(e.dur >= 100 for e in single)
    assert all(r.args["dur_max"] < 100 for f in run.trace.files for r in f.records if r.ph == "A")


@pytest.mark.parametrize(
    ("rules", "result"),
    [
        (None, "it cannot be read"),
        ('inclusion:\n  - "size > 3"\n', "line 2: 'size' is none of cat, name, ts, dur, rank, app"),
        (
            'inclusion:\n  - "tags.step > 3"\n',
            "line 2: 'tags.step': rules cannot use the arguments of events",
        ),
        ('inclusion:\n  - "rank LIKE 3"\n', "line 2: 'LIKE' is no comparison"),
        ('inclusion:\n  - "app > 3"\n', "line 2: app is text"),
        ('inclusion:\n  - "dur < many"\n', "line 2: 'many' is not a number"),
        ('inclusion:\n  - "dur < 1.2.3"\n', "line 2: '1.2.3' is not a number"),
        ("rules: 3\n", "line 1: neither a list"),
        ("exclusion:\n  - dur > 3\n", "it includes nothing"),
    ],
)
def test_a_mistake_in_the_rules_is_reported_and_every_event_written(
    rules: str | None, result: str, traced: Callable[..., Run], tmp_path: Path
) -> None:
    path = tmp_path / "rules.yaml"
    if rules is not None:
        path.write_text(rules)
    selective = {**FULL, "DFTRACER_AGGREGATION_TYPE": "SELECTIVE", "DFTRACER_AGGREGATION_FILE": str(path)}
    run = traced(STORM, env=selective)
    assert run.stderr.count("\n") == 1
    assert result in run.stderr
    assert len([e for e in run.trace.events if e.name == "pread"]) == 3000


def test_many_files_share_a_sum(traced: Callable[..., Run]) -> None:
    """Beyond the most files, calls are counted without theirs: the trace stays bounded."""
    run = traced(
        """
        import os
        os.makedirs("data")
        for i in range(3000):
            os.close(os.open(f"data/{i}", os.O_CREAT | os.O_WRONLY))
        """,
        env={**FULL, "DFTRACER_FLUSH_MS": "1000"},
    )
    for name in ("open", "close"):
        found = sums(run, name)
        assert total(found, "dft_cnt") >= 3000
        assert [r for r in found if "fhash" not in r.args], "no file shares a sum with others"
    (file,) = run.trace.files
    records = [r for r in file.records if r.ph == "A"]
    names, intervals = {r.name for r in records}, {r.ts for r in records}
    # A second has 1024 with a file, and each commit one of each call without.
    seconds = 2 + (file.end_record.ts - min(r.ts for r in records)) // 1_000_000
    commits = file.end_record.args["members"]
    assert len(records) <= 1024 * seconds + len(names) * (len(intervals) + commits)
