"""What repeats is kept once with its count; what does not is kept as it came."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from dftracer.analyze.intervals import EMPTY
from dftracer.analyze.map.memory import Rows, Sums
from dftracer.analyze.map.threads import Lanes, Question, explain


def _fill(rows: Rows, table: np.ndarray, chunk: int = 500) -> None:
    for i in range(0, table.shape[1], chunk):
        rows.add(*table[:, i : i + chunk])


def test_rows_that_differ_stay_in_their_order() -> None:
    rows = Rows("f", "ts", "dur", most=1000)
    table = np.stack([np.arange(9000) % 7, np.arange(9000)[::-1] * 3, np.arange(9000) % 11])
    _fill(rows, table)
    columns, counts = rows.take()
    assert counts is None
    assert np.array_equal(np.stack(columns), table)


@pytest.mark.parametrize("times", [1, 3, 400])  # so few times may all be in the sample, or none
def test_rows_that_repeat_are_counted(times: int) -> None:
    rows = Rows("f", "ts", "dur", most=1000)
    some = np.random.default_rng(1)
    table = np.stack([some.integers(0, 3, 60_000), some.integers(0, times, 60_000), np.full(60_000, 5)])
    _fill(rows, table)
    columns, counts = rows.take()
    assert counts is not None
    assert columns[0].size < 6000
    told: Counter[tuple[int, ...]] = Counter()
    for row, n in zip(zip(*(c.tolist() for c in columns), strict=True), counts.tolist(), strict=True):
        told[row] += n
    assert told == Counter(zip(*table.tolist(), strict=True))


def test_a_folded_transfer_weighs_as_often_as_it_was_there() -> None:
    window = (np.array([0, 100]), np.array([100, 200]))
    asked = Question(window, EMPTY, window, EMPTY, None)
    file, ts, dur = np.array([0, 1, 1, 1], np.int32), np.array([10, 20, 20, 120]), np.array([5, 7, 7, 9])
    plain = explain(Lanes([], file, ts, dur, paths=["a", "b"]), asked)
    once = [0, 1, 3]
    counted = Lanes([], file[once], ts[once], dur[once], paths=["a", "b"], io_n=np.array([1, 2, 1]))
    folded = explain(counted, asked)
    assert plain.step_io_us.tolist() == folded.step_io_us.tolist() == [19, 9]
    assert plain.files_us == folded.files_us == [("b", 23), ("a", 5)]


def test_sums_are_the_same_however_often_they_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dftracer.analyze.map.memory._MOST", 10)
    sums = Sums(["k"], ["n"], ("m",))
    assert sums.take() is None
    for i in range(100):
        sums.add(pl.DataFrame({"k": [i % 3, 7], "n": [1, 2], "m": [i, -i]}))
    joined = sums.take()
    assert joined is not None
    assert sorted(joined.rows()) == [(0, 34, 99), (1, 33, 97), (2, 33, 98), (7, 200, 0)]
