"""A replay of the graph by what a simulator reads of it takes as long as the run took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dftracer.link import link
from dftracer.link.chakra import read_chakra
from link.conftest import record


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


def resource(node: Any, known: dict[str, Any]) -> tuple[str, int]:
    """What can do one thing at a time: a stream, a thread, the network of a collective."""
    if "stream" in known:
        return "stream", known["stream"]
    if node.type in (5, 6, 7):
        return "network", node.id  # gloo has several threads for it
    return "thread", known.get("tid", -1)


def replayed_us(nodes: list[Any]) -> int:
    """A list scheduler: each node begins when all it depends on is done and its resource is free."""
    done: dict[int, int] = {}
    free: dict[tuple[str, int], int] = {}
    for node in nodes:  # the file is in the order of their starts
        begin = max((done[d] for d in node.data_deps), default=0)
        where = resource(node, attributes(node))
        if where[0] == "stream":
            begin = max(begin, free.get(where, 0))
        done[node.id] = free[where] = begin + int(node.duration_micros)
    return max(done.values())


def longest_us(nodes: list[Any]) -> int:
    """The longest path over data dependencies."""
    done: dict[int, int] = {}
    for node in nodes:
        done[node.id] = max((done[d] for d in node.data_deps), default=0) + int(node.duration_micros)
    return max(done.values())


def wall_us(nodes: list[Any]) -> float:
    timed = [n for n in nodes if n.start_time_micros]
    ends = [n.start_time_micros + attributes(n)["inclusive_ns"] / 1000 for n in timed]
    return float(max(ends) - min(n.start_time_micros for n in timed))


def linked(directory: Path, out: Path) -> Iterator[list[Any]]:
    link(directory, out)
    for path in sorted(out.glob("chakra_*.et")):
        yield read_chakra(path)[1]


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks whose buckets are reduced by gloo's threads while the backward pass goes on."""
    return record(tmp_path_factory.mktemp("overlap") / "out", "--layers", "5", "--width", "256")


@pytest.fixture(scope="module")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks that also gather: gloo copies what it received inside its own record."""
    return record(tmp_path_factory.mktemp("gather") / "out", "--layers", "1", "--gather", "300000")


@pytest.mark.parametrize("which", ["h200", "recorded", "overlapping", "gathering"])
def test_no_path_is_longer_than_the_run(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    for nodes in linked(request.getfixturevalue(which), tmp_path):
        assert longest_us(nodes) <= wall_us(nodes) + len(nodes) / 2  # nodes have whole microseconds


WAITING_CALLS = Path(__file__).resolve().parents[1] / "data" / "waiting_calls"


@pytest.mark.parametrize(
    "case", ["returned_late", "began_after_another", "reduced_in_parts", "gathered_late"]
)
def test_no_path_is_longer_than_a_run_whose_calls_waited(case: str, tmp_path: Path) -> None:
    """One rank of two that shared a core.

    A call returned long after gloo's thread had done its collective; gloo began one only after another. A
    reduce_scatter is two records of gloo's threads, and in the last step its call went on beside the second; the
    call of a gather went on after gloo's record, in which there is another node.
    """
    (nodes,) = linked(WAITING_CALLS / case, tmp_path)
    done: dict[int, int] = {}
    for node in nodes:
        begin = max((done[d] for d in node.data_deps), default=0)
        done[node.id] = begin + attributes(node).get("duration_ns", 0)
    assert 0.95 <= max(done.values()) / 1000 / wall_us(nodes) <= 1


def test_an_operator_around_a_call_does_not_delay_what_the_call_requested(tmp_path: Path) -> None:
    """DDP requests a reduction inside of a gradient's operator, which here goes on for 5 ms beside it."""

    def span(name: str, tid: int, start: int, end: int, cat: str = "cpu_op") -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": start,
            "dur": end - start,
            "args": {},
        }

    events = [
        span("ProfilerStep#1", 1, 1000, 10000, "user_annotation"),
        span("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 1, 1100, 6300),
        span("c10d::allreduce_", 1, 1200, 1260),
        span("gloo:all_reduce", 2, 1230, 10000),
        span("aten::add", 1, 6310, 6400),
    ]
    profile = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 1},
        "traceEvents": events,
    }
    (tmp_path / "kineto_trace_0.json").write_text(json.dumps(profile))
    (nodes,) = linked(tmp_path, tmp_path / "out")
    own = {n.name: attributes(n)["duration_ns"] // 1000 for n in nodes}
    assert own["autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"] == 200
    assert own["c10d::allreduce_"] == 30
    assert own["gloo:all_reduce"] == 8770
    # What came after the beginning, of both; the pause; its own.
    assert own["aten::add"] == 30 + 5040 + 10 + 90
    assert longest_us(nodes) == 9000


# On a busy machine a rank loses its CPU between two operators, which no node accounts for.
QUIET = [pytest.param(which, marks=pytest.mark.alone) for which in ("recorded", "overlapping", "gathering")]


@pytest.mark.parametrize("which", ["h200", *QUIET])
def test_replay(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Within 5 % of the run."""
    for nodes in linked(request.getfixturevalue(which), tmp_path):
        assert 0.95 * wall_us(nodes) <= replayed_us(nodes) <= 1.05 * wall_us(nodes)


def test_a_reduce_scatter_is_carried_by_a_record_for_each_rank(gathering: Path, tmp_path: Path) -> None:
    """gloo's threads record an all_reduce for each part; the bytes of all parts are those of the call."""
    link(gathering, tmp_path)
    for rank in range(2):
        table = pl.read_parquet(tmp_path / f"linked_{rank}.parquet")
        by_id = {n.id: n for n in read_chakra(tmp_path / f"chakra_{rank}.et")[1]}
        found = table.filter(pl.col("collective") == "reduce_scatter")
        for step in found.partition_by("collective_key"):
            call = step.filter(pl.col("name") == "c10d::reduce_scatter_")
            parts = step.filter(pl.col("name") == "gloo:all_reduce")
            assert (call.height, parts.height, step.height) == (1, 2, 3)
            assert set(step["bytes"]) == {2 * 300000 * 4}
            for node in map(by_id.__getitem__, parts["node"].to_list()):
                assert node.type == 7
                assert attributes(node)["comm_type"] == 7
                assert attributes(node)["comm_size"] == 300000 * 4
                assert call["node"].item() in node.data_deps
        assert found["collective_key"].n_unique() == 2
        # DDP's own and the explicit one: each has its own call and one record.
        for step in table.filter(pl.col("collective") == "all_reduce").partition_by("collective_key"):
            assert sorted(step["name"]) == ["c10d::allreduce_", "gloo:all_reduce"]


@pytest.mark.parametrize("kind", ["all_gather", "gather"])
def test_the_time_of_a_transfer_is_on_its_collective(kind: str, gathering: Path, tmp_path: Path) -> None:
    """A simulator replaces the collective's time: what it copies afterwards keeps its own, and no more."""
    for nodes in linked(gathering, tmp_path):
        gathers = [n for n in nodes if n.name == f"gloo:{kind}"]
        assert len(gathers) == 2
        for gather in gathers:
            assert gather.type == 7
            own = attributes(gather)
            assert own["exclusive_ns"] > 0
            assert gather.duration_micros >= own["exclusive_ns"] // 1000
            end = gather.start_time_micros + own["inclusive_ns"] // 1000
            inside = [n for n in nodes if gather.id in n.ctrl_deps and n.start_time_micros < end]
            if kind == "all_gather":  # only the root of a gather copies
                assert inside, "this torch copies outside of the record"
            for known in map(attributes, inside):
                assert known["duration_ns"] == known["exclusive_ns"]


def test_a_collective_takes_no_more_than_its_own_time_and_the_pause_before_it(
    gathering: Path, tmp_path: Path
) -> None:
    """A replay would otherwise wait twice: all of it is after the last thing that it waited for."""
    seen: dict[str, int] = {}
    for nodes in linked(gathering, tmp_path):
        by_id = {n.id: n for n in nodes}
        first = min(n.start_time_micros for n in nodes if n.start_time_micros)
        # A call may go on after gloo's threads began: that is a pause before what its own thread did next.
        begun: dict[int, int] = {}
        for node in nodes:
            for call in node.data_deps:
                if node.name.startswith("gloo:") and by_id[call].name.startswith("c10d::"):
                    begun.setdefault(call, node.start_time_micros * 1000)
        for node in nodes:
            if node.type != 7 or not node.name.startswith("gloo:"):
                continue
            awaited = [by_id[d] for d in node.data_deps]
            ends = [
                min(n.start_time_micros * 1000 + attributes(n)["inclusive_ns"], begun.get(n.id, 1 << 62))
                for n in awaited
                if n.start_time_micros
            ]
            start = node.start_time_micros * 1000
            before = max((end for end in ends if end <= start), default=first * 1000)
            own = attributes(node)
            # Their starts have whole microseconds.
            assert own["exclusive_ns"] <= own["duration_ns"] <= start - before + own["exclusive_ns"] + 2000, (
                node.name
            )
            assert node.duration_micros <= own["duration_ns"] / 1000 + 1
            seen[node.name] = seen.get(node.name, 0) + 1
    # In both ranks and both steps.
    assert (seen["gloo:all_gather"], seen["gloo:gather"]) == (4, 4)
    assert seen["gloo:all_reduce"] >= 4
