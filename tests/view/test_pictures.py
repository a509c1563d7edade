"""Rows, pictures, ledgers and links against known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dftracer.analyze import STAGES, analyze
from dftracer.live import Recent
from dftracer.report.snapshot import take_snapshot
from dftracer.testing.synthetic import Process, training_run
from dftracer.view.drawn import FILL_STEPS, DrawnProcess, Spans, draw_row, lay_out
from dftracer.view.events import (
    children_of,
    event_at,
    event_details,
    flows_between,
    list_events,
    parents_of,
    search,
    search_args,
)
from dftracer.view.figures import range_facts, step_rows, step_window
from dftracer.view.reading import LEDGER, ledger_between
from dftracer.view.run import Run
from dftracer.view.server import Session, Shown
from dftracer.view.source import FollowedSource, Source
from support.view_trace import STEPS

CASES = Path(__file__).parents[1] / "data" / "h200"


def _part(spans: list[tuple[int, int, int, int]], kinds: int = 4) -> DrawnProcess:
    """Spans as (tid, start, end, kind)."""
    table = np.array(spans, np.int64).reshape(-1, 4)
    n = len(spans)
    columns = Spans(
        table[:, 0],
        table[:, 1],
        table[:, 2],
        table[:, 3].astype(np.int32),
        np.full(n, -1, np.int32),
        np.zeros(n, np.int64),
        np.full(n, -1, np.int64),
    )
    info: dict[str, Any] = {"devices": [], "source": "trace"}
    return lay_out(info, [("c", f"n{k}", k) for k in range(kinds)], [], columns)[0]


def _load(path: Path) -> tuple[Source, Run]:
    source = Source([str(path)], cache=False)
    return source, source.load()


def test_no_two_spans_of_a_row_overlap_and_nesting_is_kept() -> None:
    random = np.random.default_rng(7)
    spans = []
    for tid in (1, 2):
        start = random.integers(0, 1_000_000, 3000) * 1000
        length = random.integers(0, 40_000, 3000) * 1000
        spans += [(tid, int(s), int(s + w), int(k)) for s, w, k in zip(start, length, start % 4, strict=True)]
    part = _part(spans)
    assert len(part) == len(spans)
    for row in range(part.rows):
        low, high = part.row_span(row)
        assert (part.start[low + 1 : high] >= part.end[low : high - 1]).all()
    nested = _part(
        [(1, 0, 100_000, 0), (1, 10_000, 90_000, 1), (1, 20_000, 30_000, 2), (1, 40_000, 50_000, 2)]
    )
    assert nested.row_depth.tolist() == [0, 1, 2]
    assert parents_of(nested, 3) == [1, 0]
    assert children_of(nested, 1).tolist() == [2, 3]


def test_every_zoom_is_exact() -> None:
    """The fill of each pixel against adding up all spans."""
    random = np.random.default_rng(3)
    gaps, lengths = random.integers(0, 900, 20_000), random.integers(0, 700, 20_000)
    start = np.cumsum(gaps + np.concatenate(([0], lengths[:-1])))
    kind = random.integers(0, 4, 20_000)
    part = _part([(1, int(s), int(s + w), int(k)) for s, w, k in zip(start, lengths, kind, strict=True)])
    assert part.rows == 1
    of_pair = part.class_of_pair()
    end = start + lengths
    for t0, t1, width in ((0, int(end[-1]), 300), (1_000_000, 2_500_000, 700), (123_457, 9_000_001, 64)):
        for visible in (np.ones(4, bool), np.array([True, False, True, False])):
            bins = draw_row(part, 0, t0, t1, width, visible, of_pair).bins
            assert bins is not None
            fill = np.zeros(width, np.int64)
            cls = np.full(width, -1)
            for x, w, c, f in zip(bins.x, bins.width, bins.cls, bins.fill, strict=True):
                fill[x : x + w], cls[x : x + w] = f, c
            for x in range(0, width, 7):
                a, b = (t0 + int((t1 - t0) / width * k) for k in (x, x + 1))
                inside = np.maximum(np.minimum(end, b) - np.maximum(start, a), 0)
                busy = np.bincount(kind, inside, minlength=4) * visible
                expected = min(FILL_STEPS, int(busy.sum() / (b - a) * FILL_STEPS + 0.999))
                assert fill[x] == max(expected, int(busy.sum() > 0))
                if busy.sum():
                    assert busy[cls[x]] == busy.max()


def test_an_event_without_length_is_still_seen() -> None:
    part = _part([(1, 1000 * i, 1000 * i, i % 4) for i in range(3000)])
    bins = draw_row(part, 0, 0, 3_000_000, 100, np.ones(4, bool), part.class_of_pair()).bins
    assert bins is not None
    assert int(bins.width.sum()) == 100
    near = draw_row(part, 0, 0, 3000, 100, np.ones(4, bool), part.class_of_pair())
    assert near.spans.tolist() == [0, 1, 2]


def test_lanes_are_named_for_what_they_are(job: Path) -> None:
    _, run = _load(job)
    labels = [(lane.group, lane.label) for lane in run.lanes]
    assert labels == [
        (f"rank {r}", label)
        for r in (0, 1)
        for label in (
            f"rank {r} stages",
            f"rank {r}",
            "stream 7",
            "stream 13 (nccl)",
            "loader worker 0",
            "loader worker 1",
            "loader worker 2",
        )
    ]
    drawn = sum(len(p) for p in run.parts if p.info["source"] != LEDGER)
    # As the report counts them: with the `start` and `end` of each of the 8 processes.
    assert run.events == drawn + 2 * 8


@pytest.mark.parametrize("case", ["job", "device", "input"])
def test_the_ledger_of_a_step_is_that_of_the_report(case: str, job: Path) -> None:
    path = job if case == "job" else CASES / "cases" / case
    _, run = _load(path)
    analysis = analyze(path)
    ledgers = {lane.rank: run.parts[lane.part] for lane in run.lanes if lane.role == "stages"}
    assert len(ledgers) == len(analysis.job.ranks)
    for rank in analysis.job.ranks:
        steps = rank.main.steps
        assert len(steps) > 20
        for i in range(len(steps)):
            result = ledger_between(
                ledgers[rank.number], int(steps.start[i]) * 1000, int(steps.end[i]) * 1000
            )
            # The report's account is in whole microseconds, the profiler's events are not.
            assert np.abs(result / 1000 - rank.main.account[i]).max() <= 1 + 0.002 * steps.wall[i], i
            assert result.sum() == (steps.end[i] - steps.start[i]) * 1000


def test_a_range_has_its_ledger_statistics_and_files(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.step(1, 0, 100, 900)
    p.span("compute", "forward", 200, 300)
    for i in range(10):
        p.io("read", 510 + 10 * i, 8, f"/data/{i % 2}", ret=1000)
    p.write(tmp_path)
    _, run = _load(tmp_path)
    facts = range_facts(run, (50_000, 560_000), None, frozenset())
    (ledger,) = facts["ledger"]
    result = dict(zip(STAGES, ledger["ns"], strict=True))
    assert result["fetch_wait"] == 50_000
    assert result["forward"] == 300_000
    assert result["read"] == 5 * 8000
    assert sum(ledger["ns"]) == 510_000
    names = {n["name"]: n for n in facts["names"]}
    assert names["read"]["count"] == 5
    assert names["read"]["p50"] == 8000
    assert names["fetch.iter"]["total"] == 50_000
    assert {f["path"]: (f["calls"], f["read"]) for f in facts["files"]} == {
        "/data/0": (3, 3000),
        "/data/1": (2, 2000),
    }
    only = range_facts(run, (0, 10**6), None, frozenset({"POSIX"}))
    assert {n["cat"] for n in only["names"]} == {"dataloader", "compute"}
    assert range_facts(run, (0, 10**6), frozenset({5}), frozenset())["events"] == 0


def test_search_finds_names_paths_and_arguments(job: Path) -> None:
    _, run = _load(job)
    assert search(run, "FORWARD")["total"] == 2 * STEPS
    assert search(run, "shard-0003")["total"] == 2 * 10 * 3
    hits = search(run, "shard-0003")["hits"]
    assert [h["start"] for h in hits] == sorted(h["start"] for h in hits)
    assert search(run, "no such thing") == {"total": 0, "hits": []}
    found = search_args(run, "worker_pid=4002", 1)
    assert found["total"] == len(range(1, STEPS, 3))
    assert {h["name"] for h in found["hits"]} == {"fetch.iter"}
    steps = search_args(run, "step=25", 1)
    assert {"forward", "capture", "fetch.block"} <= {h["name"] for h in steps["hits"]}
    assert search_args(run, '"type":"kernel"', 1)["total"] == 2 * 10 * STEPS


def test_a_kernel_leads_to_its_operator_and_back(job: Path) -> None:
    _, run = _load(job)
    kernel = search(run, "flash_fwd_kernel")["hits"][0]
    result = event_details(run, kernel["part"], kernel["span"])
    assert result["operator"]["name"] == "aten::scaled_dot_product_attention"
    assert [(f["kind"], f["from"]["name"]) for f in result["flows"]] == [("launch", "cudaLaunchKernel")]
    assert result["args"]["stream"] == 7
    operator = event_details(run, kernel["part"], result["operator"]["span"])
    assert [k["name"] for k in operator["kernels"]] == ["flash_fwd_kernel"]
    assert [p["name"] for p in operator["parents"]] == ["forward", "fetch.block"]
    block = event_details(run, kernel["part"], operator["parents"][1]["span"])
    assert [c["name"] for c in block["children"]] == ["transfer", "forward", "backward", "step"]
    assert len(block["kernels"]) == 9


def test_an_item_leads_to_its_batch_and_the_step_that_waited(job: Path) -> None:
    _, run = _load(job)
    item = search(run, "item")["hits"][0]
    result = event_details(run, item["part"], item["span"])
    assert result["batch"]["items"] == 4
    assert result["batch"]["maker"].startswith("loader worker")
    assert [w["name"] for w in result["batch"]["waits"]] == ["fetch.iter"]
    assert {f["kind"] for f in result["flows"]} == {"item", "batch"}
    wait = result["batch"]["waits"][0]
    back = event_details(run, wait["part"], wait["span"])
    assert back["batch"]["number"] == result["batch"]["number"] == back["args"]["batch"]
    rows = [int(run.row_at[lane.part]) + r for lane in run.lanes for r in lane.rows]
    near = flows_between(run, (0, 30_000_000), rows, 400)
    assert {a["kind"] for a in near["arrows"]} == {"launch", "item", "batch"}
    assert near["total"] >= len(near["arrows"]) > 10
    assert flows_between(run, (0, run.length), rows, 50)["arrows"] == []


def test_a_read_names_its_file_and_bytes(job: Path) -> None:
    _, run = _load(job)
    write = next(h for h in search(run, "step-25.pt")["hits"])
    result = event_details(run, write["part"], write["span"])
    assert result["path"] == "/ckpt/step-25.pt"
    assert result["bytes"] == 90_000_000
    assert result["parents"][0]["name"] == "capture"
    found = event_at(run, write["row"], write["start"] + 1000, 0)
    assert found is not None
    assert found["span"] == write["span"]


def test_steps_have_rows_and_places(job: Path) -> None:
    source, run = _load(job)
    steps = source.steps()
    rows = step_rows(steps, run.base, 1, 30, 100)
    assert rows["total"] == STEPS
    assert [r["step"] for r in rows["rows"]] == list(range(30, STEPS))
    assert all(sum(r["stages_us"]) == r["wall_us"] for r in rows["rows"])
    window = step_window(steps, run.base, 25)
    assert set(window) == {0, 1}
    longest = max(step_rows(steps, run.base, 0, 0, 100)["rows"], key=lambda r: r["wall_us"])
    assert longest["step"] == 25
    assert window[0] == (longest["start"], longest["end"])
    assert step_window(steps, run.base, 999) == {}


def test_the_strip_of_a_followed_run_has_the_figures_of_top(job: Path) -> None:
    """One set of figures for the last seconds of a run, wherever they are shown."""
    _, run = _load(job)
    source = FollowedSource([str(job)], cache=False)
    try:
        strip = source.facts()
    finally:
        source.close()
    with Recent(job) as recent:
        snapshot = take_snapshot(recent)
    assert (strip["ranks"], strip["running"], strip["dropped"]) == (2, 0, 0)
    assert strip["steps_per_s"] == snapshot.steps_per_s
    assert strip["fetch_wait"] == pytest.approx(sum(r.loader_wait or 0 for r in snapshot.ranks) / 2)
    assert strip["device_busy"] == pytest.approx(sum(r.device_busy or 0 for r in snapshot.ranks) / 2)
    assert 0 < strip["device_busy"] < 1
    assert (strip["read_per_s"], strip["written_per_s"]) == (
        snapshot.read_bytes_per_s,
        snapshot.write_bytes_per_s,
    )
    most = range_facts(run, (0, run.length), None, frozenset())["files"][0]
    assert strip["hottest"] == {"path": most["path"], "ns": most["total"]}
    assert strip["end_us"] <= (run.base + run.length) // 1000


def test_the_list_holds_what_is_in_view(job: Path) -> None:
    _, run = _load(job)
    rows = [int(run.row_at[lane.part]) + r for lane in run.lanes for r in lane.rows]
    result = list_events(run, (0, run.length), rows, frozenset())
    assert result["total"] == sum(len(p) for p in run.parts if p.info["source"] != LEDGER)
    assert len(result["events"]) == 200
    assert max(e["length"] for e in result["events"]) >= 9_000_000
    few = list_events(run, (0, 3_000_000), rows, frozenset({"POSIX"}))
    assert few["total"] == len(few["events"])
    assert {e["cat"] for e in few["events"]} == {"data"}


def test_profiler_files_are_shown_without_a_trace() -> None:
    pytest.importorskip("msgspec")
    source, run = _load(CASES / "kineto_trace_0_w0.json.gz")
    assert source.notes == []
    roles = {lane.role for lane in run.lanes}
    assert "stream" in roles
    kernels = [h for h in search(run, "gemm")["hits"] if h["lane"] == "stream 7"]
    assert {k["kind"] for k in kernels} == {"kernel"}
    result = event_details(run, kernels[0]["part"], kernels[0]["span"])
    assert {f["kind"] for f in result["flows"]} == {"launch"}


def test_merged_and_parted_and_foreign_files_are_read(tmp_path: Path) -> None:
    """Other dialects: numbers as text, no levels; nesting follows from the times."""
    lines = ["["]
    for i, (ts, dur, name) in enumerate(((0, 100, "outer"), (10, 20, "inner"), (200, 5, "later"))):
        lines.append(
            f'{{"id":"{i}","name":"{name}","cat":"APP","pid":"5","tid":"6","ts":"{1760000000000000 + ts}",'
            f'"dur":"{dur}","ph":"X","args":{{}}}}'
        )
    (tmp_path / "old.pfw").write_text("\n".join(lines) + "\n")
    _, run = _load(tmp_path)
    inner = search(run, "inner")["hits"][0]
    assert [p["name"] for p in event_details(run, 0, inner["span"])["parents"]] == ["outer"]


def test_what_is_kept_is_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = training_run(tmp_path / "run", events=20_000)
    first = Source([str(made.directory)])
    fresh, again = Source([str(made.directory)], cache=False).load(), first.load()
    kept = Source([str(made.directory)]).load()
    assert isinstance(kept.parts[0].start, np.ndarray)
    rows = list(range(int(kept.row_at[-1])))
    pictures = [r.picture((0, r.length), 500, rows, frozenset(), {}) for r in (fresh, again, kept)]
    assert pictures[0] == pictures[1] == pictures[2]
    assert (tmp_path / "cache" / "dftracer" / "view").is_dir()
    cut = next((tmp_path / "cache" / "dftracer" / "view").glob("*.dfv"))
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    repaired = Source([str(made.directory)]).load()
    assert repaired.picture((0, repaired.length), 500, rows, frozenset(), {}) == pictures[0]


def _files(run: Run) -> int:
    return len({part.info["file"] for part in run.parts})


def test_the_first_process_of_a_large_run_is_shown_while_the_others_are_read(tmp_path: Path) -> None:
    made = training_run(tmp_path, events=20_000, ranks=2, workers=1)
    seen: list[Run] = []
    source = Source([str(made.directory)], cache=False)
    source.load(first=seen.append)
    assert not seen  # a small one
    whole = Source([str(made.directory)], cache=False, large=1).load(first=seen.append)
    (first,) = seen
    assert (_files(first), _files(whole)) == (1, 4)
    rows = list(range(int(first.row_at[-1])))
    window = (0, first.length)
    assert first.base == whole.base
    assert first.picture(window, 500, rows, frozenset(), {}) == whole.picture(
        window, 500, rows, frozenset(), {}
    )


def test_a_page_hears_of_the_first_process_and_then_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = training_run(tmp_path, events=20_000, ranks=2, workers=1)
    session = Session([Source([str(made.directory)], cache=False, large=1)])
    result = []
    read_as = Shown.read_as

    def listen(self: Shown, run: Run) -> None:
        read_as(self, run)
        result.append((self.state()["ready"], self.whole, _files(run), self.reading))

    monkeypatch.setattr(Shown, "read_as", listen)
    session.start()
    session._thread.join()
    assert result == [(True, False, 1, 1), (True, False, 4, 2)]
    state = session.state()["runs"][0]
    assert (state["ready"], state["whole"], state["steps"], state["generation"]) == (True, True, True, 3)
    assert [_files(session.shown[0].readings[n]) for n in (1, 2)] == [1, 4]
    session.stop()
