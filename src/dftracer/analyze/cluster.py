"""The same analysis on a Dask cluster.

A task reads the files of one process where it runs; data that grows with the trace stays on that worker. A
large file is read by several tasks, each reading some of its members, and joined on one of the workers. Only
the small partial results come back, the job is assembled here, and a second round of tasks asks each worker
what its processes did while their rank waited.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dftracer._packages import need
from dftracer.analyze.device.profiler_rows import DeviceRows, TorchProcess
from dftracer.analyze.job import Job, build_job
from dftracer.analyze.map.digest import SpanDigest, digest_span
from dftracer.analyze.map.partial import Partial, analyze_files, analyze_torch, join_spans
from dftracer.analyze.map.threads import Explanation, Lanes, Question, explain
from dftracer.format.members import member_spans
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, Trace

__all__ = ["analyze_on_cluster", "connect"]

_Results = list[tuple[Partial, Lanes]]
_Files = dict[int, DeviceRows]


# Files at least twice this size are read by several tasks: about 2 M events, or a second of work, each.
SPAN_BYTES = 32 << 20


def _must_see(part: ProcessInfo) -> None:
    if not part.file.exists():
        raise FileNotFoundError(
            f"{part.file} is not visible to this worker; traces must be on a shared file system"
        )


def _read(parts: list[ProcessInfo], where: Filter, chunk_text: int, files: _Files) -> _Results:
    for part in parts:
        _must_see(part)
    return analyze_files(parts, where, 1, chunk_text, files=files)


def _read_torch(process: TorchProcess) -> _Results:
    return [analyze_torch(process)]


def _digest(part: ProcessInfo, where: Filter, chunk_text: int, span: tuple[int, int]) -> SpanDigest:
    _must_see(part)
    return digest_span(part, where, chunk_text, span)


def _submit(client: Any, unit: list[ProcessInfo], trace: Trace, span_bytes: int, files: _Files) -> Any:
    """The future for one process's results."""
    chunk_text = 2 * trace.chunk_text
    spans = [(part, span) for part in unit for span in member_spans(part.file, span_bytes)]
    if len(spans) == len(unit):
        return client.submit(_read, unit, trace.filter, chunk_text, files, pure=False)
    digests = [
        client.submit(_digest, part, trace.filter, chunk_text, span, pure=False) for part, span in spans
    ]
    return client.submit(join_spans, unit[0], digests, trace.filter, files, pure=False)


def _small(results: _Results) -> list[Partial]:
    """What is sent: the hash tables are no longer needed."""
    return [
        replace(p, process=replace(p.process, paths={}, strings={}, hosts={}, others={})) for p, _ in results
    ]


def _explain(results: _Results, index: int, asked: Question) -> Explanation:
    return explain(results[index][1], asked)


def _watch(futures: list[Any], sizes: list[int], progress: Callable[[int, int], None]) -> None:
    """Report the cluster's progress until it is done."""
    size_of = {f.key: n for f, n in zip(futures, sizes, strict=True)}
    done = 0
    for future in need("distributed", "dask").as_completed(futures):
        done += size_of[future.key]
        progress(done, sum(sizes))


@contextlib.contextmanager
def connect(dask: Any) -> Iterator[Any]:
    distributed = need("distributed", "dask")
    if not isinstance(dask, str):
        yield dask
    elif dask == "local":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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
    """The job of `trace`; `dask` is "local", an address, or a client."""
    from dftracer.analyze.analysis import trace_files_of_torch, units_of  # noqa: PLC0415 - would be circular

    given = units_of(trace)
    units = [[replace(p, file=p.file.resolve()) for p in unit] for unit in given]
    as_given = {
        r.file: p.file
        for unit, local in zip(units, given, strict=True)
        for r, p in zip(unit, local, strict=True)
    }
    files, alone = trace_files_of_torch(trace)
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
        asked = []
        for rank in [r for each in (job, *job.others) for r in each.ranks]:
            for i, member in enumerate(rank.members):
                future, index = where[id(member)]
                answer = client.submit(_explain, future, index, rank.question(member), pure=False)
                asked.append((rank, i, answer))
        for (rank, i, _), told in zip(asked, client.gather([a for _, _, a in asked]), strict=True):
            rank.explanations[i] = told
    return job
