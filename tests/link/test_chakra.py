"""The Chakra files: framing, fields and dependencies as its readers expect them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from dftracer.link import link
from dftracer.link.chakra import attribute_columns, messages, read_chakra, varints
from dftracer.link.columns import join_rows
from link.naive import Naive, attributes


@pytest.fixture(scope="module")
def gloo(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gloo")
    link(recorded, out)
    return out


@pytest.fixture(scope="module")
def nvidia(h200: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nvidia")
    link(h200, out)
    return out


def _attributes(node: Any) -> dict[str, Any]:
    out = {}
    for a in node.attr:
        value = getattr(a, a.WhichOneof("value"))
        out[a.name] = list(value.values) if hasattr(value, "values") else value
    return out


@pytest.mark.parametrize("which", ["gloo", "nvidia"])
def test_the_file_is_what_the_library_would_write(which: str, request: pytest.FixtureRequest) -> None:
    """Each message read and written again by protobuf is the same bytes:
    nothing is unknown, nothing out of order.
    """
    path = request.getfixturevalue(which) / "chakra_0.et"
    head, nodes = read_chakra(path)
    whole = b""
    for message in [head, *nodes]:
        body = message.SerializeToString()
        size = messages()["Uint64List"](values=[len(body)]).SerializeToString()[2:]
        whole += size + body
    assert whole == path.read_bytes()
    assert head.version == "0.0.4"


@pytest.mark.parametrize("which", ["gloo", "nvidia"])
def test_ids_are_unique_and_dependencies_have_no_cycle(which: str, request: pytest.FixtureRequest) -> None:
    """What a node waits for is in the file before it."""
    _, nodes = read_chakra(request.getfixturevalue(which) / "chakra_0.et")
    seen: set[int] = set()
    for node in nodes:
        assert node.id not in seen
        assert {*node.ctrl_deps, *node.data_deps} <= seen
        seen.add(node.id)


def test_data_dependencies_alone_keep_each_thread_in_order(gloo: Path) -> None:
    """Readers that look at data dependencies only still see every operator after the one before it."""
    _, nodes = read_chakra(gloo / "chakra_0.et")
    timed = [n for n in nodes if n.start_time_micros]
    lonely = [n.name for n in timed if not n.data_deps]
    threads = {_attributes(n)["tid"] for n in timed}
    assert len(lonely) <= len(threads)


def test_fields_are_those_of_the_traces(recorded: Path, gloo: Path) -> None:
    naive = Naive(recorded / "torch_et_0.json", recorded / "kineto_trace_0.json")
    _, nodes = read_chakra(gloo / "chakra_0.et")
    table = {r["node"]: r for r in pl.read_parquet(gloo / "linked_0.parquet").iter_rows(named=True)}
    assert {n.id for n in nodes} == set(naive.nodes)
    for node in nodes:
        source = naive.nodes[node.id]
        found = _attributes(node)
        for name in ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema"):
            assert found[name] == attributes(source)[name]
        kinds = {a.name: a.WhichOneof("value") for a in node.attr if isinstance(found[a.name], int)}
        assert {k for n, k in kinds.items() if n != "is_cpu_op"} == {"int64_val"}, "as Chakra's converter"
        assert node.name == source["name"]
        assert found["is_cpu_op"] is (node.type not in (5, 6, 7))
        assert len(found) == len(node.attr), "each attribute once"
        if "process_group:init" in node.name:
            assert node.inputs.values == str(source["inputs"]["values"])
            assert json.loads(node.inputs.values[2:-2])[0]["pg_name"] == "0"  # as ASTRA-sim reads it
        else:
            assert json.loads(node.inputs.values) == source["inputs"]["values"]
        assert json.loads(node.inputs.shapes) == source["inputs"]["shapes"]
        assert json.loads(node.outputs.types) == source["outputs"]["types"]
        row = table[node.id]
        if row["start_ns"] is None:
            assert node.start_time_micros == 0
            assert node.type == 1
        else:
            assert node.start_time_micros == row["start_ns"] // 1000
            assert node.duration_micros == (found["duration_ns"] + 500) // 1000
            assert found["exclusive_ns"] == row["exclusive_ns"]
            # What an operator took after gloo's thread had begun what it requested is before what followed.
            if row["kind"] != "annotation" and not re.search("c10d::|AccumulateGrad", node.name):
                assert found["duration_ns"] >= row["exclusive_ns"]
            assert found["inclusive_ns"] == row["dur_ns"]


def test_gloo_collectives(gloo: Path) -> None:
    """Type, bytes and group of every collective, on the node that moved the data."""
    _, nodes = read_chakra(gloo / "chakra_0.et")
    collectives = [(n, _attributes(n)) for n in nodes if n.type == 7]
    assert {n.name for n, _ in collectives} == {"gloo:all_reduce"}
    assert all(a["comm_type"] == 0 and a["pg_name"] == "0" for _, a in collectives)
    assert all(a["comm_group"] == [0, 1] for _, a in collectives)
    # One of four bytes a step is the explicit one; the others carry the gradients.
    sizes = sorted(a["comm_size"] for _, a in collectives)
    assert sizes[:2] == [4, 4]
    assert sum(sizes[2:]) == 2 * 4 * 2 * (16 * 16 + 16 + 2 * 16)


def test_collectives_of_nccl(nvidia: Path) -> None:
    _, nodes = read_chakra(nvidia / "chakra_0.et")
    collectives = [_attributes(n) for n in nodes if n.type == 7]
    assert [a["comm_size"] for a in collectives] == [1049600, 5264384, 4000, 1049600, 5264384, 4000]
    assert [a["comm_seq"] for a in collectives] == [14, 15, 16, 17, 18, 19]


def test_gpu_nodes_are_connected(nvidia: Path) -> None:
    """Kernels wait for their launch, and the host waits for kernels where it synchronised."""
    _, nodes = read_chakra(nvidia / "chakra_0.et")
    by_id = {n.id: n for n in nodes}
    gpu = {n.id for n in nodes if "stream" in _attributes(n)}
    assert len(gpu) == 460
    assert all(any(d not in gpu for d in by_id[g].data_deps) for g in gpu)
    assert all(by_id[g].ctrl_deps for g in gpu)
    waiting = [n for n in nodes if n.id not in gpu and gpu & set(n.data_deps)]
    assert waiting
    assert {_attributes(by_id[g])["stream"] for g in gpu} == {7}


def test_columns_of_numbers_are_what_the_library_writes() -> None:
    """Cutting a packed list gives each number as the library writes it alone."""
    values = [0, 1, 127, 128, 16383, 16384, 2**35, 2**62, -1, -(2**63), 2**63 - 1]
    column = np.array(values, dtype=np.int64)
    m = messages()
    alone = [m["Node"](attr=[m["AttributeProto"](name="x", int64_val=v)]).SerializeToString() for v in values]
    assert list(join_rows(attribute_columns("x", "int64_val", column), np.arange(column.size))) == alone
    whole = m["Int64List"](values=values).SerializeToString()
    assert whole.endswith(varints(column).text)


def test_the_schema_file_is_the_public_wire_format() -> None:
    """Numbers of the fields as public readers have them."""
    m = messages()
    numbers = {f.name: f.number for f in m["Node"].DESCRIPTOR.fields}
    assert numbers == {
        "id": 1, "name": 2, "type": 3, "ctrl_deps": 4, "data_deps": 5, "start_time_micros": 6,
        "duration_micros": 7, "inputs": 8, "outputs": 9, "attr": 10,
    }  # fmt: skip
    attribute = {f.name: f.number for f in m["AttributeProto"].DESCRIPTOR.fields}
    assert attribute["uint64_val"] == 13
    assert attribute["bool_val"] == 27
    assert attribute["string_val"] == 29
    assert attribute["bytes_list"] == 32
    assert len(attribute) == 32


def test_names_for_simulators(gloo: Path) -> None:
    """Simulators open `<prefix>.<rank>.et`: the same files by those names."""
    for rank in (0, 1):
        assert (gloo / f"chakra.{rank}.et").read_bytes() == (gloo / f"chakra_{rank}.et").read_bytes()
