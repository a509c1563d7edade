"""Figures that a run has once: throughput, device time, I/O; and the findings of both runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dftracer._units import bytes_text, count_text, seconds_text
from dftracer.compare.side import Side

__all__ = ["Figure", "device_figures", "findings_change", "io_figures", "throughput_figures"]


@dataclass(frozen=True)
class Figure:
    """One figure of both runs; None if a run does not have it."""

    id: str
    words: str
    values: tuple[float | None, float | None]
    text: Callable[[float], str]

    @property
    def a(self) -> float | None:
        return self.values[0]

    @property
    def b(self) -> float | None:
        return self.values[1]

    @property
    def change(self) -> float | None:
        return self.b / self.a - 1 if self.a and self.b is not None else None

    def to_json(self) -> dict[str, Any]:
        return {"a": self.a, "b": self.b, "change": self.change}


def _rate(unit: str) -> Callable[[float], str]:
    return lambda v: f"{v:.3g} {unit}/s" if v < 1000 else f"{count_text(round(v))} {unit}/s"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _count(value: float) -> str:
    return count_text(round(value)) if value >= 100 or value == round(value) else f"{value:.3g}"


def _kept(figures: list[Figure]) -> list[Figure]:
    return [f for f in figures if f.a is not None or f.b is not None]


def throughput_figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Figure]:
    """Over the steady steps; without an interval, because a run has each only once."""

    def both(key: str) -> tuple[Any, Any]:
        return a.get(key), b.get(key)

    def model(key: str) -> tuple[Any, Any]:
        first, second = ((t.get("model") or {}).get(key) for t in (a, b))
        return first, second

    return _kept(
        [
            Figure("steps_per_s", "steps", model("steps_per_s"), _rate("steps")),
            Figure("samples_per_s", "samples", both("samples_per_s"), _rate("samples")),
            Figure("tokens_per_s", "tokens", model("tokens_per_s"), _rate("tokens")),
            Figure("mfu", "share of the device's peak (MFU)", model("mfu"), _share),
            Figure("au", "accelerator utilisation", both("au"), _percent),
            Figure("run_s", "whole run", both("run_s"), seconds_text),
        ]
    )


def _device(told: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the time in which devices were observed, over all ranks; for the steady steps if known."""
    ranks = [r.get("steady", r) for r in ((told.get("device") or {}).get("ranks") or {}).values()]
    observed = sum(r["observed_s"] for r in ranks)
    if not observed:
        return {}
    out = {"busy_share": sum(r["busy_s"] for r in ranks) / observed}
    for kind in sorted({k for r in ranks for k in r["idle"]}):
        out[f"idle.{kind}"] = sum(r["idle"].get(kind, 0.0) for r in ranks) / observed
    exposed = [r.get("exposed_comm_s") for r in ranks]
    if all(e is not None for e in exposed):
        out["exposed_comm"] = sum(exposed) / observed
    return out


_DEVICE_WORDS = {
    "busy_share": "device busy",
    "idle.input": "idle: waiting for data",
    "idle.host": "idle: the host has launched nothing",
    "idle.dependency": "idle: waiting for another stream or event",
    "idle.launch": "idle: launching",
    "idle.comm": "idle: the host is communicating",
    "idle.checkpoint": "idle: the host is writing or reading a checkpoint",
    "idle.unknown": "idle: reason unknown",
    "exposed_comm": "communication that overlaps no computation",
}


def device_figures(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Figure]:
    first, second = _device(a), _device(b)
    out = [
        Figure(key, _DEVICE_WORDS.get(key, key), (first.get(key), second.get(key)), _share)
        for key in dict.fromkeys([*first, *second])
        if first.get(key) or second.get(key)
    ]
    peak = tuple((t.get("model") or {}).get("memory_peak_bytes") for t in (a, b))
    return out + _kept(
        [Figure("memory_peak_bytes", "peak memory on the device", (peak[0], peak[1]), bytes_text)]
    )


_IO = (
    ("read_bytes", "read", bytes_text),
    ("write_bytes", "written", bytes_text),
    ("reads", "reads", _count),
    ("small_reads", "reads below 64 KiB", _count),
    ("writes", "writes", _count),
    ("opens", "opens", _count),
    ("time_s", "time in I/O calls", seconds_text),
)


def io_figures(a: Side, b: Side) -> list[Figure]:
    """Per step, so that runs of different lengths can be compared; rates, and the number of files."""
    sums = [side.told.get("io") or {} for side in (a, b)]
    steps = [max(1, side.all_steps) for side in (a, b)]

    def per_step(key: str) -> tuple[float | None, float | None]:
        a, b = (s[key] / n if key in s else None for s, n in zip(sums, steps, strict=True))
        return a, b

    def rate(what: str) -> tuple[float | None, float | None]:
        a, b = (s[f"{what}_bytes"] / s[f"{what}_s"] if s.get(f"{what}_s") else None for s in sums)
        return a, b

    out = [Figure(f"{key}_per_step", f"{words} per step", per_step(key), text) for key, words, text in _IO]
    for what in ("read", "write"):
        out.append(Figure(f"{what}_bytes_per_s", f"{what} rate", rate(what), lambda v: f"{bytes_text(v)}/s"))
    out.append(Figure("files", "files", (sums[0].get("files"), sums[1].get("files")), _count))
    return [f for f in _kept(out) if f.a or f.b]


def findings_change(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Findings that are new, those that are gone, and those in both runs with their costs."""
    first, second = ({f["id"]: f for f in reversed(t["findings"])} for t in (a, b))

    def short(f: dict[str, Any]) -> dict[str, Any]:
        return {k: f.get(k) for k in ("id", "severity", "title", "seconds", "percent")}

    return {
        "new": [short(second[i]) for i in reversed(second) if i not in first],
        "gone": [short(first[i]) for i in reversed(first) if i not in second],
        "both": [
            {"id": i, "title": f["title"], "a_percent": first[i]["percent"], "b_percent": f["percent"]}
            for i, f in reversed(second.items())
            if i in first
        ],
    }
