"""What other tools record of the same programs: `python -m bench.versus` prints the tables of docs/versus.md.

One training program with two loader workers, run to its end and killed in the middle, under `dftracer run`,
VizTracer and torch.profiler; and an annotated program with two forked workers under this and under the
DFTracer packages on PyPI. Counted are processes, items and steps in the trace, and bytes on disk, which do
not depend on how busy the machine is.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import rivals

ITEMS, STEPS = 320, 40
Found = tuple[int, int, int, int]  # processes, items, steps, bytes

TRAIN = f"""
import os, signal, sys, torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return {ITEMS}
    def __getitem__(self, index):
        return torch.randn(64)

def train(step_done=lambda: None):
    torch.set_num_threads(1)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(DataLoader(Items(), batch_size={ITEMS // STEPS}, num_workers=2)):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        step_done()
        if "killed" in sys.argv and step == {STEPS // 2}:
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    train()
"""

PROFILED = """
import torch, train
with torch.profiler.profile() as profiler:
    train.train(profiler.step)
profiler.export_chrome_trace("out.json")
"""

ANNOTATED = """
import multiprocessing, os, signal, sys
from dftracer.python import ai, dftracer
log = dftracer.initialize_log("out.pfw", None, -1)

@ai.data.item
def load(i):
    return i

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step, batch in enumerate(ai.dataloader.fetch.iter(pool.imap(load, range(300)))):
            with ai.compute.forward:
                pass
            if "killed" in sys.argv and step == 150:
                os.kill(os.getpid(), signal.SIGKILL)
        pool.close()
        pool.join()
    log.finalize()
"""


def _environment(interpreter: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    return {**plain, "PATH": f"{Path(interpreter).parent}{os.pathsep}{plain['PATH']}", "DFTRACER_ENABLE": "1"}


def _run(command: list[str], folder: Path, interpreter: str = sys.executable) -> None:
    subprocess.run(
        command, cwd=folder, env=_environment(interpreter), capture_output=True, check=False, timeout=300
    )


def _bytes(folder: Path, pattern: str) -> int:
    return sum(p.stat().st_size for p in folder.rglob(pattern))


def _chrome(file: Path, item: str, step: str) -> tuple[int, int, int]:
    """Processes with events, and events whose name has `item` or `step` in it."""
    if not file.is_file() or not file.stat().st_size:
        return 0, 0, 0
    spans = [e for e in json.loads(file.read_bytes())["traceEvents"] if e.get("ph") == "X"]
    pids = {e["pid"] for e in spans if isinstance(e["pid"], int)}
    return len(pids), sum(item in e["name"] for e in spans), sum(step in e["name"] for e in spans)


def _lines(folder: Path, step: str) -> tuple[int, int, int]:
    """Processes with events, items and events called `step` in .pfw and .pfw.gz files, whoever wrote them."""
    pids: set[int] = set()
    items = steps = 0
    for file in folder.rglob("*.pfw*"):
        data = file.read_bytes()
        for line in (gzip.decompress(data) if file.suffix == ".gz" and data else data).splitlines():
            try:
                record: dict[str, Any] = json.loads(line.rstrip(b","))
            except ValueError:
                continue
            if isinstance(record, dict) and "dur" in record:
                pids.add(record["pid"])
                items += record["name"] == "item"
                steps += record["name"] == step
    return len(pids), items, steps


def _recovered(folder: Path) -> None:
    _run([sys.executable, "-m", "dftracer", "info", "."], folder)


def _row(tool: str, change: str, end: Found, killed: Found, done: int) -> str:
    size = f"{end[3] / 1e6:.2f} MB"
    return f"| {tool} | {change} | {end[0]} | {end[1]} | {size} | {killed[2]} of {done} |"


def _measure(tool: str, extra: tuple[str, ...], folder: Path) -> Found:
    (folder / "train.py").write_text(TRAIN)
    (folder / "profiled.py").write_text(PROFILED)
    if tool == "this":
        _run(
            [
                sys.executable,
                "-m",
                "dftracer",
                "run",
                "-q",
                "-o",
                "t",
                "--",
                sys.executable,
                "train.py",
                *extra,
            ],
            folder,
        )
        _recovered(folder)
        return *_lines(folder / "t", "backward"), _bytes(folder / "t", "*.pfw.gz")
    if tool == "viztracer":
        _run(["viztracer", "-o", "out.json", "--", "train.py", *extra], folder)
        return *_chrome(folder / "out.json", "Items.__getitem__", "Tensor.backward"), _bytes(
            folder, "out.json"
        )
    _run([sys.executable, "profiled.py", *extra], folder)
    return *_chrome(folder / "out.json", "__getitem__", "Optimizer.step#"), _bytes(folder, "out.json")


def _measure_annotated(interpreter: str, extra: tuple[str, ...], folder: Path) -> Found:
    (folder / "program.py").write_text(ANNOTATED)
    _run([interpreter, "program.py", *extra], folder, interpreter)
    if interpreter == sys.executable:
        _recovered(folder)
    return *_lines(folder, "forward"), _bytes(folder, "*.pfw*")


def main() -> int:
    """Measure and print."""
    columns = (
        "tool",
        "change to the program",
        "processes in the trace",
        "items",
        "size",
        "steps left after `kill -9` in the middle",
    )
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    rival = str(rivals.ensure())
    tools = {
        "this": (f"pydftracer {version('pydftracer')}, `dftracer run`", "none"),
        "viztracer": (f"VizTracer {version('viztracer')}, `viztracer`", "none"),
        "profiler": (f"torch.profiler {version('torch')}", "a `with` block, `step()`, an export"),
    }
    print(f"A training of {STEPS} steps, {ITEMS} items, two loader workers:\n\n{head}")
    for tool, (name, change) in tools.items():
        rows = []
        for extra in ((), ("killed",)):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_measure(tool, extra, Path(folder)))
        print(_row(name, change, rows[0], rows[1], STEPS // 2 + 1), flush=True)
    print(f"\nAn annotated program with two forked workers, 300 items:\n\n{head}")
    for interpreter, name in (
        (sys.executable, f"pydftracer {version('pydftracer')}"),
        (rival, "pydftracer 2.0.6 + dftracer 2.2.0"),
    ):
        rows = []
        for extra in ((), ("killed",)):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(_measure_annotated(interpreter, extra, Path(folder)))
        print(_row(name, "annotations", rows[0], rows[1], 151), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
