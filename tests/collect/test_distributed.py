"""Two ranks on gloo: the join, the collectives, and a rank that becomes known late."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dftracer.link import link
from dftracer.link.chakra import read_chakra
from dftracer.link.checks import check_directory

from .conftest import Runner, read_json, torchrun

CLI = [sys.executable, "-m", "dftracer.cli", "collect"]

ENDS = ("comm_src", "comm_dst", "comm_tag")
DDP = """
from dftracer.collect import collect
import torch
import torch.distributed as dist
torch.set_num_threads(1)
"""


def test_ddp_under_torchrun(run: Runner) -> None:
    """Operators of both ranks are joined, compiled ones too; all collectives are recorded, DDP's included."""
    done = run(
        """
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
        pair = dist.new_group([0, 1], group_desc="pair")

        @torch.compile(backend="eager", fullgraph=True)
        def summed(x):
            dist.all_reduce(x)
            return x + 1

        weight = torch.randn(16, 16, requires_grad=True)

        @torch.compile(backend="aot_eager", fullgraph=True)
        def compiled(x):
            return (x @ weight).relu().sum()

        with collect("out", wait=1, warmup=1, active=2) as c:
            for number in range(6):
                model(torch.randn(4, 16)).sum().backward()
                if number > 1:  # compiled inside the window
                    compiled(torch.randn(4, 16)).backward()
                work = dist.all_reduce(torch.ones(5, dtype=torch.float64), group=pair, async_op=True)
                work.wait()
                dist.all_gather([torch.zeros(3) for _ in range(2)], torch.ones(3))
                dist.broadcast(torch.ones(7, dtype=torch.int32), src=0)
                if rank == 0:
                    dist.send(torch.ones(2), dst=1)
                else:
                    dist.recv(torch.ones(2), src=0)
                dist.barrier()
                c.step()
            summed(torch.ones(3))
        assert dist.all_reduce.__module__ == "torch.distributed.distributed_c10d"
        dist.destroy_process_group()
        """,
        prelude=DDP,
        command=torchrun("program.py"),
    )
    merged = done["manifest.json"]
    assert (merged["world_size"], merged["ranks_present"], merged["ranks_missing"]) == (2, [0, 1], [])
    assert merged["coverage"] >= 0.998
    per_rank = []
    for rank in (0, 1):
        done.assert_whole(str(rank), at_least=0.998)
        assert done.manifest(rank)["rank_source"] == "torch.distributed"
        records = done.lines(f"comms_{rank}.jsonl.gz")
        per_rank.append(records)
        calls = [r for r in records if r["source"] == "call"]
        asynchronous = [r for r in calls if r["group_desc"] == "pair"]
        assert [(r["type"], r["dtype"], r["bytes"], r["async"]) for r in asynchronous] == [
            ("all_reduce", "float64", 40, True)
        ] * 6
        gathered = [r for r in calls if r["type"] == "all_gather"]
        assert {(r["in_bytes"], r["out_bytes"], r["async"]) for r in gathered} == {(12, 24, False)}
        assert all(r["ranks"] == [0, 1] and r["backend"] == "gloo" for r in records)
        assert [r["step"] for r in gathered] == [0, 1, 2, 3, 4, 5]
        assert len([r for r in calls if r["type"] in ("send", "recv")]) == 6
        below = [r for r in records if r["source"] == "backend" and r["type"] == "all_reduce"]
        buckets = [r for r in below if r["bytes"] == 4 * (16 * 4 + 4)]
        assert [r["step"] for r in buckets] == [0, 1, 2, 3, 4, 5]
        assert all(r["dur_us"] > 0 for r in buckets if r["step"] in (2, 3)), "Kineto has a window's times"
        assert [r for r in below if r["bytes"] == 12], "the compiled function's"
    # The n-th collective of a group is the same one on both ranks.
    keyed = [
        {
            (r["group"], r["seq"]): (r["type"], r["bytes"])
            for r in records
            if r["type"] not in ("send", "recv")
        }
        for records in per_rank
    ]
    assert keyed[0] == keyed[1]
    # One record for each, however often messages come between them: 6 of each kind, DDP's 2 when it forms
    # its buckets anew, the compiled function's.
    assert [len(records) for records in per_rank] == [39, 39]
    numbers = [r["seq"] for r in per_rank[0] if r["group"] == "0" and r["type"] != "send"]
    assert numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    _check_messages(done.directory)
    _check_counts(done.directory)
    _check_folder_for_hta(done.directory)
    # In our trace they are communication, in the words of `ai.comm`; gloo's own records are from before the
    # collection, and of waiting.
    every = [e for e in done.events() if e["cat"] == "comm"]
    events = [e for e in every if "below_python" not in e["args"]]
    began = min(e["ts"] for e in events)
    assert {e["name"] for e in every if "below_python" in e["args"] and e["ts"] > began} <= {"wait"}
    words = {e["name"] for e in events}
    assert words == {"all_reduce", "all_gather", "bcast", "send", "receive", "barrier"}
    barrier = next(e for e in events if e["name"] == "barrier")
    assert (barrier["args"]["ranks"], barrier["args"]["async"]) == (2, False)


def _check_messages(directory: Path) -> None:
    """Linked, the ranks agree on their collectives, and messages name both ends."""
    report = link(directory, directory / "linked")
    assert [w for w in report.warnings if "different" in w or "windows" in w] == []
    for rank, kind in ((0, 5), (1, 6)):
        _, nodes = read_chakra(directory / "linked" / f"chakra.{rank}.et")
        ends = []
        for node in nodes:
            known = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}
            if node.type == kind:
                ends.append((known["comm_src"], known["comm_dst"], known["comm_tag"], known["is_cpu_op"]))
                # The feeder reads these three as `int32_val` and all other numbers as `int64_val`.
                typed = {a.name: a.WhichOneof("value") for a in node.attr if a.name in ENDS}
                assert typed == dict.fromkeys(ENDS, "int32_val")
            if "barrier" in node.name and "collective" in known:
                assert node.type == 4
        assert ends == [(0, 1, 0, False)] * 2


def _check_counts(directory: Path) -> None:
    """The collection, `link` and `validate` count the same operators."""
    result = [json.loads((directory / f"manifest_{r}.json").read_text())["windows"] for r in (0, 1)]
    collected = [(sum(w["et_nodes"] for w in ws), sum(w["joined"] for w in ws)) for ws in result]
    linked = [(r["et_nodes"], r["joined"]) for r in link(directory, directory / "linked").ranks]
    checked = [(r["et_nodes"], r["joined"]) for r in check_directory(directory).ranks]
    assert collected == linked == checked
    assert collected[0][1] > 100


def _check_folder_for_hta(directory: Path) -> None:
    """A folder of Kineto files alone, each with its rank, which `TraceAnalysis(trace_dir=…)` takes."""
    folder = directory.parent / "hta"
    command = [sys.executable, "-m", "dftracer.cli", "export", str(directory), "--to", "hta"]
    subprocess.run([*command, "-o", str(folder)], check=True, capture_output=True)
    assert sorted(p.name for p in folder.glob("[!.]*")) == [
        "kineto_trace_0.json.gz",
        "kineto_trace_1.json.gz",
    ]
    for rank in (0, 1):
        trace = read_json(folder / f"kineto_trace_{rank}.json.gz")
        assert trace["distributedInfo"]["rank"] == rank
        assert trace["traceEvents"] == read_json(directory / f"kineto_trace_{rank}.json.gz")["traceEvents"]


def test_a_group_made_late_renames_the_files(run: Runner) -> None:
    """Nobody tells the rank until after the first window; no file is lost or shared by then."""
    done = run(
        """
        import torch.multiprocessing as mp

        def main(rank, store):
            model = torch.nn.Linear(8, 8)
            with collect("out", wait=0, warmup=0, active=1, repeat=2) as c:
                for number in range(3):
                    if number == 1:
                        dist.init_process_group("gloo", init_method=store, rank=1 - rank, world_size=2)
                    for _ in range(8):
                        model(torch.randn(4, 8)).sum().backward()
                    c.step()
            print("rank", dist.get_rank(), len(c.report.windows), flush=True)
            dist.destroy_process_group()

        if __name__ == "__main__":
            import os
            mp.spawn(main, args=(f"file://{os.getcwd()}/store",), nprocs=2)
        """,
        prelude=DDP,
    )
    assert sorted(done.stdout.split("\n"))[-2:] == ["rank 0 2", "rank 1 2"]
    for rank in (0, 1):
        manifest = done.manifest(rank)
        assert (manifest["rank"], manifest["world_size"]) == (rank, 2)
        done.assert_whole(str(rank))
        done.assert_whole(f"{rank}_w1")
        assert done[f"torch_et_{rank}.json.gz"]["pid"] == manifest["pid"]
        files = [w["et"] for w in manifest["windows"]]
        assert files == [f"torch_et_{rank}.json.gz", f"torch_et_{rank}_w1.json.gz"]
    assert not [name for name in done.names if name.startswith(".")]


def test_without_code_under_torchrun(run: Runner) -> None:
    """`dftracer collect -- torchrun ...`: both ranks, none of the launcher."""
    program = """
import os, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(24, 16)), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    done = run(
        prelude=program,
        command=[*CLI, "-o", "out", "--json", "--", *torchrun("program.py")],
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]
    assert all(rank["steps"] == 6 and rank["complete"] for rank in result["ranks"])
    for rank in ("0", "1"):
        done.assert_whole(rank, at_least=0.998)
        assert [r for r in done.lines(f"comms_{rank}.jsonl.gz") if r["type"] == "all_reduce"]
    assert done["manifest.json"]["coverage"] >= 0.998


def test_a_group_made_anew_is_counted_anew(run: Runner) -> None:
    done = run(
        """
        with collect("out", wait=0, warmup=0, active=1) as c:
            for calls in (3, 1):
                dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                for _ in range(calls):
                    dist.all_reduce(torch.ones(3))
                dist.destroy_process_group()
            c.step()
        """,
        prelude=DDP,
    )
    events = sorted((e for e in done.events() if e["name"] == "all_reduce"), key=lambda e: e["ts"])
    assert len({e["args"]["group"] for e in events}) == 1
    first = events[0]["args"]["seq"]
    assert [e["args"]["seq"] for e in events] == [first, first + 1, first + 2, first]


def test_an_annotated_collective_is_one_event(run: Runner) -> None:
    """The annotation is its event; the record beside the trace has what the annotation does not say."""
    done = run(
        """
        from dftracer.python import ai
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        with collect("out", wait=0, warmup=0, active=1) as c:
            with ai.comm.all_reduce:
                dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(5))
            c.step()
        dist.destroy_process_group()
        """,
        prelude=DDP,
    )
    events = [e for e in done.events() if e["name"] == "all_reduce"]
    assert [e["args"].get("bytes") for e in sorted(events, key=lambda e: e["ts"])] == [None, 20]
    assert (events[-1]["args"]["step"], events[-1]["args"]["async"], events[-1]["args"]["auto"]) == (
        0,
        False,
        1,
    )
    records = done.lines("comms_0.jsonl.gz")
    assert [(r["bytes"], r["source"]) for r in records if r["type"] == "all_reduce"] == [
        (12, "call"),
        (20, "call"),
    ]
