"""Files as they are found: cut, badly escaped, of old versions, of the wrong window."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dftracer.link import link
from dftracer.link.discover import discover
from dftracer.link.execution_trace import read_execution_trace
from dftracer.link.graph import BY_ORDER, join
from dftracer.link.kineto import read_kineto
from dftracer.load.find import is_kineto
from dftracer.testing.synthetic import Process
from link.test_directory import command, edit
from support.process import clean_environment


def test_a_killed_process_leaves_the_list_open(ddp: Path) -> None:
    """All complete nodes are read, and it is said that the end is missing."""
    path = ddp / "torch_et_0.json"
    whole = read_execution_trace(path)
    text = path.read_bytes()
    for keep in (len(text) // 2, len(text) - 40, 3000):
        path.write_bytes(text[:keep])
        cut = read_execution_trace(path)
        expected = text[:keep].count(b'"id":')
        assert expected - 1 <= len(cut) <= expected
        assert cut.repairs.truncated
        assert set(cut.id.tolist()) <= set(whole.id.tolist())
    kineto = ddp / "kineto_trace_0.json"
    events = len(read_kineto(kineto))
    kineto.write_bytes(kineto.read_bytes()[:-100_000])
    half = read_kineto(kineto)
    assert 0 < len(half) < events
    assert half.repairs.truncated


def test_a_cut_gzip_file(ddp: Path, tmp_path: Path) -> None:
    packed = tmp_path / "torch_et_0.json.gz"
    data = gzip.compress((ddp / "torch_et_0.json").read_bytes())
    packed.write_bytes(data)
    whole = read_execution_trace(packed)
    assert not whole.repairs.sentences()
    packed.write_bytes(data[: len(data) // 2])
    cut = read_execution_trace(packed)
    assert 0 < len(cut) < len(whole)
    assert cut.repairs.truncated
    packed.write_bytes(data[:200] + b"\xff" * 300 + data[500:])
    assert read_execution_trace(packed).repairs.truncated


def test_an_empty_file_and_one_of_something_else(tmp_path: Path) -> None:
    for text in (b"", b"{}", b"[1, 2]", b"\0\1\2"):
        path = tmp_path / "torch_et_0.json"
        path.write_bytes(text)
        assert len(read_execution_trace(path)) == 0
        assert read_execution_trace(path).repairs.sentences()
        assert len(read_kineto(path)) == 0


@pytest.mark.parametrize(
    "name", ['say "hello"', "two\nlines", "back\\slash", "tab\there", 'end"', "ünïcode", "a, b"]
)
def test_names_that_are_not_escaped(ddp: Path, name: str) -> None:
    """Torch writes names as they are: such nodes are repaired, and the join still finds them."""
    et, kineto = ddp / "torch_et_0.json", ddp / "kineto_trace_0.json"
    for path, was in ((et, '"ProfilerStep#2"'), (kineto, '"ProfilerStep#2"')):
        text = path.read_text()
        assert was in text
        # The profiler escapes, the observer does not.
        new = f'"{name}"' if path == et else json.dumps(name)
        path.write_text(text.replace(was, new))
    trace, profile = read_execution_trace(et), read_kineto(kineto)
    assert name in trace.names
    assert trace.repairs.dropped == 0
    found = join(trace, profile)
    assert found.coverage == 1.0


def test_invalid_utf8_does_not_lose_nodes(ddp: Path) -> None:
    path = ddp / "torch_et_0.json"
    whole = len(read_execution_trace(path))
    path.write_bytes(path.read_bytes().replace(b"ProfilerStep#2", b"Profiler\xff\xfe#2"))
    trace = read_execution_trace(path)
    assert len(trace) == whole
    assert any("�" in n for n in trace.names)


def test_the_wrong_pair(ddp: Path, tmp_path: Path) -> None:
    """Rank 1's profile with rank 0's execution trace: ids and names agree, the processes do not."""
    shutil.copy(ddp / "kineto_trace_1.json", ddp / "kineto_trace_0.json")
    edit(ddp / "kineto_trace_0.json", lambda p: p["distributedInfo"].update(rank=0))
    report = link(ddp, tmp_path / "l")
    assert report.ranks[0]["joined"] == 0
    assert report.ranks[0]["coverage"] == 0.0
    assert report.ranks[1]["coverage"] == 1.0
    assert any("wrong pair" in w for w in report.warnings)


def test_another_window_of_the_same_process(ddp: Path) -> None:
    """Common ids by chance, names that do not agree: refused, not joined wrongly."""
    kineto = ddp / "kineto_trace_0.json"

    def shift(profile: dict[str, Any]) -> None:
        for e in profile["traceEvents"]:
            if e.get("args", {}).get("Record function id"):
                e["args"]["Record function id"] += 37

    edit(kineto, shift)
    found = join(read_execution_trace(ddp / "torch_et_0.json"), read_kineto(kineto))
    assert found.joined == 0
    assert "wrong pair" in found.refused
    assert found.name_agreement is not None
    assert found.name_agreement < 0.8


def test_an_overwritten_cycle(ddp: Path, tmp_path: Path) -> None:
    """Without `repeat=1` the profiler's file is of the last cycle: no id is common, and this is said."""

    def later(profile: dict[str, Any]) -> None:
        for e in profile["traceEvents"]:
            if e.get("args", {}).get("Record function id"):
                e["args"]["Record function id"] += 1_000_000

    edit(ddp / "kineto_trace_0.json", later)
    report = link(ddp, tmp_path / "l")
    assert report.ranks[0]["coverage"] == 0.0
    assert any("repeat=1" in w for w in report.warnings)
    done = command("validate", ddp)
    assert done.returncode == 1
    assert "repeat=1" in done.stdout


def test_the_observer_was_off(ddp: Path) -> None:
    def zero(profile: dict[str, Any]) -> None:
        for e in profile["traceEvents"]:
            if "Record function id" in e.get("args", {}):
                e["args"]["Record function id"] = 0

    edit(ddp / "kineto_trace_0.json", zero)
    found = join(read_execution_trace(ddp / "torch_et_0.json"), read_kineto(ddp / "kineto_trace_0.json"))
    assert found.joined == 0
    assert "observer was off" in found.refused


def _without_ids(trace: dict[str, Any]) -> None:
    for n in trace["nodes"]:
        n["attrs"] = [a for a in n["attrs"] if a["name"] != "rf_id"]


def test_without_record_ids_the_order_on_each_thread_joins(ddp: Path) -> None:
    """As in old versions of torch; against the join by ids it is right for nearly all."""
    et, kineto = ddp / "torch_et_0.json", ddp / "kineto_trace_0.json"
    truth = join(read_execution_trace(et), read_kineto(kineto))

    def drop(profile: dict[str, Any]) -> None:
        for e in profile["traceEvents"]:
            e.get("args", {}).pop("Record function id", None)

    edit(et, _without_ids)
    edit(kineto, drop)
    found = join(read_execution_trace(et), read_kineto(kineto))
    assert found.coverage >= 0.965
    assert set(found.how[found.row >= 0].tolist()) == {BY_ORDER}
    assert (found.row == truth.row).mean() >= 0.965


def test_the_order_finds_its_way_around_gaps(ddp: Path) -> None:
    et, kineto = ddp / "torch_et_0.json", ddp / "kineto_trace_0.json"
    truth = join(read_execution_trace(et), read_kineto(kineto))

    def drop(profile: dict[str, Any]) -> None:
        kept = []
        for i, e in enumerate(profile["traceEvents"]):
            e.get("args", {}).pop("Record function id", None)
            if e.get("cat") != "cpu_op" or i % 50 > 2:
                kept.append(e)
        profile["traceEvents"] = kept

    gone = sum(
        1
        for i, e in enumerate(json.loads(kineto.read_text())["traceEvents"])
        if e.get("cat") == "cpu_op" and i % 50 <= 2
    )
    edit(et, _without_ids)
    edit(kineto, drop)
    found = join(read_execution_trace(et), read_kineto(kineto))
    assert found.joined >= 0.95 * (truth.joined - gone)


def test_a_thread_that_the_profiler_did_not_watch(ddp: Path) -> None:
    """The reason is named."""
    et, kineto = ddp / "torch_et_0.json", ddp / "kineto_trace_0.json"

    def move(trace: dict[str, Any]) -> None:
        for n in trace["nodes"][100:200]:
            for a in n["attrs"]:
                if a["name"] == "tid":
                    a["value"] = 77
                if a["name"] == "rf_id" and a["value"]:
                    a["value"] += 1_000_000

    edit(et, move)
    found = join(read_execution_trace(et), read_kineto(kineto))
    assert found.reasons == {"on a thread that the profiler did not watch": 100}


def test_forked_children_in_the_same_file(ddp: Path, tmp_path: Path) -> None:
    """Repeated ids: each event goes to one node, all node ids in the output differ."""
    et = ddp / "torch_et_0.json"

    def repeat(trace: dict[str, Any]) -> None:
        trace["nodes"] += [dict(n) for n in trace["nodes"][50:150]]

    edit(et, repeat)
    report = link(ddp, tmp_path / "l")
    trace = read_execution_trace(et)
    assert trace.duplicate_ids == 100
    found = join(trace, read_kineto(ddp / "kineto_trace_0.json"))
    assert found.reasons == {"id repeated: a forked child wrote into the same file": 100}
    rows = found.row[found.row >= 0]
    assert len(set(rows.tolist())) == rows.size
    assert report.ranks[0]["coverage"] < 1


def _flat(trace: dict[str, Any]) -> None:
    """The layout of schema 1.0.1."""
    trace["schema"] = "1.0.1"
    out = []
    for n in trace["nodes"]:
        facts = {a["name"]: a["value"] for a in n["attrs"]}
        out.append(
            {
                "name": n["name"], "id": n["id"], "rf_id": facts["rf_id"], "parent": n["ctrl_deps"],
                "fw_parent": facts["fw_parent"], "seq_id": facts["seq_id"], "scope": facts["scope"],
                "tid": facts["tid"], "fw_tid": facts["fw_tid"], "op_schema": facts["op_schema"],
                "inputs": n["inputs"]["values"], "input_shapes": n["inputs"]["shapes"],
                "input_types": n["inputs"]["types"], "outputs": n["outputs"]["values"],
                "output_shapes": n["outputs"]["shapes"], "output_types": n["outputs"]["types"],
            }
        )  # fmt: skip
    trace["nodes"] = out


def _without_strides(trace: dict[str, Any]) -> None:
    """The layout of schema 1.0.2-chakra."""
    trace["schema"] = "1.0.2-chakra.0.0.4"
    for n in trace["nodes"]:
        for side in ("inputs", "outputs"):
            del n[side]["strides"]
        n["attrs"] = [a for a in n["attrs"] if not a["name"].startswith("kernel")]


@pytest.mark.parametrize("change", [_flat, _without_strides])
def test_older_schemas_give_the_same_tables(ddp: Path, change: Any) -> None:
    path = ddp / "torch_et_0.json"
    new = read_execution_trace(path)
    edit(path, change)
    old = read_execution_trace(path)
    assert old.names == new.names
    for column in ("id", "parent", "rf", "seq", "scope", "tid", "fw_tid", "fw_parent"):
        assert (getattr(old, column) == getattr(new, column)).all(), column
    assert (old.inputs.tensor == new.inputs.tensor).all()
    assert (old.outputs.storage == new.outputs.storage).all()
    assert [json.loads(v) for v in old.input_values] == [json.loads(v) for v in new.input_values]


def test_profiles_of_older_versions_give_the_same_table(h200: Path, tmp_path: Path) -> None:
    """Absolute times, other names of categories, streams only in the lanes' names."""
    source = h200 / "kineto_trace_0_w0.json.gz"
    new = read_kineto(source)
    spelled = {"cpu_op": "Operator", "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset",
               "cuda_runtime": "Runtime", "user_annotation": "user_annotation"}  # fmt: skip
    with gzip.open(source, "rt") as f:
        profile = json.load(f)
    base = profile.pop("baseTimeNanoseconds")
    del profile["distributedInfo"]
    for e in profile["traceEvents"]:
        if "ts" in e:
            e["ts"] = int(e["ts"] + base / 1000)
        if e.get("cat") in spelled:
            e["cat"] = spelled[e["cat"]]
        args = e.get("args", {})
        if e.get("cat") in ("Kernel", "Memcpy", "Memset"):
            e["tid"] = f"stream {args.pop('stream')}"
            args.pop("device", None)
        if "External id" in args:
            args["external id"] = str(args.pop("External id"))
    path = tmp_path / "old.pt.trace.json"
    path.write_text(json.dumps(profile))
    old = read_kineto(path)
    assert len(old) == len(new)
    assert abs(old.span[0] - new.span[0]) <= 1000
    assert sorted(old.stream[old.is_kind(3)].tolist()) == sorted(new.stream[new.is_kind(3)].tolist())
    assert sorted(old.external.tolist()) == sorted(new.external.tolist())
    assert sorted(old.correlation.tolist()) == sorted(new.correlation.tolist())


def test_only_an_execution_trace(ddp: Path, tmp_path: Path) -> None:
    """Without times the order of the ids still gives parents and data edges, without a cycle."""
    for path in ddp.glob("kineto*"):
        path.unlink()
    report = link(ddp, tmp_path / "l")
    assert report.ranks[0]["edges"]["data"] > 0
    assert report.ranks[0]["edges"]["forward_backward"] > 0
    assert any("no profiler trace" in w for w in report.warnings)


def test_only_a_profile(h200: Path, tmp_path: Path) -> None:
    """Kernels, launches, streams and nesting need no execution trace."""
    shutil.copy(h200 / "kineto_trace_0_w0.json.gz", tmp_path)
    report = link(tmp_path, tmp_path / "l")
    edges = report.ranks[0]["edges"]
    assert edges["launch"] == 460
    assert edges["forward_backward"] > 150
    assert report.ranks[0]["coverage"] is None


def test_names_of_things_that_are_no_files(h200: Path, tmp_path: Path) -> None:
    """Pipes, devices, broken and circular links with names of traces: passed over, never waited for."""
    directory = tmp_path / "collected"
    directory.mkdir()
    for kind in ("torch_et", "kineto_trace"):
        shutil.copyfile(h200 / f"{kind}_0_w0.json.gz", directory / f"{kind}_0.json.gz")
    pipes = [
        "kineto_trace_1.json",
        "torch_et_1.json.gz",
        "nsys_1.sqlite",
        "comms_0.jsonl",
        "linked_0.parquet",
    ]
    for name in [*pipes, "manifest_0.json", "manifest_1.json"]:
        os.mkfifo(directory / name)
    (directory / "torch_et_2.json").symlink_to("gone")
    (directory / "torch_et_3.json").symlink_to("torch_et_3.json")
    (directory / "kineto_trace_4.json").symlink_to("/dev/zero")
    (directory / "kineto_trace_5.json").mkdir()
    script = (
        "import sys\nfrom pathlib import Path\nfrom dftracer.cli.main import main\n"
        "from dftracer.load.find import find_torch_files, linked_files\n"
        "folder, out = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "kineto, linked = find_torch_files([folder])\n"
        "assert [k.name for k in kineto] == ['kineto_trace_0.json.gz'] and not linked\n"
        "assert not linked_files([folder / 't.pfw.gz'])\n"
        "assert main(['link', str(folder), '-o', str(out / 'linked')]) == 0\n"
        "assert main(['validate', str(folder)]) == 0\n"
        "assert main(['export', str(folder), '--to', 'hta', '-o', str(out / 'hta')]) == 0\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory), str(tmp_path)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "linked" / "chakra_0.et").stat().st_size > 0


def test_a_profile_without_operators(h200: Path, tmp_path: Path) -> None:
    """A rank that recorded nothing is no reason to fail."""
    for kind in ("torch_et", "kineto_trace"):
        shutil.copyfile(h200 / f"{kind}_0_w0.json.gz", tmp_path / f"{kind}_0.json.gz")
    (tmp_path / "kineto_trace_1.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    report = link(tmp_path, tmp_path / "linked")
    assert [r["rank"] for r in report.ranks] == [0, 1]
    assert not [w for w in report.warnings if "Error" in w]


def test_our_own_export_is_no_profile(h200: Path, tmp_path: Path) -> None:
    """A program that is exported where it was collected has no more ranks than before."""
    directory = tmp_path / "collected"
    directory.mkdir()
    for kind in ("torch_et", "kineto_trace"):
        shutil.copyfile(h200 / f"{kind}_0_w0.json.gz", directory / f"{kind}_0.json.gz")
    process = Process(7, rank=0)
    process.span("cpu_op", "f", 0, 5)
    process.write(directory)
    for name in ("trace.json", "other.json.gz"):
        assert command("export", directory, "-o", directory / name).returncode == 0
        assert not is_kineto(directory / name)
    assert list(discover(directory).ranks) == [0]
    assert len(discover(directory).ranks[0].activity) == 1
    assert discover(directory).warnings == []
