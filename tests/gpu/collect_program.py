"""A collection on a CUDA device: collects DDP training over NCCL, reads the files, prints what holds.

Needs no test runner: `python tests/gpu/collect_program.py` prints one line of JSON: check, true or the error.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("DFTRACER_DISABLE_IO", "1")

from dftracer.collect import collect  # isort: skip - turns tracing on
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def train(directory: str, busy: bool) -> Any:
    """Windows with and without an execution trace, workers with pinned memory, another thread if wanted."""
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2, enable_nested_tensor=False
    ).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(
        TensorDataset(torch.randn(128, 32, 128)), batch_size=8, num_workers=2, pin_memory=True
    )
    stop = threading.Event()

    def other() -> None:
        x = torch.randn(64, 64, device="cuda")
        while not stop.is_set():
            x = (x @ x).clamp(-1, 1)

    thread = threading.Thread(target=other)
    if busy:
        thread.start()
    with collect(directory, wait=1, warmup=1, active=2, repeat=3, et_windows=2) as c:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x.cuda(non_blocking=True)).pow(2).mean().backward()
            optimizer.step()
            dist.all_reduce(torch.ones(8, device="cuda"))
            c.step()
    stop.set()
    if busy:
        thread.join()
    return c.report


def join(directory: Path, name: str) -> tuple[int, int, int]:
    et, kineto = (
        read(directory / f"torch_et_{name}.json.gz"),
        read(directory / f"kineto_trace_{name}.json.gz"),
    )
    wanted = {}
    for node in et["nodes"]:
        rf_id = next(a["value"] for a in node["attrs"] if a["name"] == "rf_id")
        if rf_id:
            wanted[rf_id] = node["name"]
    seen = {
        e["args"]["Record function id"]: e["name"]
        for e in kineto["traceEvents"]
        if e.get("args", {}).get("Record function id")
    }
    both = wanted.keys() & seen.keys()
    return len(wanted), len(both), sum(wanted[k] == seen[k] for k in both)


def check_windows(report: Any, directory: Path) -> None:
    assert len(report.windows) == 3, report
    for name in ("0", "0_w1"):
        nodes, both, agree = join(directory, name)
        assert nodes > 100, nodes
        assert both >= 0.998 * nodes, (nodes, both)
        assert agree == both, (agree, both)


def check_kernels(report: Any, directory: Path) -> None:
    events = read(directory / "kineto_trace_0_w2.json.gz")["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    launches = {
        e["args"].get("correlation") for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    assert len(kernels) > 50, len(kernels)
    assert all(e["args"]["correlation"] in launches for e in kernels)


def check_collectives(report: Any, directory: Path) -> None:
    text = gzip.decompress((directory / "comms_0.jsonl.gz").read_bytes()).decode()
    records = [json.loads(line) for line in text.splitlines()]
    calls = [r for r in records if r["source"] == "call"]
    assert len(calls) == 16, len(calls)
    assert {(r["type"], r["bytes"], r["dtype"], r["backend"]) for r in calls} == {
        ("all_reduce", 32, "float32", "nccl")
    }, calls[:2]
    assert [r for r in records if r["source"] == "backend"], "DDP's buckets"


def check_memory(report: Any, directory: Path) -> None:
    samples = read(directory / "memory_0.json.gz")["samples"]
    assert max(s.get("allocated_0", 0) for s in samples) > 1 << 20
    assert "GPU" in (directory / "workload_card.yaml").read_text()


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("nccl", rank=0, world_size=1)
    results: dict[str, Any] = {}
    for busy in (False, True):
        directory = tempfile.mkdtemp()
        try:
            report = train(directory, busy)
        except Exception:
            results[f"train, busy={busy}"] = traceback.format_exc()
            continue
        for check in (check_windows, check_kernels, check_collectives, check_memory):
            name = check.__name__ + (" beside a busy thread" if busy else "")
            try:
                check(report, Path(directory))
                results[name] = True
            except Exception:
                results[name] = f"{traceback.format_exc()}\n{report}"
    dist.destroy_process_group()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
