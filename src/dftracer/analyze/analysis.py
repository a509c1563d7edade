"""The whole analysis: files to partials (here or on a cluster), partials to a job, a job to statements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import polars as pl

from dftracer.analyze import rules_input, rules_io, rules_job, trust, views
from dftracer.analyze.explain import explain
from dftracer.analyze.finding import Context, Finding
from dftracer.analyze.job import Job, build_job
from dftracer.analyze.ledger import ledger
from dftracer.analyze.partial import Partial, analyze_files
from dftracer.analyze.shelf import Shelf
from dftracer.format.files import part_of
from dftracer.load.files import NoTraces
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Trace

__all__ = ["Analysis", "analyze", "units_of"]

_ORDER = {"high": 0, "medium": 1, "low": 2, "info": 3}


class Analysis:
    """A finished analysis; its tables and statements are made when asked for."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.trace = trust.statement(job)
        self.names: pl.DataFrame = views.names(job)
        self.files: pl.DataFrame | None = views.files(job)
        rank = job.slowest
        steps = None if rank is None else rank.main.steps
        run_us = (
            int(steps.end[-1] - steps.start[0])
            if steps is not None and len(steps)
            else job.last_us - job.first_us
        )
        self.run_s = run_us / 1e6
        context = Context(job, self.names, self.files, self.run_s)
        found = [f for rules in (rules_input, rules_io, rules_job) for f in rules.rules(context)]
        found.sort(key=lambda f: (_ORDER[f.severity], -f.seconds))
        self.findings: list[Finding] = [*found, *trust.evidence_findings(context, self.trace)]
        self._ledger: dict[str, Any] | None = None

    @property
    def ledger(self) -> dict[str, Any]:
        if self._ledger is None:
            self._ledger = ledger(self.job)
        return self._ledger

    @property
    def verdict(self) -> str:
        """The run in one sentence."""
        rank = self.job.slowest
        if rank is None or len(rank.main.steps) < 3:
            return next(f.title for f in self.findings if f.id == "not_enough_evidence")
        told = [f for f in self.findings if f.severity in {"high", "medium"} and f.seconds > 0]
        if told:
            top = told[0]
            return f"{top.title} That is {top.seconds:.2f} s or {top.percent:.0f} % of the run."
        wall = float(rank.wall_us.sum())
        unexplained = float(rank.stage_us("unexplained").sum()) / wall
        if unexplained >= 0.2:
            return (
                f"No bottleneck stands out, but {100 * unexplained:.0f} % of rank {rank.number}'s step"
                f" time is covered by no"
                " annotation."
            )
        compute = sum(float(rank.stage_us(s).sum()) for s in ("forward", "backward", "optimizer"))
        return (
            f"No bottleneck outside compute: {100 * compute / wall:.0f} % of rank {rank.number}'s step"
            f" time is forward,"
            f" backward and optimizer."
        )

    @property
    def overlap(self) -> dict[str, dict[str, float | None]]:
        """Per rank: time with I/O going on, and how much of it ran beside compute."""
        out: dict[str, dict[str, float | None]] = {}
        for r in self.job.ranks:
            io = sum(e.io_us for e in r.explanations.values())
            hidden = sum(e.io_hidden_us for e in r.explanations.values())
            out[str(r.number)] = {
                "io_s": round(io / 1e6, 6),
                "hidden_s": round(hidden / 1e6, 6),
                "percent": round(100 * hidden / io, 3) if io else None,
            }
        return out


def units_of(trace: Trace) -> list[list[ProcessInfo]]:
    """What is analysed as one: the files of a process, usually one, several where the recorder began new
    parts.
    """
    units: dict[str, list[tuple[int, ProcessInfo]]] = {}
    for process in trace.processes:
        if trace.filter.wants(process):
            stem, part = part_of(process.file)
            units.setdefault(stem, []).append((part, process))
    return [[p for _, p in sorted(unit, key=lambda u: u[0])] for unit in units.values()]


def analyze(
    trace: Trace | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    dask: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Analysis:
    """Analyse a trace. `dask` is a scheduler address, "local", or a `distributed.Client`."""
    if not isinstance(trace, Trace):
        trace = Trace(trace)
    units = units_of(trace)
    if not units:
        seen = sorted({p.rank for p in trace.processes if p.rank is not None})
        raise NoTraces(f"no process is of the asked ranks or pids; ranks in this trace: {seen or 'none'}")
    if dask is not None:
        from dftracer.analyze.cluster import analyze_on_cluster  # noqa: PLC0415 - needs the extra `dask`

        return _checked(Analysis(analyze_on_cluster(trace, dask, progress)))
    with Shelf(trace.memory_limit) as shelf:
        partials: list[Partial] = []
        sizes = [sum(p.file.stat().st_size for p in unit) for unit in units]
        for i, unit in enumerate(units):
            tick = None if progress is None else _from(progress, sum(sizes[:i]), sum(sizes))
            for partial, lanes in analyze_files(
                unit, trace.filter, trace.threads, 2 * trace.chunk_text, tick
            ):
                shelf.put(id(partial), lanes)
                partials.append(partial)
            if progress is not None:
                progress(sum(sizes[: i + 1]), sum(sizes))
        job = build_job(partials)
        for rank in job.ranks:
            for i, member in enumerate(rank.members):
                skip = rank.main.steps.tid if member is rank.main else None
                lanes = shelf.take(id(member))
                rank.explanations[i] = explain(lanes, rank.main.waits, rank.main.compute, skip)
    return _checked(Analysis(job))


def _from(progress: Callable[[int, int], None], before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _checked(analysis: Analysis) -> Analysis:
    """Files without a single record are no trace: saying that nothing is wrong with them would mislead."""
    processes = [p.process for p in analysis.job.partials]
    if any(p.counts.get(k) for p in processes for k in ("events", "meta", "filtered")):
        return analysis
    if any(p.counts.get(k) for p in processes for k in ("bad_lines", "cut_lines", "members_cut")):
        raise NoTraces(
            f"{processes[0].file} is no trace: no line of it is a trace record"
            if len(processes) == 1
            else f"none of the {len(processes)} files is a trace: no line is a trace record"
        )
    raise NoTraces(f"{processes[0].file} is empty: nothing was recorded, or the program was killed at once")
