"""What repeats is kept once with its count; what does not is kept as it came."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dftracer.analyze.intervals import EMPTY
from dftracer.analyze.map.memory import Calls, FileSums, Rows
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
    result: Counter[tuple[int, ...]] = Counter()
    for row, n in zip(zip(*(c.tolist() for c in columns), strict=True), counts.tolist(), strict=True):
        result[row] += n
    assert result == Counter(zip(*table.tolist(), strict=True))


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


def test_sums_of_calls_are_the_same_however_they_are_divided() -> None:
    some = np.random.default_rng(1)
    rows = np.stack([some.integers(0, high, 3000) for high in (5, 7, 4, 9, 3, 1000, 50)])
    for chunk in (3000, 7):
        sums = FileSums()
        assert sums.frames([]) == (None, None)
        for i in range(0, rows.shape[1], chunk):
            # Files are numbered from the last to the first in the chunks.
            sums.add(Calls.of(4 - rows[0, i : i + chunk], *rows[1:, i : i + chunk]), lambda f: 4 - f)
        files, times = sums.frames(["a", "b", "c", "d"])
        assert files is not None
        assert times is not None
        for frame, keys in ((files, (0, 1, 2)), (times, (3, 1))):
            wanted: dict[tuple[object, ...], list[int]] = {}
            for row in rows.T.tolist():
                key = tuple([*"abcd", "(unknown)"][row[k]] if k == 0 else row[k] for k in keys)
                sofar = wanted.setdefault(key, [0, 0, 0])
                for i, value in enumerate(row[4:]):
                    sofar[i] += value
            assert {row[: len(keys)]: list(row[len(keys) : len(keys) + 3]) for row in frame.rows()} == wanted
