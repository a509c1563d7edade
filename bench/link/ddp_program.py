"""One rank of a small data-parallel training over gloo, recorded by torch's own execution trace observer
and profiler in one window, and by the tracer: `python ddp_program.py OUT RANK WORLD PORT [--steps N]
[--layers N] [--gather N]`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("DFTRACER_ENABLE", "1")
os.environ.setdefault("DFTRACER_DISABLE_IO", "1")

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from dftracer.python import ai, dftracer


class Window:
    """A fresh observer for each window, finished when the window is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._observer: Any = None

    def start(self) -> None:
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._path))
        self._observer.start()

    def stop(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.unregister_callback()
            self._observer = None

    def cleanup(self) -> None:
        self.stop()


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("out", type=Path)
    p.add_argument("rank", type=int)
    p.add_argument("world", type=int)
    p.add_argument("port", type=int)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--width", type=int, default=16)
    p.add_argument(
        "--gather",
        type=int,
        default=0,
        help="gather and reduce this many numbers in all other ways after each step",
    )
    args = p.parse_args()
    os.environ.update(RANK=str(args.rank), WORLD_SIZE=str(args.world), LOCAL_RANK=str(args.rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.set_num_threads(1)
    log = dftracer.initialize_log(str(args.out / f"train_{args.rank}.pfw"), None, -1)
    dist.init_process_group("gloo", rank=args.rank, world_size=args.world)
    layers: list[torch.nn.Module] = []
    for _ in range(args.layers):
        layers += [torch.nn.Linear(args.width, args.width), torch.nn.GELU(), torch.nn.LayerNorm(args.width)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=False)
    kineto = args.out / f"kineto_trace_{args.rank}.json"
    window = Window(args.out / f"torch_et_{args.rank}.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=args.steps, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(kineto)),
        record_shapes=True,
        execution_trace_observer=window,
    ) as prof:
        for step in range(args.steps + 3):
            ai.update(epoch=1, step=step)
            with ai.pipeline.train if hasattr(ai.pipeline, "train") else ai.compute:
                batch = torch.randn(8, args.width)
                with ai.compute.forward:
                    loss = model(batch).square().mean()
                with ai.compute.backward:
                    loss.backward()
                with ai.compute.step:
                    optimizer.step()
                    optimizer.zero_grad()
                norm = loss.detach().clone()
                with ai.comm.all_reduce:
                    dist.all_reduce(norm)
                if args.gather:
                    mine = torch.full((args.gather,), float(args.rank))
                    parts = [torch.empty_like(mine) for _ in range(args.world)]
                    with ai.comm.all_gather:
                        dist.all_gather(parts, mine)
                    with ai.comm.gather:
                        dist.gather(mine, parts if args.rank == 0 else None, dst=0)
                    with ai.comm.reduce_scatter:
                        dist.reduce_scatter(mine, parts)
            prof.step()
    dist.destroy_process_group()
    log.finalize()


if __name__ == "__main__":
    main()
