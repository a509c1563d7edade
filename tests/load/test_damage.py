"""A damaged file costs what was damaged: one member, counted, and every command reads the same records."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer.cli.main import main
from dftracer.format.members import member_index, member_spans
from dftracer.format.reader import read_trace
from dftracer.load._scan import Scanner
from dftracer.testing.synthetic import Process
from support.process import clean_environment

EVENTS = 100_000
PROGRAM = f"""
import sys
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1], None, -1)
for i in range({EVENTS}):
    with ai.compute.forward:
        pass
log.finalize()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A trace of many members, as the recorder writes it."""
    place = tmp_path_factory.mktemp("whole")
    env = clean_environment(
        DFTRACER_ENABLE="1",
        DFTRACER_DISABLE_IO="1",
        DFTRACER_WRITE_BUFFER_SIZE="256K",
        DFTRACER_INC_METADATA="1",
        DFTRACER_MAX_STALL_US="60000000",  # whoever else has the cores, nothing is dropped
    )
    subprocess.run([sys.executable, "-c", PROGRAM, str(place / "t.pfw.gz")], check=True, env=env)
    (file,) = place.glob("*.pfw.gz")
    return file.read_bytes()


def members_of(data: bytes) -> list[tuple[int, int, int]]:
    """Where each member begins and ends, and how many records it has."""
    found = []
    at = 0
    while at < len(data):
        index = member_index(data[at : at + 64])
        assert index is not None
        found.append((at, at + index.member_size, index.lines))
        at += index.member_size
    return found


def scanned(file: Path) -> dict[str, Any]:
    scanner = Scanner(file, 2, 1 << 16)
    for _ in scanner:
        pass
    return scanner.counts()


def records_of(file: Path) -> int:
    counts = scanned(file)
    return int(counts["events"] + counts["meta"])


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def blanked(data: bytes, at: int, size: int) -> bytes:
    return data[:at] + bytes(size) + data[at + size :]


def in_the_middle(data: bytes) -> int:
    spans = members_of(data)
    start, end, _ = spans[len(spans) // 2]
    return (start + end) // 2


@pytest.mark.parametrize("kind", ["flip", "zeros"])
def test_damage_costs_one_member_and_every_command_says_so(
    whole: bytes, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in" / "t.pfw.gz"
    file.parent.mkdir()
    file.write_bytes(whole)
    all_records = records_of(file)
    assert all_records >= EVENTS
    assert len(members_of(whole)) > 10
    largest = max(lines for _, _, lines in members_of(whole))
    file.write_bytes(flipped(whole, 0) if kind == "flip" else blanked(whole, in_the_middle(whole), 50))
    counts = scanned(file)
    records = counts["events"] + counts["meta"]
    assert all_records - largest <= records < all_records
    assert counts["members_cut"] == 1

    _, info = run_json(capsys, "info", str(file))
    assert info["files"][0]["records"] == records
    code, output = run_json(capsys, "validate", str(file))
    assert code == 1
    assert output["files"][0]["records"] == records
    _, output = run_json(capsys, "report", str(file))
    assert output["trace"]["events"] == counts["events"]
    assert output["trace"]["truncated_files"] == 1
    _, output = run_json(capsys, "query", "select count(*) n from events", str(file), "--no-cache")
    assert output[0]["n"] == counts["events"]
    _, output = run_json(capsys, "export", str(file), "-o", str(tmp_path / "e.parquet"))
    assert output["events"] == counts["events"]
    assert len(read_trace(file).records) == records

    code, output = run_json(capsys, "repair", str(file), "-o", str(tmp_path / "fixed"))
    assert code == 1
    assert output["files"][0]["records"] == records
    assert output["files"][0]["damaged_members"] == 1
    code, merge = run_json(capsys, "merge", str(file), "-o", str(tmp_path / "one.pfw.gz"))
    assert code == 1
    assert merge["records"] == records
    _, sliced = run_json(capsys, "slice", str(file), "-o", str(tmp_path / "part"), "--cat", "compute")
    kept = sum(1 for r in read_trace(file).events if r["cat"] == "compute")
    assert sliced["files"][0]["events"] == kept
    for copy in (tmp_path / "fixed" / "t.pfw.gz", tmp_path / "one.pfw.gz", tmp_path / "part" / "t.pfw.gz"):
        code, output = run_json(capsys, "validate", str(copy))
        problems = [p for p in output["files"][0]["problems"] if "copied from" in p]
        assert len(problems) == 1
        assert code == 1


def test_no_damage_costs_more_than_the_members_it_is_in(whole: bytes, tmp_path: Path) -> None:
    """Wherever it is: in a header, in the size that leads to the next member, in the data or its checksum."""
    file = tmp_path / "t.pfw.gz"
    file.write_bytes(whole)
    everything = records_of(file)
    spans = members_of(whole)
    choose = random.Random(5)
    places = [start + offset for start, _, _ in spans[:3] for offset in range(48)]
    places += [end - choose.randrange(1, 9) for _, end, _ in spans[-3:]]
    places += [choose.randrange(len(whole)) for _ in range(60)]
    for at in places:
        hit = next(lines for start, end, lines in spans if start <= at < end)
        file.write_bytes(flipped(whole, at))
        counts = scanned(file)
        records = counts["events"] + counts["meta"]
        assert everything - hit <= records <= everything, (at, spans[:4], hit, records, everything, counts)
        if records < everything:
            assert counts["members_cut"] == 1, at
    for at in (choose.randrange(len(whole) - 5000) for _ in range(40)):
        hit = sum(lines for start, end, lines in spans if start < at + 5000 and end > at)
        file.write_bytes(blanked(whole, at, 5000))
        counts = scanned(file)
        assert everything - hit <= counts["events"] + counts["meta"] < everything, at
        assert counts["members_cut"] >= 1, at
        # Members that are gone altogether.
        file.write_bytes(whole[:at] + whole[at + 5000 :])
        counts = scanned(file)
        assert everything - hit <= counts["events"] + counts["meta"] < everything, at
        assert counts["members_cut"] >= 1, at


def test_a_section_never_begins_in_damaged_data(whole: bytes, tmp_path: Path) -> None:
    """A wrong size in a header leads nowhere; the sections that are read in parallel still cover the file."""
    file = tmp_path / "t.pfw.gz"
    start = members_of(whole)[3][0]
    file.write_bytes(flipped(whole, start + 17))  # the size of the fourth member
    together = scanned(file)
    parts = [Scanner(file, 1, 1 << 16, span=span) for span in member_spans(file, 1 << 15)]
    for part in parts:
        for _ in part:
            pass
    assert sum(part.counts()["events"] for part in parts) == together["events"] == EVENTS + 2


def _variants(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """A trace with a number that is none, or none that fits, in every place where numbers are."""
    own = ["id", "pid", "tid", "ts", "dur"]
    others = ["step", "ret", "size", "ppid", "num_events", "dropped"]
    values = ["12345678901234567890", str(1 << 62), str(-(1 << 62)), "[1,2]", "1e308", '"x"']
    for key in (*own, *others):
        for value in values if key in own else values[::2]:
            put = re.compile(rf'"{key}":(-?\d+|"[^"]*")')
            # In all, since the first and the last time decide about the span; or in some, beside good ones.
            for every in (1, 7) if key in own else (1,):
                changed = [
                    put.sub(f'"{key}":{value}', line) if n % every == 0 else line
                    for n, line in enumerate(lines)
                ]
                yield f"{key}={value}/{every}", changed
    own_record = '{"id":1,"name":"run","pid":10,"tid":10,"ph":"M","args":{"name":"run","value":"r"%s}}'
    with_host = '{"id":1,"name":"HH","pid":10,"tid":10,"ph":"M","args":{"name":"vm","value":"a","run":"r"%s}}'
    keys = (
        "start",
        "rank",
        "world_size",
        "attempt",
        "owner",
        "host",
        "launcher",
        "version",
        "python",
        "command",
    )
    for value in values:
        run_json = "".join(f',"{key}":{value}' for key in keys)
        for record in (own_record, with_host, with_host.replace('"r"', value)):
            yield f"run={value}", [lines[0], record % run_json, *lines[1:]]


def test_numbers_that_are_none_are_skipped_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record that says the impossible is skipped and counted, or its value is; no command fails on it."""
    good = tmp_path / "good"
    good.mkdir()
    process = Process(10, rank=0, world_size=1)
    for step in range(6):
        at = step * 10_000
        process.step(step, at, 1000, 8000, step=step)
        process.span("compute", "forward", at + 2000, 5000, step=step)
        process.span("POSIX", "read", at + 100, 500, ret=4096, size=4096)
    file = process.write(good, gz=False)
    lines = file.read_text().splitlines()
    place = tmp_path / "bad"
    place.mkdir()
    for what, text in _variants(lines):
        (place / file.name).write_text("\n".join(text) + "\n")
        for argv in (
            ["report", str(place)],
            ["check", str(place), "--baseline", str(good)],
            ["top", str(place), "--once"],
        ):
            code = main(argv)
            output = capsys.readouterr()
            assert code in {0, 1, 2}, (what, argv[0], output.err)
            assert "Traceback" not in output.err
