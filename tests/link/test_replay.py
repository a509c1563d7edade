"""A replay of the graph by what a simulator reads of it takes as long as the run took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


# On a busy machine a rank loses its CPU between two operators, which no node accounts for.
QUIET = [pytest.param(which, marks=pytest.mark.alone) for which in ("recorded", "overlapping", "gathering")]


@pytest.mark.parametrize("which", ["h200", *QUIET])
def test_replay(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Within 5 % of the run."""
    for nodes in linked(request.getfixturevalue(which), tmp_path):
        assert 0.95 * wall_us(nodes) <= replayed_us(nodes) <= 1.05 * wall_us(nodes)


def test_the_time_of_a_transfer_is_on_its_collective(gathering: Path, tmp_path: Path) -> None:
    """A simulator replaces the collective's time: what it copies afterwards keeps its own, and no more."""
    for nodes in linked(gathering, tmp_path):
        gathers = [n for n in nodes if n.name == "gloo:all_gather"]
        assert len(gathers) == 2
        for gather in gathers:
            assert gather.type == 7
            own = attributes(gather)
            assert own["exclusive_ns"] > 0
            assert gather.duration_micros >= own["exclusive_ns"] // 1000
            end = gather.start_time_micros + own["inclusive_ns"] // 1000
            inside = [n for n in nodes if gather.id in n.ctrl_deps and n.start_time_micros < end]
            assert inside, "this torch copies outside of the record"
            for known in map(attributes, inside):
                assert known["duration_ns"] == known["exclusive_ns"]
