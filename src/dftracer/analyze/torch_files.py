"""Profiler files next to a trace, or alone: their events as rows of the process that made them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dftracer._packages import need
from dftracer.analyze.device_parts import DeviceParts
from dftracer.analyze.device_rows import (
    HOST,
    KERNEL,
    LAUNCH,
    MEMCPY,
    MEMSET,
    DeviceRows,
    joined,
    rows_of_activities,
)
from dftracer.analyze.digest import Digest, Source
from dftracer.analyze.steps import MARKS
from dftracer.load.chunk import MISSING
from dftracer.load.process import ProcessInfo

__all__ = ["TorchProcess", "attach", "digest_of", "read_torch_files"]

_KINDS = {
    "op": HOST,
    "annotation": HOST,
    "runtime": LAUNCH,
    "kernel": KERNEL,
    "memcpy": MEMCPY,
    "memset": MEMSET,
}


@dataclass
class TorchProcess:
    """One process as recorded by the profiler."""

    info: ProcessInfo
    rows: DeviceRows


def read_torch_files(kineto: list[Path], linked: list[Path]) -> list[TorchProcess]:
    """The processes of all files; tables are read only for ranks without a Kineto file."""
    found: dict[tuple[str, int], TorchProcess] = {}
    for path in kineto:
        _add(found, _of_kineto(path))
    ranks = {p.info.rank for p in found.values()}
    for path in linked:
        if int(path.stem.rpartition("_")[2]) not in ranks:
            for process in _of_linked(path):
                _add(found, process)
    return [*found.values()]


def _add(found: dict[tuple[str, int], TorchProcess], more: TorchProcess | None) -> None:
    if more is None:
        return
    known = found.get(more.info.key)
    if known is None:
        found[more.info.key] = more
        return
    known.rows = joined([known.rows, more.rows])
    for key, value in more.info.counts.items():
        known.info.counts[key] = known.info.counts.get(key, 0) + value


def _info(path: Path, pid: int, rank: int | None, rows: DeviceRows) -> ProcessInfo:
    info = ProcessInfo(path, pid=pid, rank=rank)
    info.end = {}  # the file is complete: the profiler writes it in one go
    info.counts = {"events": len(rows), "file_bytes": path.stat().st_size}
    return info


def _of_kineto(path: Path) -> TorchProcess | None:
    from dftracer.link.kineto import read_kineto  # noqa: PLC0415 - needs the extra `link`

    table = read_kineto(path)
    if len(table) == 0:
        return None
    rows = rows_of_activities(table)
    rank = table.rank if table.rank is not None else _rank_in(path.name)
    info = _info(path, table.main_pid if table.main_pid is not None else -1, rank, rows)
    info.world_size = table.world_size
    info.host = table.host
    info.threads = {k: v for k, v in table.threads.items() if k > 4096}
    info.counts["bad_lines"] = len(table.repairs.notes)
    return TorchProcess(info, rows)


def _rank_in(name: str) -> int | None:
    words = name.split(".", maxsplit=1)[0].split("_")
    numbers = [w for w in words[2:3] if w.isdigit()]
    return int(numbers[0]) if numbers else None


def _of_linked(path: Path) -> list[TorchProcess]:
    polars = need("polars")
    columns = ["rank", "window", "kind", "name", "pid", "tid", "device", "stream", "start_ns", "dur_ns"]
    frame = polars.read_parquet(path, columns=[*columns, "correlation", "external_id"])
    frame = frame.with_columns(polars.col("kind", "name").cast(polars.String))
    frame = frame.filter(polars.col("kind").is_in([*_KINDS]) & polars.col("start_ns").is_not_null())
    out: list[TorchProcess] = []
    for (pid, _), part in frame.group_by("pid", "window", maintain_order=True):
        if pid is not None:
            out.append(_linked_process(path, int(pid), part.sort("start_ns")))
    return out


def _linked_process(path: Path, pid: int, part: Any) -> TorchProcess:
    names = part["name"].to_list()
    unique = {n: i for i, n in enumerate(dict.fromkeys(names))}
    column = {
        c: part[c].fill_null(-1).to_numpy().astype(np.int64)
        for c in ("tid", "device", "stream", "correlation")
    }
    start = part["start_ns"].to_numpy().astype(np.int64)
    end = start + part["dur_ns"].fill_null(0).to_numpy().astype(np.int64)
    name = np.array([unique[n] for n in names], np.int64)
    kind = np.array([_KINDS[k] for k in part["kind"].to_list()], np.int64)
    external = part["external_id"].fill_null(-1).to_numpy()
    of_op = {
        int(e): int(n) for e, n, k in zip(external, name, part["kind"].to_list(), strict=True) if k == "op"
    }
    op = np.array(
        [of_op.get(int(e), -1) if k >= LAUNCH else -1 for e, k in zip(external, kind, strict=True)], np.int64
    )
    rows = DeviceRows(
        [*unique],
        kind,
        name,
        op,
        start,
        end,
        column["tid"],
        column["device"],
        column["stream"],
        column["correlation"],
        [(int(start.min()), int(end.max()))],
    )
    return TorchProcess(_info(path, pid, int(part["rank"][0]), rows), rows)


def digest_of(process: TorchProcess) -> Digest:
    """The events in the form of a trace's, for analysing a process without a trace."""
    rows = process.rows
    on = rows.on_device
    tid = np.where(on, ((rows.device + 1) << 24) + np.maximum(rows.stream, 0), rows.tid)
    ts = rows.start // 1000
    dur = np.maximum(rows.end // 1000 - ts, 0)
    out = Digest(
        Source([("PP", name) for name in rows.names]),
        len(rows),
        rows.name.astype(np.int32),
        tid,
        ts,
        dur,
        None,
        devices=DeviceParts([rows]),
    )
    steps = [i for i, n in enumerate(rows.names) if n.startswith("ProfilerStep#")]
    at = np.flatnonzero(np.isin(rows.name, steps) & (rows.kind == HOST))
    if at.size:
        digits = [rows.names[n].rpartition("#")[2] for n in rows.name[at].tolist()]
        table = np.full((len(MARKS), at.size), MISSING)
        table[:4] = tid[at], ts[at], dur[at], [int(d) if d.isdigit() else MISSING for d in digits]
        out.marks["profiler"] = table
    return out


def attach(
    processes: list[TorchProcess], infos: list[ProcessInfo]
) -> tuple[dict[int, DeviceRows], list[TorchProcess]]:
    """Which rows belong to which traced process (by its pid), and the processes that left no trace."""
    by_pid = Counter(i.pid for i in infos)
    out: dict[int, DeviceRows] = {}
    alone: list[TorchProcess] = []
    for process in processes:
        pid = process.info.pid
        if by_pid[pid] != 1:
            same = [i.pid for i in infos if i.rank is not None and i.rank == process.info.rank]
            pid = same[0] if same else -1
        if pid < 0:
            alone.append(process)
        else:
            out[pid] = joined([out[pid], process.rows]) if pid in out else process.rows
    return out, alone
