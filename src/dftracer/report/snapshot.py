"""The figures of one moment: the report's analysis over the last seconds of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dftracer.analyze import STAGES, Analysis, Rank, analyze
from dftracer.analyze.analysis import analyze_rows, rows_left
from dftracer.analyze.device.summary import device_account, samples_per_step
from dftracer.analyze.map.step_rows import process_of_rows
from dftracer.format.trace_names import NoTraces
from dftracer.live import LiveFile, Recent
from dftracer.load.process import ProcessInfo
from dftracer.load.rows import COLUMNS, RowFile, ranks_of
from dftracer.report.contents import shown_files
from dftracer.report.machine import machine_rows

_LAST_STEPS = 20
_FILES = 8


@dataclass
class RankRow:
    """One rank in the last seconds; shares are of the wall time of its last steps."""

    rank: int
    pid: int
    state: str
    silent_s: float  # since the last event that it wrote
    steps: int
    steps_per_s: float
    step_s: float | None  # the median
    last_step: int | None  # as the program numbers it, else counted
    loader_wait: float | None
    device_busy: float | None
    stages: dict[str, float] = field(default_factory=dict)


@dataclass
class Snapshot:
    """Everything that is shown."""

    time_us: int
    seconds: float  # that the figures cover
    run: str | None
    command: str
    processes: dict[str, int]  # how many in which state
    ranks: list[RankRow]
    steps_per_s: float
    samples_per_s: float | None
    read_bytes_per_s: float
    write_bytes_per_s: float
    io_calls_per_s: float | None  # None, here and below: only step rows are left
    files: list[dict[str, Any]] | None
    events: int | None
    dropped: int | None
    refusing: list[str]  # traces whose disk rejects writes at the moment
    verdict: str
    machine: list[tuple[str, str]] = field(default_factory=list)  # what it does, in words

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def take_snapshot(recent: Recent) -> Snapshot:
    """Look at the run now. Raises NoTraces if there is nothing to look at."""
    copies = recent.refresh()
    if not any(file.state == "running" for file in recent.files):
        rows, _ = rows_left(recent.paths)
        if rows or not recent.files:
            return _snapshot_of_rows(recent, rows)
    infos = recent.processes
    if all(
        f.pid is None and f.size and infos[f.path].pid < 0 and not recent.last_us(f) for f in recent.files
    ):
        raise NoTraces("no file there is a dftracer trace")
    newest = _newest_run(infos)
    live = {f.path: f for f in recent.files if (infos[f.path].run or {}).get("id") == newest}
    wanted = [c for c, path in _with_sources(recent, copies) if path in live]
    analysis = _analysis(recent, wanted)
    seconds = _seconds(recent, analysis)
    ranks = _ranks(recent, analysis, live, infos, seconds)
    files = None if analysis is None else analysis.file_table
    states: dict[str, int] = {}
    for file in live.values():
        states[file.state] = states.get(file.state, 0) + 1
    main = next((i for p, i in infos.items() if p in live and i.command), None)
    return Snapshot(
        time_us=recent.now_us,
        seconds=round(seconds, 3),
        run=newest,
        command="" if main is None else (main.run or {}).get("command") or main.command.replace(";", " "),
        processes=states,
        ranks=ranks,
        steps_per_s=round(sum(r.steps_per_s for r in ranks) / max(1, len(ranks)), 3),
        samples_per_s=_samples_per_s(analysis, ranks),
        read_bytes_per_s=0.0 if files is None else round(float(files["read_bytes"].sum()) / seconds, 1),
        write_bytes_per_s=0.0 if files is None else round(float(files["write_bytes"].sum()) / seconds, 1),
        io_calls_per_s=0.0 if files is None else round(float(files["ops"].sum()) / seconds, 1),
        files=[] if files is None else _hottest(files),
        events=0 if analysis is None else analysis.trace_facts["events"],
        dropped=sum(f.dropped or _dropped(infos[p]) for p, f in live.items()),
        refusing=sorted(str(p) for p, f in live.items() if f.refusing),
        verdict="" if analysis is None else analysis.verdict,
        machine=[] if analysis is None else machine_rows(analysis.machine, live=True),
    )


def _snapshot_of_rows(recent: Recent, everyone: list[RowFile]) -> Snapshot:
    """The last seconds of a run whose traces are gone: what its step rows tell, and nothing else."""
    if not everyone:
        raise NoTraces("there are no traces, and none is being written")
    processes = [process_of_rows(file) for file in everyone]
    now = max(p.end_us or 0 for p in processes)
    since = now - int(recent.seconds * 1e6)
    lately = [file for each in everyone if len((file := each.since(since)).steps)]
    analysis = analyze_rows(lately) if lately else None
    begun = min((int(file.column("start_us")[0]) for file in lately), default=since)
    seconds = max((now - begun) / 1e6, 0.001)
    states: dict[str, int] = {}
    rows: dict[int, RankRow] = {}
    ranks = {} if analysis is None else {rank.main.process.file: rank for rank in analysis.job.ranks}
    for process, number in zip(processes, ranks_of(everyone), strict=True):
        state = "unknown" if process.end is None else "finished"
        states[state] = states.get(state, 0) + 1
        rank, silent = ranks.get(process.file), round((now - (process.end_us or now)) / 1e6, 3)
        if rank is None:
            rows[number] = RankRow(number, process.pid, state, silent, 0, 0.0, None, None, None, None)
        else:
            rows[number] = _row(
                rank, state, silent, rank.main.steps.per_second or len(rank.main.steps) / seconds
            )
    moved = [
        sum(int(table[:, COLUMNS.index(c)].sum()) for f in lately for table in (f.steps, f.between)) / seconds
        for c in ("read_bytes", "written_bytes")
    ]
    return Snapshot(
        time_us=now,
        seconds=round(seconds, 3),
        run=everyone[0].run,
        command=processes[0].command,
        processes=states,
        ranks=[rows[n] for n in sorted(rows)],
        steps_per_s=round(sum(r.steps_per_s for r in rows.values()) / len(rows), 3),
        samples_per_s=_samples_per_s(analysis, list(rows.values())),
        read_bytes_per_s=round(moved[0], 1),
        write_bytes_per_s=round(moved[1], 1),
        io_calls_per_s=None,
        files=None,
        events=None,
        dropped=None,
        refusing=[],
        verdict="" if analysis is None else analysis.verdict,
    )


def _newest_run(infos: dict[Path, ProcessInfo]) -> str | None:
    newest = max(infos.values(), key=lambda i: (i.run or {}).get("start") or i.start_us or 0)
    return (newest.run or {}).get("id")


def _with_sources(recent: Recent, copies: list[Path]) -> list[tuple[Path, Path]]:
    sources = {recent.copy_of(f.path).name: f.path for f in recent.files}
    return [(c, sources[c.name]) for c in copies]


def _analysis(recent: Recent, copies: list[Path]) -> Analysis | None:
    if not copies:
        return None
    try:
        return analyze(recent.trace(copies), run="all")
    except NoTraces:
        return None


def _samples_per_s(analysis: Analysis | None, rows: list[RankRow]) -> float | None:
    """Over the same period as the steps."""
    steps = {row.rank: row.steps_per_s for row in rows}
    rates = []
    for rank in [] if analysis is None else analysis.job.ranks:
        samples = samples_per_step(rank)
        if samples is None:
            return None
        rates.append(samples * steps[rank.number])
    return round(sum(rates), 3) if rates else None


def _seconds(recent: Recent, analysis: Analysis | None) -> float:
    """The period that rates refer to: the window, or less if the training is younger."""
    first = recent.start_us
    if analysis is not None:
        begun = [int(r.main.steps.start[0]) for r in analysis.job.ranks if len(r.main.steps)]
        first = max(first, min(begun, default=analysis.job.first_us))
    return max((recent.now_us - first) / 1e6, 0.001)


def _dropped(info: ProcessInfo) -> int:
    return int((info.end or {}).get("dropped", 0) or 0)


def _ranks(
    recent: Recent,
    analysis: Analysis | None,
    live: dict[Path, LiveFile],
    infos: dict[Path, ProcessInfo],
    seconds: float,
) -> list[RankRow]:
    by_pid = {infos[path].pid: file for path, file in live.items()}
    seen: dict[int, RankRow] = {}
    for rank in [] if analysis is None else analysis.job.ranks:
        file = by_pid.get(rank.main.process.pid)
        state = "finished" if file is None else file.state
        seen[rank.number] = _row(rank, state, _silent(recent, file), _rate(rank, file, seconds))
    for path, file in live.items():
        # A rank that has been silent for longer than the window is still listed.
        info = infos[path]
        number = info.facts.get("rank")
        if number is not None and info.rank is not None and info.rank not in seen:
            seen[info.rank] = RankRow(
                info.rank, info.pid, file.state, _silent(recent, file), 0, 0.0, None, None, None, None
            )
    return [seen[n] for n in sorted(seen)]


def _silent(recent: Recent, file: LiveFile | None) -> float:
    return 0.0 if file is None else round(max(0, recent.now_us - recent.last_us(file)) / 1e6, 3)


def _rate(rank: Rank, file: LiveFile | None, seconds: float) -> float:
    """Steps per second: of the steady steps, as everywhere; while it runs, also of the time without steps."""
    steps = rank.main.steps
    rate = steps.per_second
    if rate is None or (file is not None and file.state == "running"):
        rate = len(steps) / seconds
    return rate


def _row(rank: Rank, state: str, silent_s: float, steps_per_s: float) -> RankRow:
    steps = rank.main.steps
    n = len(steps)
    last = slice(max(0, n - _LAST_STEPS), n)
    wall = float(rank.wall_us[last].sum())
    shares = {}
    for stage in STAGES if wall > 0 else ():
        share = float(rank.stage_us(stage)[last].sum()) / wall
        if share > 0:
            shares[stage] = round(share, 4)
    device = device_account(rank)
    busy = rank.main.device_busy
    if device and device.observed_s:
        busy = round(device.busy_s / device.observed_s, 4)
    label = int(steps.step[-1]) if n and int(steps.step[-1]) >= 0 else None
    return RankRow(
        rank=rank.number,
        pid=rank.main.process.pid,
        state=state,
        silent_s=silent_s,
        steps=n,
        steps_per_s=round(steps_per_s, 3),
        step_s=round(steps.usual_us / 1e6, 6) if n else None,
        last_step=label,
        loader_wait=shares.get("fetch_wait", 0.0) if n else None,
        device_busy=busy,
        stages=shares,
    )


def _hottest(files: Any) -> list[dict[str, Any]]:
    columns = ("path", "ops", "read_bytes", "write_bytes", "time_s")
    return [{c: row[c] for c in columns} for row in shown_files(files).head(_FILES).iter_rows(named=True)]
