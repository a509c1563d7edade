"""Ranks of different hosts are brought to one clock, and the error that is stated holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dftracer.link import link
from dftracer.link.clock import Member, align, match
from link.test_directory import edit


def _elsewhere(shift_us: float) -> Any:
    def change(profile: dict[str, Any]) -> None:
        profile["host_name"] = "another-host"
        for e in profile["traceEvents"]:
            if "ts" in e:
                e["ts"] += shift_us

    return change


@pytest.mark.parametrize("shift_us", [0.0, 3_600_000_000.0, -250_000.0])
def test_clocks_of_two_hosts(ddp: Path, tmp_path: Path, shift_us: float) -> None:
    for path in ddp.glob("*.pfw.gz"):
        path.unlink()
    edit(ddp / "kineto_trace_1.json", _elsewhere(shift_us))
    report = link(ddp, tmp_path / "l")
    clock = report.clocks[1]
    assert clock.method == "collectives"
    assert clock.error_ns is not None
    # The program ran on one host, so the true offset is known.
    assert abs(clock.offset_ns + shift_us * 1000) <= clock.error_ns + 1000
    frame = pl.read_parquet(tmp_path / "l" / "collectives.parquet")
    for _, parts in frame.group_by("key"):
        assert min(parts["end_ns"]) >= max(parts["start_ns"]) - 1000


def test_one_host_has_one_clock(recorded: Path, tmp_path: Path) -> None:
    report = link(recorded, tmp_path)
    assert report.clocks[1].method == "same host"
    assert report.clocks[1].offset_ns == 0


def _member(
    rank: int, number: int, start: int, end: int, kind: str = "all_reduce", seq: int | None = None
) -> Member:
    return Member(rank, 0, number, kind, "0", number, seq, start, end, True, 4)


def test_the_error_is_what_the_collectives_leave_open() -> None:
    """Rank 1's clock is 1000 behind; the tightest collective bounds the offset from both sides."""
    members = [
        _member(0, 0, 1000, 1500), _member(1, 0, 300, 520),
        _member(0, 1, 2900, 3010), _member(1, 1, 1980, 2015),
    ]  # fmt: skip
    matched = match(members, [])
    clocks = align([{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}], matched, [])
    low = max(1000 - 520, 2900 - 2015)
    high = min(1500 - 300, 3010 - 1980)
    assert low <= 1000 <= high
    assert low <= clocks[1].offset_ns <= high
    assert clocks[1].error_ns == max(high - clocks[1].offset_ns, clocks[1].offset_ns - low)


def test_collectives_that_contradict_each_other_are_told() -> None:
    members = [
        _member(0, 0, 0, 10), _member(1, 0, 0, 10),
        _member(0, 1, 100, 110), _member(1, 1, 500, 510),
    ]  # fmt: skip
    warnings: list[str] = []
    clocks = align([{"rank": 0, "host": "a"}, {"rank": 1, "host": "b"}], match(members, warnings), warnings)
    assert clocks[1].error_ns is None
    assert any("contradict" in w for w in warnings)


def test_sequence_numbers_match_windows_that_begin_at_different_collectives() -> None:
    members = [_member(0, i, 100 * i, 100 * i + 50, seq=10 + i) for i in range(3)]
    members += [_member(1, i, 100 * i + 100, 100 * i + 150, seq=11 + i) for i in range(3)]
    matched = match(members, [])
    assert sorted(len(p) for p in matched.values()) == [2, 2]
    assert all(a.seq == b.seq for a, b in matched.values())


def test_different_types_are_not_matched() -> None:
    warnings: list[str] = []
    members = [_member(0, 0, 0, 1), _member(1, 0, 0, 1, "broadcast")]
    assert match(members, warnings) == {}
    assert len(warnings) == 1


def test_records_of_the_collection_name_groups_and_counts(ddp: Path, tmp_path: Path) -> None:
    """What torch does not say of gloo's groups comes from the communication records."""
    for rank in (0, 1):
        profile = json.loads((ddp / f"kineto_trace_{rank}.json").read_text())
        calls = [e for e in profile["traceEvents"] if e.get("name") == "c10d::allreduce_"]
        base = profile["baseTimeNanoseconds"] / 1000
        lines = [
            {
                "type": "all_reduce",
                "group": "7",
                "ranks": [0, 1],
                "seq": 100 + i,
                "bytes": 4,
                "dtype": "float32",
                "async": True,
                "start_us": base + e["ts"] - 3,
                "dur_us": 5,
            }
            for i, e in enumerate(sorted(calls, key=lambda e: e["ts"]))
        ]
        (ddp / f"comms_{rank}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    link(ddp, tmp_path / "l")
    frame = pl.read_parquet(tmp_path / "l" / "collectives.parquet")
    assert set(frame["group"]) == {"7 [0,1]"}
    assert sorted(set(frame["seq"]))[0] == 100
    assert frame["seq"].null_count() == 0
