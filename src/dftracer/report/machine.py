"""The machine in reports: a few lines for a terminal, small plots for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dftracer._packages import need
from dftracer._text import bytes_text, plural
from dftracer.analyze import Analysis
from dftracer.analyze.machine import Counters, Host, Series, hosts_of, main_of, throttled

if TYPE_CHECKING:
    from rich.console import Console

_POINTS = 240  # of one plot
_HOSTS = 8
_GPUS = 8
Floats = npt.NDArray[np.float64]
_Line = tuple[str, Floats, Floats]  # label, times in us, values


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _process_words(m: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    if m["cpu_share"] is not None:
        waited = f", waited {_percent(m['waited_for_cpu_share'])} of the time for a CPU"
        rows.append(("main thread", f"on a CPU {_percent(m['cpu_share'])}{waited}"))
    peak = m["rss_peak_bytes"]
    memory = [] if peak is None else [f"at most {bytes_text(peak)} in a process"]
    if m["read_bytes"] is not None:
        memory.append(f"{bytes_text(m['read_bytes'])} read from storage")
        memory.append(f"{bytes_text(m['written_bytes'])} written")
    if memory:
        rows.append(("memory, storage", ", ".join(memory)))
    return rows


def _host_words(h: dict[str, Any]) -> str:
    facts = []
    if h.get("cpu_busy_share") is not None and h["cpus"]:
        runnable = h.get("runnable")
        ready = "" if runnable is None else f", {runnable:.0f} runnable"
        facts.append(f"{plural(h['cpus'], 'core')} {_percent(h['cpu_busy_share'])} busy{ready}")
    if h.get("memory_available_least_bytes") is not None:
        free = bytes_text(h["memory_available_least_bytes"])
        facts.append(f"memory: {free} of {bytes_text(h['memory_bytes'])} available")
    for what, keys in (("disk", ("read", "written")), ("network", ("received", "sent"))):
        rates = [h.get(f"{what}_{key}_bytes_per_s") for key in keys]
        if any(rates):
            amounts = [f"{key} {bytes_text(rate)}/s" for key, rate in zip(keys, rates, strict=True) if rate]
            facts.append(f"{what}: {', '.join(amounts)}")
    group = h.get("cgroup") or {}
    if group.get("cpu_limit"):
        facts.append(f"limit {group['cpu_limit']:g} CPUs, throttled {group['throttled_s']:.1f} s")
    if group.get("memory_limit_bytes"):
        facts.append(f"memory limit {bytes_text(group['memory_limit_bytes'])}")
    return "; ".join(facts)


def _gpu_words(g: dict[str, Any]) -> str:
    facts = [] if g["utilization"] is None else [f"{_percent(g['utilization'])} busy"]
    facts += [] if g["power_w"] is None else [f"{g['power_w']:.0f} W"]
    facts += [] if g["sm_mhz"] is None else [f"{g['sm_mhz']:.0f} MHz"]
    facts += [] if g["temperature_c"] is None else [f"{g['temperature_c']} °C"]
    facts += [] if g["memory_used_bytes"] is None else [f"{bytes_text(g['memory_used_bytes'])} in use"]
    facts += [f"throttled {_percent(g['throttled_share'])} of the time"] if g["throttled_share"] else []
    return ", ".join(facts)


def machine_rows(m: dict[str, Any], live: bool = False) -> list[tuple[str, str]]:
    """`machine` of the document in words: what, and how much. `live`: nothing about whole lives."""
    rows = _process_words(m)
    rows = [row for row in rows if not live or row[0] == "main thread"]
    several = len(m["hosts"]) > 1
    rows += [(f"host {h['host']}", words) for h in m["hosts"][:_HOSTS] if (words := _host_words(h))]
    for g in m["gpu"][:_GPUS]:
        where = f"{g['host']} " if several else ""
        rows.append((f"{where}GPU {g['device']}", _gpu_words(g)))
    left = len(m["hosts"][_HOSTS:]), len(m["gpu"][_GPUS:])
    if any(left):
        rows.append(("not shown", f"{plural(left[0], 'host')}, {plural(left[1], 'GPU')}"))
    if m["missing"]:
        rows.append(("not available here", ", ".join(m["missing"])))
    return rows


def print_machine(con: Console, a: Analysis) -> None:
    """The section of the terminal report; nothing if nothing was sampled."""
    m = a.machine
    if not m["hosts"] and not m["gpu"] and not m["missing"]:
        return
    text = need("rich.text").Text
    con.print()
    con.print(text("Machine", style="bold"))
    for what, words in machine_rows(m):
        line = text(f" {what}  ", style="dim")
        line.append(words, style="not dim")
        con.print(line)


def _thinned(values: Floats, points: int, digits: int = 4) -> list[float]:
    """Means of equal numbers of samples, at most `points`."""
    if values.size > points:
        edges = np.linspace(0, values.size, points + 1).astype(int)[:-1]
        values = np.add.reduceat(values, edges) / np.diff([*edges.tolist(), values.size])
    return [float(f"{v:.{digits}g}") for v in values.tolist()]


class _Plots:
    """Gathers plots whose times are seconds of the run."""

    def __init__(self, base_us: int, points: int) -> None:
        self.base, self.points = base_us, points
        self.plots: list[dict[str, Any]] = []

    def add(self, title: str, unit: str, lines: list[_Line], most: float | None = None) -> None:
        drawn = [
            {
                "label": label,
                "t": _thinned((ts - self.base) / 1e6, self.points, 9),
                "v": _thinned(values, self.points),
            }
            for label, ts, values in lines
            if ts.size
        ]
        if drawn:
            self.plots.append({"title": title, "unit": unit, "most": most, "lines": drawn})


def _rate(series: Series | None, key: str, scale: float = 1.0) -> tuple[Floats, Floats]:
    """How fast a count grew, at the middle of each interval."""
    if series is None or not series.has(key) or series.ts.size < 2:
        return np.empty(0), np.empty(0)
    length = np.maximum(np.diff(series.ts), 1).astype(float)
    rate: Floats = np.maximum(np.diff(series.values[key]) / length * 1e6 * scale, 0.0)
    return (series.ts[:-1] + length / 2).astype(np.float64), rate


def _level(series: Series | None, key: str, scale: float = 1.0) -> tuple[Floats, Floats]:
    if series is None or not series.has(key):
        return np.empty(0), np.empty(0)
    values: Floats = series.values[key].astype(np.float64) * scale
    return series.ts.astype(np.float64), values


def _host_plots(plots: _Plots, host: Host, where: str) -> None:
    cpu, cpus = host.shared.get("host.cpu"), host.cpus or 1
    users, system = (_rate(cpu, k, 1e-6 / cpus) for k in ("user_us", "system_us"))
    if users[0].size:
        plots.add(f"CPUs{where}", "share", [("busy", users[0], users[1] + system[1])], 1.0)
    memory = host.shared.get("host.memory")
    levels = [("available", *_level(memory, "available")), ("page cache", *_level(memory, "page_cache"))]
    plots.add(f"Memory{where}", "bytes", levels)
    for name, title, keys in (
        ("host.disk", "Disks", (("read_bytes", "read"), ("written_bytes", "written"))),
        ("host.network", "Network", (("received_bytes", "received"), ("sent_bytes", "sent"))),
    ):
        series = host.shared.get(name)
        plots.add(f"{title}{where}", "bytes/s", [(label, *_rate(series, key)) for key, label in keys])
    pressure = host.shared.get("host.pressure")
    some = [(what, *_rate(pressure, f"{what}_some_us", 1e-6)) for what in ("cpu", "memory", "io")]
    plots.add(f"Pressure{where}", "share", some, 1.0)
    for number, gpu in [*host.gpus.items()][:_GPUS]:
        lines = [("busy", *_level(gpu, "utilization", 0.01))]
        if gpu.has("throttle"):
            lines.append(("throttled", gpu.ts.astype(float), throttled(gpu).astype(float)))
        plots.add(f"GPU {number}{where}", "share", lines, 1.0)
        plots.add(f"GPU {number} power{where}", "W", [("power", *_level(gpu, "power_mw", 1e-3))])


def machine_plots(
    base_us: int, main: Counters, hosts: list[Host], points: int = _POINTS
) -> list[dict[str, Any]]:
    """Every plot: of the process that trains, and of each host."""
    plots = _Plots(base_us, points)
    shares = (("on a CPU", "ran_us"), ("waiting for one", "waited_us"))
    lines = [(label, *_rate(main.get("cpu"), key, 1e-6)) for label, key in shares]
    plots.add("Main thread", "share", lines, 1.0)
    plots.add("Resident memory", "bytes", [("main process", *_level(main.get("memory"), "rss"))])
    for host in hosts[:_HOSTS]:
        _host_plots(plots, host, f" of {host.name}" if len(hosts) > 1 else "")
    return plots.plots


def machine_page(a: Analysis) -> dict[str, Any] | None:
    """What the HTML report draws about the machine; None if nothing was sampled."""
    m = a.machine
    main = main_of(a.job, a.job.slowest)
    hosts = [h for h in hosts_of(a.job).values() if h.shared]
    plots = machine_plots(a.job.first_us, {} if main is None else main.counters, hosts)
    if not plots and not m["missing"]:
        return None
    return {"rows": machine_rows(m), "plots": plots}
