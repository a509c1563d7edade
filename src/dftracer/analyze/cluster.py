"""The same analysis on a Dask cluster.

A task reads the files of one process where it runs; what grows with the trace stays on that worker. Only
the small
partial results come back, the job is put together here, and a second round of tasks asks each worker what its
processes did while their rank waited.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dftracer.analyze.explain import Explanation, explain
from dftracer.analyze.intervals import Intervals
from dftracer.analyze.job import Job, build_job
from dftracer.analyze.partial import Lanes, Partial, analyze_files
from dftracer.load._need import need
from dftracer.load.process import ProcessInfo
from dftracer.load.trace import Filter, Trace

__all__ = ["analyze_on_cluster"]

_Results = list[tuple[Partial, Lanes]]


def _read(parts: list[ProcessInfo], where: Filter, chunk_text: int) -> _Results:
    for part in parts:
        if not part.file.exists():
            raise FileNotFoundError(
                f"{part.file} cannot be seen from this worker; traces must lie on a shared file system"
            )
    return analyze_files(parts, where, 1, chunk_text)


def _small(results: _Results) -> list[Partial]:
    """What travels: the tables of hashes have done their work."""
    return [
        replace(p, process=replace(p.process, paths={}, strings={}, hosts={}, others={})) for p, _ in results
    ]


def _explain(
    results: _Results, index: int, waits: Intervals, compute: Intervals, skip: int | None
) -> Explanation:
    return explain(results[index][1], waits, compute, skip)


@contextlib.contextmanager
def _client(dask: Any) -> Iterator[Any]:
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


def analyze_on_cluster(trace: Trace, dask: Any) -> Job:
    """The job of `trace`; `dask` is "local", an address, or a client."""
    from dftracer.analyze.analysis import units_of  # noqa: PLC0415 - it imports this module on use

    units = [[replace(p, file=p.file.resolve()) for p in unit] for unit in units_of(trace)]
    with _client(dask) as client:
        read = [client.submit(_read, unit, trace.filter, 2 * trace.chunk_text, pure=False) for unit in units]
        gathered = client.gather([client.submit(_small, r, pure=False) for r in read])
        where = {}
        partials: list[Partial] = []
        for future, found in zip(read, gathered, strict=True):
            for index, partial in enumerate(found):
                where[id(partial)] = (future, index)
                partials.append(partial)
        job = build_job(partials)
        asked = []
        for rank in job.ranks:
            for i, member in enumerate(rank.members):
                skip = rank.main.steps.tid if member is rank.main else None
                future, index = where[id(member)]
                answer = client.submit(
                    _explain, future, index, rank.main.waits, rank.main.compute, skip, pure=False
                )
                asked.append((rank, i, answer))
        for (rank, i, _), told in zip(asked, client.gather([a for _, _, a in asked]), strict=True):
            rank.explanations[i] = told
    return job
