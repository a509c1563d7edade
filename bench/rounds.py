"""Interleaved rounds: A B A B ..., and medians of what each round says."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Bench", "Comparison", "Worker", "compare", "environment"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Bench:
    """Who is measured, how long, and where the traces go meanwhile."""

    ours: Path
    rival: Path | None
    quick: bool
    directory: Path

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 15

    @property
    def repeats(self) -> int:
        return 5 if self.quick else 9

    def interpreters(self) -> dict[str, Path]:
        return {"ours": self.ours} | ({"rival": self.rival} if self.rival else {})


def environment(bench: Bench, *, traced: bool) -> dict[str, str]:
    """Nobody's settings but ours, and the same for both."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have theirs
    return kept | {
        "DFTRACER_ENABLE": "1" if traced else "0",
        "DFTRACER_DISABLE_IO": "1",
        "DFTRACER_INC_METADATA": "1",
        "DFTRACER_TRACE_COMPRESSION": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(ROOT),
        "BENCH_DIR": str(bench.directory),
    }


class Worker:
    """A measuring process; see `bench.worker`."""

    def __init__(self, bench: Bench, python: Path, case: str, *, traced: bool) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "bench.worker", case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(bench, traced=traced),
            cwd=bench.directory,
            text=True,
        )

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"worker ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def round(self, repeats: int) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{repeats}\n")
        self._process.stdin.flush()
        return self._answer()

    def finish(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        facts = self._answer()
        self._process.wait()
        return facts

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass
class Comparison:
    """Per-round costs of both; all in nanoseconds per operation."""

    ours: list[dict[str, float]]
    rival: list[dict[str, float]]
    facts: dict[str, dict[str, Any]]

    @staticmethod
    def _net(round_: dict[str, float]) -> float:
        # Below the clock's grain a difference can come out as nothing or less.
        return max(round_["op"] - round_["plain"], 0.1)

    def cost(self) -> float:
        return statistics.median(map(self._net, self.ours))

    def rival_cost(self) -> float | None:
        return statistics.median(map(self._net, self.rival)) if self.rival else None

    def ratio(self) -> float | None:
        """Rival over ours, the median of the rounds' own ratios."""
        if not self.rival:
            return None
        pairs = zip(self.rival, self.ours, strict=True)
        return statistics.median(self._net(theirs) / self._net(mine) for theirs, mine in pairs)

    def yardstick(self, name: str) -> float:
        """Cost of another loop of our worker, over the plain one."""
        return statistics.median(round_[name] - round_["plain"] for round_ in self.ours)

    def over_yardstick(self, name: str) -> float:
        return statistics.median(
            self._net(round_) / max(round_[name] - round_["plain"], 0.1) for round_ in self.ours
        )

    def over_plain(self) -> float:
        return statistics.median(round_["op"] / round_["plain"] for round_ in self.ours)

    def dropped(self) -> int:
        return _dropped(self.facts["ours"].get("end"))


def _dropped(end: dict[str, Any] | None) -> int:
    """Events the trace itself says it lost; a trace without an `end` record vouches for nothing."""
    if end is None:
        return -1
    lost = end.get("dropped", 0)
    return sum(_numbers(lost.values())) if isinstance(lost, dict) else int(lost)


def _numbers(values: Iterable[Any]) -> Iterable[int]:
    return (int(value) for value in values)


def compare(bench: Bench, case: str, *, traced: bool = True) -> Comparison:
    workers = {
        who: Worker(bench, python, case, traced=traced) for who, python in bench.interpreters().items()
    }
    series: dict[str, list[dict[str, float]]] = {"ours": [], "rival": []}
    facts = {}
    try:
        for _ in range(bench.rounds):
            for who, worker in workers.items():
                series[who].append(worker.round(bench.repeats))
        for who, worker in workers.items():
            facts[who] = worker.finish()
    finally:
        for worker in workers.values():
            worker.__exit__(None, None, None)
    return Comparison(series["ours"], series["rival"], facts)
