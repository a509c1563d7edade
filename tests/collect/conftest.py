"""Real programs with real torch, each in a process of its own; tests read the files they leave."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment
from support.torch_programs import Task, fork_at_once

pytest.importorskip("torch")

Json = dict[str, Any]

MODEL = """
from dftracer.collect import collect
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train_step():
    optimizer.zero_grad()
    model(torch.randn(4, 16)).sum().backward()
    optimizer.step()
"""


def read_json(path: Path) -> Any:
    """One file, strictly."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(data)


class Collected:
    """A collected directory, read without the help of the code under test."""

    def __init__(self, directory: Path, process: subprocess.CompletedProcess[str]) -> None:
        self.directory = directory
        self.returncode = process.returncode
        self.stdout = process.stdout
        self.stderr = process.stderr

    def __getitem__(self, name: str) -> Any:
        return read_json(self.directory / name)

    @property
    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def manifest(self, rank: int = 0) -> Json:
        found: Json = self[f"manifest_{rank}.json"]
        return found

    def lines(self, name: str) -> list[Json]:
        text = gzip.decompress((self.directory / name).read_bytes()).decode()
        return [json.loads(line) for line in text.splitlines()]

    def events(self) -> list[Json]:
        """Events of our own traces."""
        found = []
        for path in sorted(self.directory.glob("*.pfw.gz")):
            for line in gzip.decompress(path.read_bytes()).decode().splitlines():
                if line not in ("[", "]"):
                    found.append(json.loads(line))
        return [record for record in found if record["ph"] == "X"]

    def join(self, suffix: str = "0") -> tuple[int, int, int]:
        """(operators of the execution trace, those that Kineto has too, those of equal name)."""
        et = self[f"torch_et_{suffix}.json.gz"]
        kineto = self[f"kineto_trace_{suffix}.json.gz"]
        wanted = {}
        for node in et["nodes"]:
            rf_id = next(a["value"] for a in node["attrs"] if a["name"] == "rf_id")
            if rf_id:
                assert rf_id not in wanted, "a record function id twice"
                wanted[rf_id] = node["name"]
        ids = [node["id"] for node in et["nodes"]]
        assert len(set(ids)) == len(ids), "a node id twice"
        seen = {
            event["args"]["Record function id"]: event["name"]
            for event in kineto["traceEvents"]
            if event.get("args", {}).get("Record function id") and event["pid"] == et["pid"]
        }
        joined = wanted.keys() & seen.keys()
        return len(wanted), len(joined), sum(wanted[rf_id] == seen[rf_id] for rf_id in joined)

    def assert_whole(self, suffix: str = "0", at_least: float = 1.0) -> None:
        """Every operator is in both traces, under the same name."""
        nodes, joined, agree = self.join(suffix)
        assert nodes > 20
        assert joined >= at_least * nodes, f"{joined} of {nodes}"
        assert agree == joined


def environment(**more: str) -> dict[str, str]:
    return clean_environment(OMP_NUM_THREADS="1", **more)


Runner = Callable[..., Collected]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a program text, or a command; the directory to collect into is `out`, in its own folder."""

    def execute(
        code: str = "",
        *,
        prelude: str = MODEL,
        command: list[str] | None = None,
        env: dict[str, str] | None = None,
        expect: int = 0,
        out: str = "out",
    ) -> Collected:
        (tmp_path / "program.py").write_text(prelude + textwrap.dedent(code), encoding="utf-8")
        settings = environment(DFTRACER_DISABLE_IO="1", **(env or {}))
        if command is None:
            task = Task(tmp_path / "program.py", tmp_path, settings)
            (code_of_end,) = fork_at_once([task])
            out_and_err = (task.output(name).read_text() for name in ("stdout", "stderr"))
            process = subprocess.CompletedProcess(["program.py"], code_of_end, *out_and_err)
        else:
            process = subprocess.run(
                command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=240, check=False
            )
        assert process.returncode == expect, process.stdout + process.stderr[-6000:]
        return Collected(tmp_path / out, process)

    return execute


def torchrun(*words: str, ranks: int = 2) -> list[str]:
    """The launcher, on a port of its own."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        *words,
    ]
