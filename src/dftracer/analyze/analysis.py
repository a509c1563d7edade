"""The whole analysis: files to partials (here or on a cluster), partials to a job, a job to statements.

On a Dask cluster, a task reads the files of one process where it runs; data that grows with the trace stays
on that worker. A large file is read by several tasks, each reading some of its members, and joined on one of
the workers. Only the small partial results come back, the job is assembled here, and a second round of tasks
asks each worker what its processes did while their rank waited.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from dftracer._packages import need
from dftracer._text import counted, plural
from dftracer.analyze import frames
from dftracer.analyze.device.profiler_rows import DeviceRows, TorchProcess, attach, read_torch_files
from dftracer.analyze.device.summary import accelerator_utilisation, model_figures, samples_per_second
from dftracer.analyze.job import Job, Rank, build_job
from dftracer.analyze.ledger import ledger, phase_rows
from dftracer.analyze.machine import machine_document
from dftracer.analyze.map.account import Account
from dftracer.analyze.map.digest import SpanDigest, digest_span
from dftracer.analyze.map.partial import Partial, analyze_files, analyze_torch, join_spans
from dftracer.analyze.map.step_rows import partial_of_rows, process_of_rows, rows_of_run
from dftracer.analyze.map.threads import Explanation, Lanes, LaneStore, Question, explain
from dftracer.analyze.peers import scores
from dftracer.analyze.rules import loading, machine_limits, training, trust
from dftracer.analyze.rules.bound import Bound, find_bound, judged_run
from dftracer.analyze.rules.finding import Findings, JudgingContext, ordered
from dftracer.analyze.say.verdict import Head, head
from dftracer.format.members import member_spans
from dftracer.format.trace_names import NoTraces, Paths, find_traces, is_rows_name, part_of
from dftracer.load.find import here, recover
from dftracer.load.process import ProcessInfo, Run, find_runs, processes_of, run_identity
from dftracer.load.rows import RowFile, read_row_files, rows_without_traces
from dftracer.load.trace import Filter, Trace, available_cores

# Files at least twice this size are read by several tasks: about 2 M events, or a second of work, each.
SPAN_BYTES = 32 << 20

_RULES = (
    *loading.RULES,
    *training.RULES,
    *machine_limits.RULES,
)

_Results = list[tuple[Partial, Lanes]]
_Files = dict[int, DeviceRows]


class Analysis:
    """A finished analysis; its tables and statements are computed on demand."""

    def __init__(self, job: Job, other_runs: list[Run] | None = None, from_rows: bool = False) -> None:
        self.job = job
        self.from_rows = from_rows  # the events are gone
        self._other_runs = other_runs or []
        self.trace_facts: dict[str, Any] = trust.trace_facts(job)
        self.name_table: pl.DataFrame = frames.names(job)
        self.file_table: pl.DataFrame | None = frames.files(job)
        self.judged = judged = judged_run(job)
        run_us = job.run_us if judged is None else judged.rank.main.phases.run_us
        self.ended: trust.Ended = trust.how_it_ended(job)
        self.run_s = run_us / 1e6
        self.bound: Bound | None = find_bound(judged)
        context = JudgingContext(job, self.name_table, self.file_table, self.run_s, judged, self.bound)
        found = machine_limits.without_symptoms(context, [f for rule in _RULES for f in rule(context)])
        evidence = trust.evidence_findings(context, self.trace_facts)
        self.findings: Findings = Findings([*ordered(found), *evidence])
        self.head: Head = head(context, [*found, *evidence])
        self.au = accelerator_utilisation(job)
        self.samples_per_s = samples_per_second(job)
        self.flops: float | None = None  # of one step of one rank, if the user knows it
        self._ledger: dict[str, Any] | None = None
        self._trainings: list[Analysis] | None = None

    def __repr__(self) -> str:
        t = self.trace_facts
        size = f"{counted(t['events'], 'event')}, {plural(t['processes'], 'process', 'processes')}"
        return f"<Analysis of {size}, {plural(t['ranks'], 'rank')}: {self.verdict}>"

    def _repr_html_(self) -> str:
        from dftracer.report.html import analysis_fragment  # noqa: PLC0415 - only where it is shown

        return analysis_fragment(self)

    @property
    def ledger(self) -> dict[str, Any]:
        if self._ledger is None:
            self._ledger = ledger(self.job)
        return self._ledger

    @property
    def model(self) -> dict[str, Any]:
        """Samples, tokens and FLOP per second."""
        return model_figures(self.job, self.flops)

    @property
    def machine(self) -> dict[str, Any]:
        """What the machine did meanwhile, as far as it was sampled."""
        return machine_document(self.job, self.job.slowest)

    @property
    def account(self) -> Account | None:
        """Where the time of the steady steps went; None without steps."""
        return None if self.judged is None else self.judged.account

    @property
    def verdict(self) -> str:
        """The run in one sentence: the first line of its head."""
        return self.head[0]

    @property
    def run(self) -> dict[str, Any]:
        """The run's identity, and the other runs in the same directory."""
        return {
            **run_identity([p.process for p in self.job.partials]),
            "others": [r.identity() for r in self._other_runs],
        }

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """Per rank: what it is, how long it waited for others, and how its stages compare."""
        rated = scores([r for r in self.job.ranks if len(r.main.steps)])
        return [
            {
                "rank": r.number,
                "pid": r.main.process.pid,
                "host": r.main.process.host,
                "steps": len(r.main.steps),
                "wall_s": round(float(r.wall_us.sum()) / 1e6, 6),
                "workers": len(r.workers),
                "waiting_for_peers_s": round(sum(r.peers.waiting_s.values()), 6),
                "waiting_by_stage_s": r.peers.waiting_s,
                "caused_waiting_s": round(sum(r.peers.caused_s.values()), 6),
                "caused_by_stage_s": r.peers.caused_s,
                "collectives_matched": r.peers.exact,
                "waiting_at_least": r.peers.at_least,
                "clock_offset_us": r.peers.offset_us,
                "clock_error_us": r.peers.error_us,
                **rated[r.number],
            }
            for r in self.job.ranks
            if r.number in rated
        ]

    @property
    def trainings(self) -> list[Analysis]:
        """The trainings of a run that has several, in processes of their own, in the order of their start."""
        if not self.job.others:
            return []
        if self._trainings is None:
            alone = Job(self.job.ranks[0].members, self.job.ranks) if self.job.ranks else self.job
            all_of_them = [Analysis(each) for each in (alone, *self.job.others)]
            self._trainings = sorted(all_of_them, key=lambda a: a.job.ranks[0].main.first_us or 0)
        return self._trainings

    @property
    def own_code(self) -> dict[str, Any] | None:
        """Where the program's own code was when it was sampled; None without samples."""
        rank = self.job.slowest
        if rank is None or not rank.main.samples.start.size:
            return None
        samples = rank.main.samples
        places = samples.seconds()
        whole = sum(places.values())
        return {
            "rank": rank.number,
            "seconds": round(whole, 6),
            "places": [
                {"where": where, "seconds": round(s, 6), "share": round(s / whole, 6) if whole else 0.0}
                for where, s in places.items()
                if where
            ],
            "flame": samples.flame(),
        }

    @property
    def attempts(self) -> list[trust.Ended]:
        """How each attempt ended, if the launcher restarted the job."""
        return trust.attempts(self.job)

    @property
    def phases(self) -> dict[str, dict[str, float]]:
        """The parts of the run, which add up to it, for the rank on the critical path."""
        return {} if self.judged is None else phase_rows(self.judged.rank)

    @property
    def overlap(self) -> dict[str, dict[str, float | None]]:
        """Per rank: time with I/O in progress, and how much of it overlapped with compute."""
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


def analyze(
    trace: Trace | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    dask: Any = None,
    progress: Callable[[int, int], None] | None = None,
    run: str | None = None,
) -> Analysis:
    """Analyse one run: the newest of those in `trace`, the one with the id `run`, or `all` files as one.

    Given paths instead of a `Trace`, it first completes the traces of killed processes, as `recover` does.
    `dask` is a scheduler address, "local", or a `distributed.Client`. A run of which only step rows are left
    is analysed from those.
    """
    if not isinstance(trace, Trace):
        trace = [trace] if isinstance(trace, str | os.PathLike) else [*trace]
        recover(trace)
        rows, others = rows_left(trace, run)
        if rows:
            return analyze_rows(rows, others)
        trace = Trace(trace, torch=True)
    others = []
    if run is not None:
        trace = trace.of_run(run)
    elif len(trace.runs) > 1:
        others = trace.runs[1:]
        trace = trace.newest_run()
    units = units_of(trace)
    files, alone = _trace_files_of_torch(trace)
    if not units and not alone:
        seen = sorted({p.rank for p in trace.processes if p.rank is not None})
        raise NoTraces(f"no process has the requested ranks or pids; ranks in this trace: {seen or 'none'}")
    if dask is not None:
        return _checked(Analysis(analyze_on_cluster(trace, dask, progress), others))
    with LaneStore(trace.memory_limit) as store:
        partials: list[Partial] = []
        sizes = [sum(p.file.stat().st_size for p in unit) for unit in units]
        for i, unit in enumerate(units):
            tick = None if progress is None else _from(progress, sum(sizes[:i]), sum(sizes))
            results = analyze_files(unit, trace.filter, trace.threads, trace.chunk_text, tick, files)
            while results:
                partial, lanes = results.pop(0)
                store.put(id(partial), lanes)
                partials.append(partial)
                del lanes  # as large as the trace: the next process is not to find it in memory
            if progress is not None:
                progress(sum(sizes[: i + 1]), sum(sizes))
        for process in alone:
            partial, lanes = analyze_torch(process)
            store.put(id(partial), lanes)
            partials.append(partial)
        job = build_job(partials)
        for rank, i, member in _members(job):
            rank.explanations[i] = explain(store.take(id(member)), rank.question(member))
    return _checked(Analysis(job, others))


def rows_left(paths: Paths, run: str | None = None) -> tuple[list[RowFile], list[Run]]:
    """The step rows of the run that is meant, if nothing else is left of it, and the other runs."""
    local = here(paths)
    given = [local] if isinstance(local, str | os.PathLike) else list(local)
    alone = rows_without_traces(given)
    if not alone:
        return [], []
    traces = find_traces([p for p in given if not is_rows_name(p)])
    if not traces:
        files, ids = rows_of_run(alone, run)
        if not files:
            raise NoTraces(f"no step rows{f' of run {run}' if run else ''}; runs: {', '.join(ids) or 'none'}")
        return files, []
    if run == "all":
        return [], []
    rows = {Path(file.path): file for file in read_row_files(alone) if len(file.steps)}
    runs = find_runs([*processes_of(traces), *map(process_of_rows, rows.values())])
    meant = next((each for each in runs if run in (None, each.id)), None)
    if meant is None or not rows.keys() >= set(meant.files):
        return [], []
    return [rows[file] for file in meant.files], [each for each in runs if each is not meant]


def analyze_rows(files: list[RowFile], other_runs: list[Run] | None = None) -> Analysis:
    """What the step rows of a run's processes tell."""
    job = build_job([partial_of_rows(file) for file in files])
    for rank, i, member in _members(job):
        rank.explanations[i] = explain(Lanes(), rank.question(member))
    return Analysis(job, other_runs, from_rows=True)


def units_of(trace: Trace, gaps: bool = False) -> list[list[ProcessInfo]]:
    """What is analysed as one: the files of a process, usually one, several if the recorder rotated.

    `gaps`: also what a black box has kept from before.
    """
    units: dict[str, list[tuple[int, ProcessInfo]]] = {}
    for process in trace.processes:
        if trace.filter.wants(process):
            stem, part = part_of(process.file)
            units.setdefault(stem, []).append((part, process))
    in_order = [sorted(unit, key=lambda u: u[0]) for unit in units.values()]
    return [[p for _, p in unit] if gaps else _latest(unit) for unit in in_order]


def _latest(parts: list[tuple[int, ProcessInfo]]) -> list[ProcessInfo]:
    """The last parts without a gap: of a black box, what lies before one is only kept to be looked at."""
    first = max((i for i in range(1, len(parts)) if parts[i][0] > parts[i - 1][0] + 1), default=0)
    return [process for _, process in parts[first:]]


def _trace_files_of_torch(trace: Trace) -> tuple[dict[int, DeviceRows], list[TorchProcess]]:
    """What profiler files next to the trace say about its processes, and processes that only they know."""
    if not any(trace.torch_files):
        return {}, []
    return attach(read_torch_files(*trace.torch_files), trace.processes)


def _members(job: Job) -> Iterator[tuple[Rank, int, Partial]]:
    """Every process of every rank, with its number in the rank."""
    for rank in (r for each in (job, *job.others) for r in each.ranks):
        for i, member in enumerate(rank.members):
            yield rank, i, member


def _from(progress: Callable[[int, int], None], before: int, total: int) -> Callable[[int], None]:
    return lambda done: progress(before + done, total)


def _checked(analysis: Analysis) -> Analysis:
    """Files without a single record are not traces: reporting no problems with them would be misleading."""
    processes = [p.process for p in analysis.job.partials]
    if any(p.counts.get(k) for p in processes for k in ("events", "meta", "filtered")):
        return analysis
    if any(p.counts.get(k) for p in processes for k in ("bad_lines", "cut_lines", "members_cut")):
        which = str(processes[0].file) if len(processes) == 1 else f"none of the {len(processes)} files"
        verb = "is not" if len(processes) == 1 else "is"
        raise NoTraces(f"{which} {verb} a dftracer trace: no line is a trace record")
    raise NoTraces(f"{processes[0].file} is empty: nothing was recorded, or the program was killed at once")


@contextlib.contextmanager
def connect(dask: Any) -> Iterator[Any]:
    """A Dask client; `dask` is "local", an address, or a client."""
    distributed = need("distributed", "dask")
    if not isinstance(dask, str):
        yield dask
    elif dask == "local":
        cores = available_cores()
        with (
            distributed.LocalCluster(
                n_workers=cores, threads_per_worker=1, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
    else:
        with distributed.Client(dask, timeout="30s") as client:
            yield client


def analyze_on_cluster(
    trace: Trace,
    dask: Any,
    progress: Callable[[int, int], None] | None = None,
    span_bytes: int = SPAN_BYTES,
) -> Job:
    """The job of `trace`; `dask` as for `connect`."""
    given = units_of(trace)
    units = [[replace(p, file=p.file.resolve()) for p in unit] for unit in given]
    as_given = {
        r.file: p.file
        for unit, local in zip(units, given, strict=True)
        for r, p in zip(unit, local, strict=True)
    }
    files, alone = _trace_files_of_torch(trace)
    with connect(dask) as client:
        read = [_submit(client, unit, trace, span_bytes, files) for unit in units]
        read += [client.submit(_read_torch, process, pure=False) for process in alone]
        small = [client.submit(_small, r, pure=False) for r in read]
        if progress is not None:
            sizes = [sum(p.file.stat().st_size for p in unit) for unit in units]
            _watch(small, [*sizes, *(p.info.file.stat().st_size for p in alone)], progress)
        gathered = client.gather(small)
        where = {}
        partials: list[Partial] = []
        for future, found in zip(read, gathered, strict=True):
            for index, partial in enumerate(found):
                where[id(partial)] = (future, index)
                # Workers need absolute paths; the report names files as the user did.
                partial.process.file = as_given.get(partial.process.file, partial.process.file)
                partials.append(partial)
        job = build_job(partials)
        members, answers = [*_members(job)], []
        for rank, _, member in members:
            future, index = where[id(member)]
            answers.append(client.submit(_explain, future, index, rank.question(member), pure=False))
        for (rank, i, _), explanation in zip(members, client.gather(answers), strict=True):
            rank.explanations[i] = explanation
    return job


def _submit(client: Any, unit: list[ProcessInfo], trace: Trace, span_bytes: int, files: _Files) -> Any:
    """The future for one process's results."""
    chunk_text = trace.chunk_text
    spans = [(part, span) for part in unit for span in member_spans(part.file, span_bytes)]
    if len(spans) == len(unit):
        return client.submit(_read, unit, trace.filter, chunk_text, files, pure=False)
    digests = [
        client.submit(_digest, part, trace.filter, chunk_text, span, pure=False) for part, span in spans
    ]
    return client.submit(join_spans, unit[0], digests, trace.filter, files, pure=False)


def _read(parts: list[ProcessInfo], where: Filter, chunk_text: int, files: _Files) -> _Results:
    for part in parts:
        _check_visible(part)
    return analyze_files(parts, where, 1, chunk_text, files=files)


def _read_torch(process: TorchProcess) -> _Results:
    return [analyze_torch(process)]


def _digest(part: ProcessInfo, where: Filter, chunk_text: int, span: tuple[int, int]) -> SpanDigest:
    _check_visible(part)
    return digest_span(part, where, chunk_text, span)


def _check_visible(part: ProcessInfo) -> None:
    if not part.file.exists():
        raise FileNotFoundError(
            f"{part.file} is not visible to this worker; traces must be on a shared file system"
        )


def _small(results: _Results) -> list[Partial]:
    """What is sent: the hash tables are no longer needed."""
    return [
        replace(p, process=replace(p.process, paths={}, strings={}, hosts={}, others={})) for p, _ in results
    ]


def _watch(futures: list[Any], sizes: list[int], progress: Callable[[int, int], None]) -> None:
    """Report the cluster's progress until it is done."""
    size_of = {f.key: n for f, n in zip(futures, sizes, strict=True)}
    done = 0
    for future in need("distributed", "dask").as_completed(futures):
        done += size_of[future.key]
        progress(done, sum(sizes))


def _explain(results: _Results, index: int, question: Question) -> Explanation:
    return explain(results[index][1], question)
