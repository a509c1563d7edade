"""What the counters say about the machine of a run: processes, hosts, control groups and GPUs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dftracer.analyze.intervals import Floats
from dftracer.load.chunk import Chunk, Ints

if TYPE_CHECKING:
    from dftracer.analyze.job import Job, Rank
    from dftracer.analyze.map.partial import Partial

CounterRow = tuple[str, int, dict[str, int]]  # name, time in us, values

# NVML's reasons for lower clocks: slowed down by the hardware, the temperature or the power brake; and, if
# the clocks are low because of it, the power limit. An idle GPU, or one told to be slower, is not throttled.
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80
_POWER_CAP = 0x4
_CAPPED = 0.8  # of the highest clock
_REASONS = (
    (0x40, "temperature"),
    (0x20, "temperature"),
    (0x80, "power brake"),
    (0x8, "hardware slowdown"),
    (0x4, "power limit"),
)
_GPU = re.compile(r"gpu\.(\d+)$")
_MISSING_WORDS = {
    "proc": "/proc",
    "schedstat": "waiting for a CPU (/proc/self/schedstat)",
    "io": "bytes read and written (/proc/self/io)",
    "pressure": "pressure (/proc/pressure)",
    "cgroup": "limits of the control group",
}


def read_counters(chunk: Chunk, rows: npt.NDArray[np.intp], names: list[str]) -> list[CounterRow]:
    """The samples in some rows of a chunk; `names` are those of the rows."""
    ts = chunk.ints("ts")
    out: list[CounterRow] = []
    for row, name in zip(rows.tolist(), names, strict=True):
        try:
            values = json.loads(chunk.args_text(row) or "{}")
        except ValueError:
            continue
        numbers = {k: int(v) for k, v in values.items() if isinstance(v, int | float)}
        if numbers:
            out.append((name, int(ts[row]), numbers))
    return out


@dataclass
class Series:
    """The samples of one counter, in order. A value that a sample lacks is that of the one before."""

    ts: Ints
    values: dict[str, Ints]

    def has(self, *keys: str) -> bool:
        return self.ts.size > 0 and all(key in self.values for key in keys)

    def inside(self, start: float, end: float) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = (self.ts >= start) & (self.ts <= end)
        return result

    def at(self, key: str, when: Any) -> Any:
        """A growing count at some moments, between samples in proportion."""
        return np.interp(when, self.ts, self.values[key].astype(float))

    def grown(self, key: str, start: float, end: float) -> float:
        """By how much a count grew."""
        return float(self.at(key, end) - self.at(key, start)) if self.has(key) else 0.0

    def last(self, key: str) -> int | None:
        return int(self.values[key][-1]) if self.has(key) else None

    def highest(self, key: str) -> int | None:
        return int(self.values[key].max()) if self.has(key) else None

    @property
    def span(self) -> tuple[float, float]:
        """When it was sampled first and last."""
        return float(self.ts[0]), float(self.ts[-1])

    def mean(self, key: str, start: float = -np.inf, end: float = np.inf) -> float | None:
        """The mean of a value over the samples of a period, or of all if it has none."""
        if not self.has(key):
            return None
        chosen = self.inside(start, end)
        return float(self.values[key][chosen].mean() if chosen.any() else self.values[key].mean())


Counters = dict[str, Series]


def join_counters(rows: list[CounterRow]) -> Counters:
    """All samples of a process, by counter."""
    by_name: dict[str, list[CounterRow]] = {}
    for row in rows:
        by_name.setdefault(row[0], []).append(row)
    return {name: _series(sorted(some, key=lambda r: r[1])) for name, some in by_name.items()}


def _series(rows: list[CounterRow]) -> Series:
    keys = dict.fromkeys(key for _, _, values in rows for key in values)
    columns: dict[str, Ints] = {}
    for key in keys:
        last = next(values[key] for _, _, values in rows if key in values)
        column = []
        for _, _, values in rows:
            last = values.get(key, last)
            column.append(last)
        columns[key] = np.array(column, np.int64)
    return Series(np.array([ts for _, ts, _ in rows], np.int64), columns)


def merged(parts: list[Series]) -> Series:
    """Samples that several processes took of the same thing, one after the other."""
    if len(parts) == 1:
        return parts[0]
    rows: list[CounterRow] = [
        ("", int(ts), {key: int(column[i]) for key, column in part.values.items()})
        for part in parts
        for i, ts in enumerate(part.ts.tolist())
    ]
    return _series(sorted(rows, key=lambda r: r[1]))


@dataclass
class Use:
    """What one process used, as a growing count over its life: samples, and what its `end` record says."""

    ts: Ints
    values: Floats

    def grown(self, start: float, end: float) -> float:
        if self.ts.size == 0:
            return 0.0
        return float(np.interp(end, self.ts, self.values) - np.interp(start, self.ts, self.values))

    @property
    def total(self) -> float:
        return float(self.values[-1]) if self.values.size else 0.0


def _use(partial: Partial, counter: str, keys: tuple[str, ...], end_key: str, from_zero: bool) -> Use:
    """`from_zero`: all of it belongs to the traced time, as in a worker forked from a traced process."""
    series = partial.counters.get(counter)
    ts: list[float] = []
    values: list[float] = []
    if series is not None and series.has(*keys):
        ts = series.ts.tolist()
        values = np.sum([series.values[k] for k in keys], axis=0).tolist()
    process = partial.process
    start = process.start_us if process.start_us is not None else partial.first_us
    if start is not None and (not ts or start < ts[0]) and (from_zero or not ts):
        ts.insert(0, start)
        values.insert(0, 0.0)
    at_end = (process.end or {}).get(end_key)
    if isinstance(at_end, int) and process.end_us is not None and (not ts or process.end_us > ts[-1]):
        ts.append(process.end_us)
        values.append(float(at_end))
    return Use(np.array(ts, np.int64), np.array(values, np.float64))


def cpu_use(partial: Partial) -> Use:
    """CPU time of all threads of a process, us."""
    return _use(partial, "cpu", ("user_us", "system_us"), "cpu_us", False)


def read_use(partial: Partial, from_zero: bool = False) -> Use:
    """Bytes that a process read from storage: what the page cache had is not among them."""
    return _use(partial, "io", ("read_bytes",), "read_bytes", from_zero)


def written_use(partial: Partial) -> Use:
    """Bytes that a process wrote to storage."""
    return _use(partial, "io", ("write_bytes",), "write_bytes", False)


def throttled(gpu: Series) -> npt.NDArray[np.bool_]:
    """Which samples found the clocks lowered against the program's interest."""
    if not gpu.has("throttle"):
        return np.zeros(gpu.ts.size, dtype=bool)
    reasons = gpu.values["throttle"]
    slowed = (reasons & _SLOWED) != 0
    if gpu.has("sm_mhz", "sm_max_mhz"):
        low = gpu.values["sm_mhz"] < _CAPPED * gpu.values["sm_max_mhz"]
        slowed |= ((reasons & _POWER_CAP) != 0) & low
    result: npt.NDArray[np.bool_] = slowed
    return result


def throttle_words(gpu: Series, rows: npt.NDArray[np.bool_]) -> str:
    """Why, most frequent first."""
    reasons = gpu.values["throttle"][rows]
    counts: dict[str, int] = {}
    for bit, words in _REASONS:
        counts[words] = counts.get(words, 0) + int(((reasons & bit) != 0).sum())
    return " and ".join(w for w, n in sorted(counts.items(), key=lambda c: -c[1]) if n)


def is_shared(name: str) -> bool:
    """Whether a counter is about more than the process that sampled it."""
    return name.startswith(("host.", "gpu.")) or name == "cgroup"


@dataclass
class Host:
    """What the processes of one host share."""

    name: str
    shared: Counters = field(default_factory=dict)
    partials: list[Partial] = field(default_factory=list)

    @property
    def gpus(self) -> dict[int, Series]:
        found = {int(m.group(1)): s for name, s in self.shared.items() if (m := _GPU.match(name))}
        return dict(sorted(found.items()))

    @property
    def cpus(self) -> int | None:
        cpu = self.shared.get("host.cpu")
        return int(cpu.values["cpus"][-1]) if cpu is not None and cpu.has("cpus") else None

    def own_cpu_s(self, start: float, end: float) -> float:
        return sum(cpu_use(p).grown(start, end) for p in self.partials) / 1e6

    def busy_cpu_s(self, start: float, end: float) -> float | None:
        cpu = self.shared.get("host.cpu")
        if cpu is None or not cpu.has("user_us", "system_us") or cpu.ts.size < 2:
            return None
        return (cpu.grown("user_us", start, end) + cpu.grown("system_us", start, end)) / 1e6


def hosts_of(job: Job) -> dict[str, Host]:
    """Every host of a job with its counters."""
    hosts: dict[str, Host] = {}
    shared: dict[str, dict[str, list[Series]]] = {}
    for p in job.partials:
        host = hosts.setdefault(p.process.host, Host(p.process.host))
        host.partials.append(p)
        for name, series in p.counters.items():
            if is_shared(name):
                shared.setdefault(host.name, {}).setdefault(name, []).append(series)
    for host_name, by_name in shared.items():
        hosts[host_name].shared = {name: merged(parts) for name, parts in by_name.items()}
    return hosts


def waited_use(partial: Partial) -> Series | None:
    """How long the first thread of a process ran and waited for a CPU; None if the kernel does not say."""
    series = partial.counters.get("cpu")
    if series is None or not series.has("ran_us", "waited_us") or series.ts.size < 2:
        return None
    return series


def _shares(partial: Partial) -> tuple[float | None, float | None]:
    """Of the time of a process: how much its first thread ran, and how much it waited for a CPU."""
    series = waited_use(partial)
    if series is not None:
        length = max(1.0, float(series.ts[-1] - series.ts[0]))
        first, last = series.ts[0], series.ts[-1]
        return series.grown("ran_us", first, last) / length, series.grown("waited_us", first, last) / length
    end = partial.process.end or {}
    life, ran, waited = (end.get(k) for k in ("life_us", "main_ran_us", "main_waited_us"))
    if isinstance(life, int) and life > 0 and isinstance(ran, int) and isinstance(waited, int):
        return min(1.0, ran / life), min(1.0, waited / life)
    return None, None


def _rss_peak(partial: Partial) -> int | None:
    found = [v for v in [(partial.process.end or {}).get("rss_peak")] if isinstance(v, int)]
    memory = partial.counters.get("memory")
    if memory is not None and memory.has("rss"):
        found.append(int(memory.values["rss"].max()))
    return max(found, default=None)


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def missing_words(job: Job) -> list[str]:
    """What the processes could not read of their machine."""
    words: dict[str, None] = {}
    for p in job.partials:
        for source in str((p.process.end or {}).get("counters_missing", "")).split():
            words.setdefault(_MISSING_WORDS.get(source, source))
    return list(words)


def main_of(job: Job, rank: Rank | None) -> Partial | None:
    """The process that stands for the run: the one that trains, or the one that lived longest."""
    if rank is not None:
        return rank.main
    return max(job.partials, key=lambda p: (p.last_us or 0) - (p.first_us or 0), default=None)


def _gpu_rows(hosts: dict[str, Host]) -> list[dict[str, Any]]:
    rows = []
    for host in hosts.values():
        for number, gpu in host.gpus.items():
            use, power = gpu.mean("utilization"), gpu.mean("power_mw")
            held = float(throttled(gpu).mean()) if gpu.has("throttle") else None
            rows.append(
                {
                    "host": host.name,
                    "device": number,
                    "utilization": None if use is None else _rounded(use / 100),
                    "power_w": None if power is None else _rounded(power / 1e3, 1),
                    "throttled_share": _rounded(held),
                    "memory_used_bytes": gpu.highest("memory_used"),
                    "sm_mhz": _rounded(gpu.mean("sm_mhz"), 0),
                    "temperature_c": gpu.highest("temperature"),
                }
            )
    return rows


def _host_row(host: Host) -> dict[str, Any]:
    row: dict[str, Any] = {"host": host.name, "cpus": host.cpus}
    cpu, memory = host.shared.get("host.cpu"), host.shared.get("host.memory")
    if cpu is not None and cpu.ts.size > 1:
        first, last = cpu.span
        busy, cpus = host.busy_cpu_s(first, last), host.cpus
        if busy is not None and cpus:
            row["cpu_busy_share"] = _rounded(min(1.0, busy / (cpus * (last - first) / 1e6)))
        row["runnable"] = _rounded(cpu.mean("runnable"), 1)
    if memory is not None:
        row["memory_bytes"] = memory.last("total")
        if memory.has("available"):
            row["memory_available_least_bytes"] = int(memory.values["available"].min())
        row["page_cache_bytes"] = memory.highest("page_cache")
    for name, keys in (
        ("host.disk", ("read_bytes", "written_bytes")),
        ("host.network", ("received_bytes", "sent_bytes")),
    ):
        series = host.shared.get(name)
        if series is not None and series.ts.size > 1:
            first, last = series.span
            for key in keys:
                rate = series.grown(key, first, last) / (last - first) * 1e6
                row[f"{name.removeprefix('host.')}_{key}_per_s"] = round(rate)
    pressure = host.shared.get("host.pressure")
    if pressure is not None and pressure.ts.size > 1:
        first, last = pressure.span
        row["pressure"] = {
            key.removesuffix("_us"): _rounded(pressure.grown(key, first, last) / (last - first))
            for key in pressure.values
        }
    group = host.shared.get("cgroup")
    if group is not None:
        limit = group.last("cpu_limit_milli")
        row["cgroup"] = {
            "cpu_limit": None if limit is None else limit / 1e3,
            "memory_limit_bytes": group.last("memory_limit"),
            "throttled_s": _rounded(group.grown("throttled_us", *group.span) / 1e6, 6),
            "memory_limit_hits": int(group.grown("limit_hits", *group.span)),
            "oom_kills": int(group.grown("oom_kills", *group.span)),
        }
    return row


def _waited_in_steps(partial: Partial) -> float | None:
    """The share of the time from its first steady step on in which its first thread waited for a CPU."""
    series, steps = waited_use(partial), partial.steps
    if series is None or not steps.steady.any():
        return None
    first = max(float(steps.start[int(np.argmax(steps.steady))]), series.span[0])
    last = min(float(steps.end[-1]), series.span[1])
    return series.grown("waited_us", first, last) / (last - first) if last > first else None


def machine_document(job: Job, rank: Rank | None) -> dict[str, Any]:
    """`machine` of the report's document: figures that are not known are None."""
    main = main_of(job, rank)
    ran, waited = (None, None) if main is None else _shares(main)
    hosts = hosts_of(job)
    peaks = [peak for p in job.partials if (peak := _rss_peak(p)) is not None]
    counted = [p for p in job.partials if "io" in p.counters or "read_bytes" in (p.process.end or {})]
    return {
        "cpu_share": _rounded(ran),
        "waited_for_cpu_share": _rounded(waited),
        "waited_for_cpu_in_steps_share": None if main is None else _rounded(_waited_in_steps(main)),
        "rss_peak_bytes": max(peaks, default=None),
        "read_bytes": int(sum(read_use(p, True).total for p in counted)) if counted else None,
        "written_bytes": int(sum(written_use(p).total for p in counted)) if counted else None,
        "gpu": _gpu_rows(hosts),
        "hosts": [_host_row(h) for h in hosts.values() if h.shared],
        "missing": missing_words(job),
    }
