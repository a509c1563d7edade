"""The native reader: every dialect, every damage, nothing lost in silence."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dftracer import _core
from dftracer.load import NoTraces, Trace
from dftracer.load._scan import Scanner
from dftracer.load.chunk import Chunk
from dftracer.load.find import find_files
from dftracer.testing.synthetic import Process, training_run

EVENT = {"id": 1, "name": "f", "cat": "c", "pid": 7, "tid": 8, "ts": 1000, "dur": 5, "ph": "X", "args": {}}


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Trace(path, cache=False).arrow().to_pylist()
    return rows


def _counts(path: Path, **how: Any) -> dict[str, Any]:
    s = Scanner(path, **how)
    for _ in s:
        pass
    return s.counts()


def test_all_args_are_kept_and_the_common_ones_are_columns(tmp_path: Path) -> None:
    args = {
        "hhash": "ab",
        "p_idx": 3,
        "epoch": 2,
        "step": 9,
        "mine": [1, {"a": "]"}],
        "x": None,
        "level": 4,
        "y": 1.5,
    }
    file = _write(tmp_path / "a.pfw", "[", json.dumps({**EVENT, "args": args}), "]")
    (row,) = _rows(file)
    assert (row["p_idx"], row["epoch"], row["step"], row["level"]) == (3, 2, 9, 4)
    assert json.loads(row["args"]) == {"mine": [1, {"a": "]"}], "x": None, "y": 1.5}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            {
                **EVENT,
                "ts": "1000",
                "dur": "5",
                "pid": "7",
                "tid": "8",
                "args": {"hostname": "h", "filename": "/a"},
            },
            {"path": "/a"},
        ),
        ({**EVENT, "args": {"fhash": 51234, "hhash": 99}}, {"fhash": "51234"}),
        ({**{k: v for k, v in EVENT.items() if k != "args"}, "ph": 1, "type": 2}, {"ph": "X"}),
        ({**EVENT, "ph": 2}, {"ph": "C"}),
        ({**EVENT, "args": {"count": "12"}}, {"count": 12}),
        ({**EVENT, "args": {"count": 12}}, {"count": 12}),
        ({"args": {"step": 4}, **{k: v for k, v in EVENT.items() if k != "args"}}, {"step": 4}),
        ({**EVENT, "args": {"step": "abc"}}, {"step": None, "args": '{"step":"abc"}'}),
        ({**EVENT, "args": {"filenames": "x"}}, {"path": None, "args": '{"filenames":"x"}'}),
        ({**EVENT, "args": {"image_idx": 5, "image_ids": 6}}, {"image_idx": 5, "args": '{"image_ids":6}'}),
        ({**EVENT, "args": {"ret": 2**63}}, {"ret": None, "args": '{"ret":9223372036854775808}'}),
    ],
)
def test_dialects_read_alike(tmp_path: Path, line: dict[str, Any], expected: dict[str, Any]) -> None:
    file = _write(tmp_path / "a.pfw", json.dumps(line, separators=(",", ":")))
    (row,) = _rows(file)
    assert (row["name"], row["ts"], row["dur"], row["pid"]) == ("f", 1000, 5, 7)
    assert {k: row[k] for k in expected} == expected


def test_commas_blank_lines_and_brackets_are_tolerated_and_bad_lines_counted(tmp_path: Path) -> None:
    good = json.dumps(EVENT)
    file = _write(
        tmp_path / "a.pfw",
        "[" + good + ",",
        "",
        good + ", ",
        "{broken",
        '{"id":1}',
        good,
        '{"name":"a',
        good,
        "]",
    )
    assert len(_rows(file)) == 4
    assert _counts(file)["bad_lines"] == 3


def test_a_cut_last_line_is_counted_and_costs_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.pfw"
    file.write_text(json.dumps(EVENT) + "\n" + json.dumps(EVENT)[:40])
    counts = _counts(file)
    assert (counts["events"], counts["cut_lines"], counts["closed"]) == (1, 1, False)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("keep", [0.3, 0.61, 0.97])
def test_a_truncated_file_gives_what_is_in_it(tmp_path: Path, noted: bool, keep: float) -> None:
    whole = training_run(tmp_path, events=3000, ranks=1, workers=1).files[0]
    data = whole.read_bytes() if noted else gzip.compress(gzip.decompress(whole.read_bytes()))
    cut = tmp_path / "cut.pfw.gz"
    cut.write_bytes(data[: int(len(data) * keep)])
    counts = _counts(cut)
    everything = _counts(whole)["events"]
    assert 0 < counts["events"] < everything
    assert counts["members_cut"] == 1


def test_a_damaged_member_in_the_middle_costs_only_itself(tmp_path: Path) -> None:
    p = Process(5)
    for i in range(4000):
        p.span("c", "f", i * 10, 5)
    file = p.write(tmp_path, member_text=20_000)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    data[len(data) // 2 + 1] ^= 0xFF
    file.write_bytes(bytes(data))
    counts = _counts(file)
    assert counts["members_cut"] == 1
    assert counts["events"] > 3700


def test_plain_one_stream_many_members_and_many_threads_read_alike(tmp_path: Path) -> None:
    file = training_run(tmp_path, events=40_000, ranks=1, workers=1).files[0]
    text = gzip.decompress(file.read_bytes())
    (tmp_path / "plain.pfw").write_bytes(text)
    (tmp_path / "stream.pfw.gz").write_bytes(gzip.compress(text))
    half = text.index(b"\n", len(text) // 2) - 7  # a member that ends inside a line
    (tmp_path / "two.pfw.gz").write_bytes(gzip.compress(text[:half]) + gzip.compress(text[half:]))
    reference = Trace(file, cache=False, threads=1).polars().drop("file")
    for name, threads in (("plain.pfw", 3), ("stream.pfw.gz", 2), ("two.pfw.gz", 1), (file.name, 4)):
        other = (
            Trace(tmp_path / name, cache=False, threads=threads, memory_limit=1 << 20).polars().drop("file")
        )
        assert other.equals(reference), name


def test_strings_survive_exactly(tmp_path: Path) -> None:
    names = ['quote"', "back\\slash", "new\nline", "tab\t", "ü€😀", "\u0001", "a" * 100_000, "/slash", ""]
    lines = [json.dumps({**EVENT, "name": n}) for n in names] + [
        json.dumps({**EVENT, "name": n}, ensure_ascii=False) for n in names
    ]
    assert [r["name"] for r in _rows(_write(tmp_path / "a.pfw", *lines))] == names * 2


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.text(max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(min_size=1, max_size=30),
            st.dictionaries(st.text(max_size=12), _VALUES, max_size=5),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_any_record_comes_back_as_the_json_module_reads_it(
    tmp_path_factory: pytest.TempPathFactory, records: Any
) -> None:
    file = tmp_path_factory.mktemp("t") / "a.pfw"
    events = [{**EVENT, "id": i, "name": n, "args": a} for i, (n, a, _) in enumerate(records)]
    lines = [
        json.dumps(e, ensure_ascii=ascii_, separators=(",", ":") if ascii_ else None)
        for e, (_, _, ascii_) in zip(events, records, strict=True)
    ]
    file.write_bytes(("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"))
    rows = _rows(file)
    assert [r["name"] for r in rows] == [e["name"] for e in events]
    known = {
        "hhash",
        "fhash",
        "fname",
        "filename",
        "p_idx",
        "level",
        "epoch",
        "step",
        "count",
        "size",
        "offset",
        "ret",
        "errno",
        "image_idx",
    }
    for row, event in zip(rows, events, strict=True):
        kept = json.loads(row["args"]) if row["args"] else {}
        assert {k: v for k, v in kept.items() if k not in known} == {
            k: v for k, v in event["args"].items() if k not in known
        }


_REPEATED: dict[str, tuple[Any, ...]] = {
    "p_idx": (5, 5, 6, -1, 1234567, 12345678, 2**62),
    "fhash": ("0123456789abcdef", "0123456789abcdef", "fedcba9876543210", "short"),
    "count": (131072, 131072, 131073, 0, "77", 1.5, 10**30, None),
    "ret": (131072, 131072, 13107, 131072000, -1, "text"),
    "mine": (1, [1, {"a": "}"}], "x" * 200),
    "step": (0, 1, 9999999, 10000000),
    "level": (3, 3, 3, 4),
}


@pytest.mark.parametrize("seed", range(20))
def test_rows_that_repeat_a_part_of_the_last_one(seed: int, tmp_path: Path) -> None:
    """Each row as the json module reads it, whatever it has in common with the one before."""
    draw = random.Random(seed)
    events: list[dict[str, Any]] = []
    lines: list[str] = []
    for i in range(400):
        keys = [key for key in _REPEATED if draw.random() < 0.93]
        if draw.random() < 0.03:
            draw.shuffle(keys)
        event = {
            **EVENT,
            "id": draw.choice((i, i * 10**6)),
            "name": draw.choice(("read", "read", "close")),
            "tid": draw.choice((8, 8, 88)),
            "ts": 1760000000000000 + i,
            "dur": draw.choice((1, 20, 300)),
            "args": {"hhash": "64f0d2a8ee9ef335", **{key: draw.choice(_REPEATED[key]) for key in keys}},
        }
        text = json.dumps(event, separators=(",", ":"))
        if draw.random() < 0.05:
            text = text.replace(',"ret"', draw.choice((' ,"ret"', ', "ret"', ',  "ret"')))
        events.append(event)
        lines.append(text)
    rows = _rows(_write(tmp_path / "a.pfw", *lines))
    for row, wanted in zip(rows, events, strict=True):
        head = ("id", "name", "tid", "ts", "dur")
        assert {k: row[k] for k in head} == {k: wanted[k] for k in head}
        args = wanted["args"]
        lifted = {k: v for k, v in args.items() if isinstance(v, int) and k != "mine" and abs(v) < 2**63}
        lifted |= {"count": 77} if args.get("count") == "77" else {}
        numbers = [k for k in _REPEATED if k not in ("fhash", "mine")]
        assert {k: row[k] for k in numbers} == {k: lifted.get(k) for k in numbers}
        assert row["fhash"] == args.get("fhash")
        left = {k: v for k, v in args.items() if k not in (*lifted, "fhash", "hhash")}
        assert (json.loads(row["args"]) if row["args"] else {}) == left


def test_filters_reach_the_reader_and_skip_whole_members(tmp_path: Path) -> None:
    run = training_run(tmp_path, events=60_000, ranks=2, workers=1, steps_per_epoch=20)
    t = Trace(run.directory, cache=False)
    everything = t.polars()
    low, high = (int(everything["ts"].quantile(q) or 0) for q in (0.4, 0.5))
    selections: list[tuple[dict[str, Any], pl.Expr]] = [
        ({"ranks": [1]}, pl.col("rank") == 1),
        ({"pids": [1000]}, pl.col("pid") == 1000),
        ({"cats": ["compute"]}, pl.col("cat") == "compute"),
        ({"names": ["read", "open"]}, pl.col("name").cast(pl.String).is_in(["read", "open"])),
        ({"steps": (10, 12)}, pl.col("step").is_between(10, 12)),
        ({"epochs": (1, 1)}, pl.col("epoch") == 1),
        ({"time": (low, high)}, pl.col("ts").is_between(low, high)),
    ]
    for how, truth in selections:
        selected = t.select(**how).polars()
        assert selected.height == everything.filter(truth).height > 0, how
    scanner = Scanner(run.files[0], ts=(low, high))
    for _ in scanner:
        pass
    assert scanner.counts()["members_skipped"] > 0


def test_a_selection_narrows(tmp_path: Path) -> None:
    run = training_run(tmp_path, events=5_000, ranks=2, workers=1, steps_per_epoch=20)
    everything = Trace(run.directory, cache=False)
    rank0 = everything.select(ranks=[0])
    some = rank0.select(cats=["compute"], steps=(2, 6)).select(steps=(4, 9))
    truth = everything.polars().filter(
        (pl.col("rank") == 0) & (pl.col("cat") == "compute") & pl.col("step").is_between(4, 6)
    )
    assert some.polars().height == truth.height > 0
    assert some.select().polars().height == truth.height
    for nothing in (
        rank0.select(ranks=[1]),
        some.select(cats=["dataloader"]),
        some.select(steps=(7, 9)),
        everything.select(names=[]),
        everything.select(pids=[]),
        everything.select(time=(5, 6)).select(time=(7, 8)),
    ):
        assert nothing.polars().height == 0, nothing.filter
        assert nothing.lazy().collect().height == 0, nothing.filter
    with pytest.raises(TypeError):
        everything.select(rank=[0])  # type: ignore[call-arg] # the mistake is what is tested


def test_an_empty_file_and_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "e.pfw").write_bytes(b"")
    assert Trace(tmp_path, cache=False).arrow().num_rows == 0
    with pytest.raises(NoTraces, match="does not exist"):
        Trace(tmp_path / "nothing")
    (tmp_path / "e.pfw").unlink()
    with pytest.raises(NoTraces, match="DFTRACER_ENABLE=1"):
        Trace(tmp_path)


def test_events_that_wait_in_a_ring_are_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = {"state": "dead", "records": 5, "trace": str(tmp_path / "t.pfw.gz")}
    monkeypatch.setattr(_core, "rings", lambda _paths: [ring])
    with pytest.raises(NoTraces, match=r"; 5 events of a killed process are still in its ring, because"):
        find_files(tmp_path)


def test_chunks_stay_small_whatever_the_file(tmp_path: Path) -> None:
    run = training_run(tmp_path, events=60_000, ranks=1, workers=1)
    scanner = Scanner(run.files[0], 2, 1 << 16)
    sizes = [Chunk(raw).rows for raw in scanner]
    assert len(sizes) > 5
    assert max(sizes) < 12_000  # one member of 1 MiB


def test_columns_without_values_take_no_room(tmp_path: Path) -> None:
    file = _write(tmp_path / "a.pfw", json.dumps(EVENT))
    chunk = Chunk(next(Scanner(file)))
    assert not chunk.has("offset")
    assert chunk.ints("offset").tolist() == [np.iinfo(np.int64).min]


ENDS_WHILE_READING = """
import sys, threading
from dftracer.load._scan import Scanner

def read():
    while True:
        for _ in Scanner(sys.argv[1], 1, 1 << 16):
            reading.set()

reading = threading.Event()
for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
reading.wait()
"""


def test_a_program_may_end_while_its_threads_read(tmp_path: Path) -> None:
    made = training_run(tmp_path, events=50_000, ranks=1)
    file = max(made.directory.iterdir(), key=lambda f: f.stat().st_size)
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", ENDS_WHILE_READING, str(file)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
