"""Sets of time against the same sets one microsecond at a time."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dftracer.analyze.intervals import (
    Intervals,
    account,
    difference,
    intersection,
    measure,
    pieces,
    union,
    union_of_keys,
)
from dftracer.load._scan import DurationSums, pack_intervals, timeline, unpack_intervals
from dftracer.load.chunk import int32s, int64s, uint32s

SPAN = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))
SPANS = st.lists(SPAN, max_size=40)


def _arrays(spans: list[tuple[int, int]]) -> Intervals:
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _moments(spans: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in spans for t in range(start, end)}


def _lists(a: Intervals) -> list[tuple[int, int]]:
    return [*zip(a[0].tolist(), a[1].tolist(), strict=True)]


@given(SPANS)
def test_a_union_covers_the_same_time_in_as_few_intervals_as_possible(spans: list[tuple[int, int]]) -> None:
    found = _lists(union(*_arrays(spans)))
    assert _moments(found) == _moments(spans)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
    assert all(start < end for start, end in found)


@given(st.lists(st.tuples(SPAN, st.integers(0, 3)), max_size=40))
def test_a_union_of_some_keys_leaves_the_others_out(keyed: list[tuple[tuple[int, int], int]]) -> None:
    spans, keys = [s for s, _ in keyed], np.array([k for _, k in keyed], np.uint8)
    wanted = np.array([True, False, True, False])
    found = union_of_keys(*_arrays(spans), keys, wanted)
    assert _lists(found) == _lists(union(*_arrays([s for s, k in keyed if k in (0, 2)])))


@given(SPANS, SPANS)
def test_measures_and_accounts_of_windows_in_any_order(
    spans: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    a = union(*_arrays(spans))
    inside = [_moments([window]) & _moments(spans) for window in windows]
    assert measure(a, *_arrays(windows)).tolist() == [len(each) for each in inside]
    key = np.arange(a[0].size) % 3
    table = account(*a, key.astype(np.uint8), 3, *_arrays(windows))
    for k in range(3):
        mine = [s for s, of in zip(_lists(a), key.tolist(), strict=True) if of == k]
        assert table[:, k].tolist() == [len(_moments([w]) & _moments(mine)) for w in windows]


@given(SPANS, SPANS)
def test_intersections_differences_and_pieces(
    spans: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    a, b = union(*_arrays(spans)), union(*_arrays(others))
    assert _moments(_lists(intersection(a, b))) == _moments(spans) & _moments(others)
    assert _moments(_lists(difference(a, b))) == _moments(spans) - _moments(others)
    start, end, which = pieces(a, b)
    whole = _lists(b)
    for piece, of in zip(_lists((start, end)), which.tolist(), strict=True):
        assert _moments([piece]) <= _moments([whole[of]])


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.integers(-5, 2**40)), max_size=30))
def test_packed_intervals_come_back(rows: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in rows], np.int64)
    end = start + np.array([d for _, d in rows], np.int64)
    again = unpack_intervals(pack_intervals(start, end), len(rows))
    assert [int64s(column).tolist() for column in again] == [start.tolist(), end.tolist()]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)), max_size=60))
def test_sums_by_kind_and_duration(rows: list[tuple[int, int, int]]) -> None:
    sums = DurationSums()
    pair, dur, own = (np.array([r[i] for r in rows], np.int64) for i in range(3))
    for half in (slice(None, len(rows) // 2), slice(len(rows) // 2, None)):
        sums.add(pair[half].astype(np.int32), dur[half], own[half])
    pairs, durs, n, total = sums.columns()
    found = zip(int32s(pairs), int64s(durs), uint32s(n), int64s(total), strict=True)
    expected: dict[tuple[int, int], list[int]] = {}
    for p, d, s in rows:
        entry = expected.setdefault((p, d), [0, 0])
        entry[0] += 1
        entry[1] += s
    assert {(int(p), int(d)): [int(c), int(s)] for p, d, c, s in found} == expected


def test_events_that_enclose_many_and_events_in_no_order_have_one_timeline() -> None:
    # Class 0 is stage 1, class 1 is stage 2, wherever they are; 0 is the stage outside of all.
    rule = np.array([1, 1, 1, 2, 2, 2], np.uint8)
    inner = 10_000
    ts = np.append(np.arange(inner) * 4 + 1, 0)
    dur = np.append(np.full(inner, 2), 4 * inner)
    cls = np.append(np.ones(inner, np.uint8), np.uint8(0))
    expected = [int64s(c).tolist() for c in timeline(ts, dur, cls, rule, 3, 0)[:2]]
    assert len(expected[0]) == 2 * inner + 1
    for order in (np.arange(inner + 1)[::-1], np.random.default_rng(1).permutation(inner + 1)):
        again = timeline(ts[order], dur[order], cls[order], rule, 3, 0)
        assert [int64s(c).tolist() for c in again[:2]] == expected
