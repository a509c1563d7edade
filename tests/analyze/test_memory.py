"""What grows with the trace stays under the limit, and the answer is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dftracer.analyze import analyze
from dftracer.analyze.map.threads import Lane, Lanes, LaneStore
from dftracer.load import Trace
from dftracer.report import document
from dftracer.testing.synthetic import training_run


def _lanes(n: int) -> Lanes:
    times = np.arange(n, dtype=np.int64)
    lane = Lane(n, times, times + 1, np.zeros(n, np.uint8), n)
    file = np.full(n, n, np.int32)
    return Lanes([lane], file, times, times[::-1].copy(), (times[:1], times[-1:]), paths=[str(n)])


@pytest.mark.parametrize("limit", [0, 500, 1 << 30])
def test_a_store_gives_back_what_was_put_in(limit: int) -> None:
    with LaneStore(limit) as store:
        for n in (10, 20, 30):
            store.put(n, _lanes(n))
        for n in (30, 10, 20):
            got = store.take(n)
            assert got.paths == [str(n)]
            assert got.lanes[0].end.tolist() == list(range(1, n + 1))
            assert got.io_ts.tolist() == list(range(n))
            assert got.io_dur.tolist() == list(range(n))[::-1]
            assert got.io_file.tolist() == [n] * n
            assert [each.tolist() for each in got.io] == [[0], [n - 1]]


def test_a_small_limit_changes_nothing_but_the_memory(tmp_path: Path) -> None:
    run = training_run(tmp_path, events=20_000, ranks=2, workers=2)
    small = document(analyze(Trace(run.directory, memory_limit=1)))
    assert small == document(analyze(Trace(run.directory)))
