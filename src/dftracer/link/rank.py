"""All work on one rank: read, join, connect; then, when all ranks' clocks are known, write."""

from __future__ import annotations

import re
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link.chakra import Facts, write_chakra
from dftracer.link.clock import Clock, Member
from dftracer.link.collectives import RECV, SEND, Collective, apply_records, find_collectives, read_records
from dftracer.link.columns import ANNOTATION, ActivityTable, Ints, empty_activity
from dftracer.link.discover import RankFiles, TorchFile
from dftracer.link.edges import find_edges
from dftracer.link.execution_trace import empty_execution_trace, read_execution_trace
from dftracer.link.graph import Graph, Join, build_graph, join
from dftracer.link.kineto import read_kineto
from dftracer.link.nsys import read_nsys
from dftracer.link.regions import label, read_spans
from dftracer.link.tables import TablePart, write_tables
from dftracer.link.timeline import write_fragment

_STEP = re.compile(r"ProfilerStep#(\d+)")


@dataclass
class Summary:
    """What the other ranks and the report need to know."""

    rank: int
    world_size: int | None
    host: str
    error_ns: int | None
    start_ns: int | None
    et_nodes: int = 0
    joined: int = 0
    matched: int = 0
    agreeing: int = 0
    edges: dict[str, int] = field(default_factory=dict)
    collectives: int = 0
    members: list[Member] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class RankLink:
    """A rank between the two halves of the work."""

    files: RankFiles
    parts: list[TablePart]
    summary: Summary

    def write(self, folder: Path, clock: Clock, members: list[Member], base_ns: int) -> float:
        """Write the rank's files and its part of the timeline; returns the seconds it took."""
        began = time.perf_counter()
        rank = self.files.rank
        known = {(m.window, m.index): m for m in members}
        who = f"rank {rank}" + (f" {self.summary.host}" if self.summary.host else "")
        for part in self.parts:
            part.members = [known.get((m.window, m.index), m) for m in part.members]
        failed: list[BaseException] = []

        def others() -> None:
            try:
                path = folder / f".timeline_{rank}.part"
                write_fragment(path, rank, self.parts, clock.offset_ns, base_ns, who)
                write_tables(folder, rank, self.parts, clock.offset_ns)
            except BaseException as e:
                failed.append(e)

        # Compression runs on another core if there is one.
        lane = threading.Thread(target=others, name="tables")
        lane.start()
        try:
            for part in self.parts:
                self._write_chakra(folder, part, clock)
        finally:
            lane.join()
        if failed:
            raise failed[0]
        return time.perf_counter() - began

    def _write_chakra(self, folder: Path, part: TablePart, clock: Clock) -> None:
        rank, window = self.files.rank, part.window
        path = folder / (f"chakra_{rank}_w{window}.et" if window else f"chakra_{rank}.et")
        write_chakra(
            path,
            part.graph,
            part.et,
            part.activity,
            part.edges,
            part.collectives,
            part.labels,
            Facts(rank, self.summary.world_size, window, part.et.schema, clock.offset_ns, clock.error_ns),
        )
        # Simulators take a prefix and open `<prefix>.<rank>.et`.
        same = folder / (f"chakra_w{window}.{rank}.et" if window else f"chakra.{rank}.et")
        try:
            same.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, same)


def prepare(files: RankFiles) -> RankLink:
    """Read and connect all windows of a rank."""
    began = time.perf_counter()
    summary = Summary(files.rank, files.world_size, files.host, files.clock_error_ns, None)
    records = read_records(files.comms, summary.warnings)
    parts = []
    for window, et_file, activity in _pair(files, summary.warnings):
        parts.append(_window(files, window, et_file, activity, records, summary))
    starts = [p.activity.span[0] for p in parts if len(p.activity)]
    starts += [int(p.spans.start.min()) for p in parts if len(p.spans)]
    summary.start_ns = min(starts) if starts else None
    summary.seconds = time.perf_counter() - began
    return RankLink(files, parts, summary)


def _pair(files: RankFiles, warnings: list[str]) -> list[tuple[int, Any, Any]]:
    """Which execution trace goes with which profiler trace, and which window they are.

    Names with a window number decide. Otherwise, where the numbers of files differ, the contents do.
    """
    loaded = {id(s): _read_activity(s) for s in files.activity}
    by_window = {s.window: s for s in files.activity if s.window is not None}
    if all(s.window is not None for s in [*files.et, *files.activity]) and len(by_window) == len(
        files.activity
    ):
        windows = sorted({s.window or 0 for s in [*files.et, *files.activity]})
        of_et = {s.window: s for s in files.et}
        return [(w, of_et.get(w), _loaded(by_window.get(w), loaded)) for w in windows]
    if len(files.et) == len(files.activity) or not files.et:
        traces: list[TorchFile | None] = [*files.et] or [None] * len(files.activity)
        pairs = zip(traces, files.activity, strict=True)
        return [(w, e, _loaded(a, loaded)) for w, (e, a) in enumerate(pairs)]
    free = list(files.activity)
    out: list[tuple[int, Any, Any]] = []
    for window, file in enumerate(files.et):
        et = read_execution_trace(file.path)
        best = max(free, key=lambda a: join(et, loaded[id(a)]).joined, default=None)
        if best is not None:
            free.remove(best)
        out.append((window, file, _loaded(best, loaded)))
    for left in free:
        warnings.append(f"{left.path.name}: its window has no execution trace; only its times are used")
        out.append((len(out), None, loaded[id(left)]))
    return out


def _loaded(file: TorchFile | None, loaded: dict[int, ActivityTable]) -> ActivityTable | None:
    return None if file is None else loaded[id(file)]


def _read_activity(file: TorchFile) -> ActivityTable:
    return read_nsys(file.path) if file.kind == "nsys" else read_kineto(file.path)


def _window(
    files: RankFiles,
    window: int,
    et_file: TorchFile | None,
    found: ActivityTable | None,
    records: list[dict[str, Any]],
    summary: Summary,
) -> TablePart:
    et = read_execution_trace(et_file.path) if et_file is not None else empty_execution_trace()
    activity = found if found is not None else empty_activity()
    for path, repairs in ((et.path, et.repairs), (activity.path, activity.repairs)):
        if path is not None:
            summary.warnings += [f"{path.name}: {text}" for text in repairs.sentences()]
    if et_file is None and window not in files.times_only:
        summary.warnings.append(
            f"rank {files.rank} window {window}: no execution trace, so no tensors and no join"
        )
    if found is None:
        summary.warnings.append(f"rank {files.rank} window {window}: no profiler trace, so no times")
    joined = join(et, activity)
    graph = build_graph(et, activity, joined)
    calls, issued = find_collectives(graph, et, activity)
    apply_records(calls, records)
    carriers = np.array([row for call in calls for row in call.carriers], dtype=np.int64)
    edges = find_edges(graph, et, activity, carriers, issued)
    if edges.against:
        counts = ", ".join(f"{n} {t}" for t, n in edges.against.items())
        summary.warnings.append(
            f"rank {files.rank} window {window}: edges left out because the clock contradicts them: {counts}"
        )
    spans = read_spans(files.traces, activity.span) if len(activity) else read_spans([], (0, 0))
    labels = label(
        spans, activity.main_pid, _label_threads(graph), _label_times(graph), _profiler_steps(graph)
    )
    members = _members(files.rank, window, calls)
    _add_up(summary, joined, edges.counts(), members, activity, files.rank, window)
    return TablePart(window, graph, et, activity, joined, edges, labels, spans, calls, members)


def _label_times(graph: Graph) -> Ints:
    """Device work belongs to the moment of its launch."""
    times: Ints = np.where(graph.launch >= 0, graph.start[np.maximum(graph.launch, 0)], graph.start)
    return times


def _label_threads(graph: Graph) -> Ints:
    threads: Ints = np.where(graph.launch >= 0, graph.tid[np.maximum(graph.launch, 0)], graph.tid)
    return threads


def _profiler_steps(graph: Graph) -> tuple[Ints, Ints, Ints]:
    numbers = [_STEP.fullmatch(n) for n in graph.names]
    step = np.array([int(m.group(1)) if m else -1 for m in numbers] or [-1], dtype=np.int64)
    rows = (
        np.flatnonzero((step[graph.name] >= 0) & graph.timed & (graph.kind == ANNOTATION))
        if len(graph)
        else np.zeros(0, dtype=np.int64)
    )
    rows = rows[np.argsort(graph.start[rows], kind="stable")]
    return graph.start[rows], graph.end[rows], step[graph.name[rows]]


def _members(rank: int, window: int, calls: list[Collective]) -> list[Member]:
    counts: dict[str, int] = {}
    out = []
    for index, call in enumerate(calls):
        group = call.group + (f" [{','.join(map(str, call.ranks))}]" if call.ranks else "")
        # Messages are between two ranks, so they have no position among the collectives of all ranks.
        numbered = f"{group} {call.type}" if call.type in (SEND, RECV) else group
        call.number = counts.get(numbered, 0)
        counts[numbered] = call.number + 1
        out.append(
            Member(
                rank=rank,
                window=window,
                index=index,
                type=call.type,
                group=group,
                number=call.number,
                seq=call.seq,
                start=call.start,
                end=call.end,
                timed=call.timed,
                bytes=call.bytes,
            )
        )
    return out


def _add_up(
    summary: Summary,
    joined: Join,
    edges: dict[str, int],
    members: list[Member],
    activity: ActivityTable,
    rank: int,
    window: int,
) -> None:
    summary.et_nodes += joined.et_nodes
    summary.joined += joined.joined
    summary.matched += joined.matched
    summary.agreeing += joined.agreeing
    summary.collectives += len(members)
    summary.members += members
    summary.host = summary.host or activity.host
    for name, n in edges.items():
        summary.edges[name] = summary.edges.get(name, 0) + n
    for reason, n in joined.reasons.items():
        summary.reasons[reason] = summary.reasons.get(reason, 0) + n
    if joined.refused and joined.et_nodes and len(activity):
        summary.warnings.append(f"rank {rank} window {window}: {joined.refused}")
