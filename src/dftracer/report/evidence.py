"""The numbers behind a finding, with labels and units."""

from __future__ import annotations

from typing import Any

import numpy as np

from dftracer._units import bytes_text, count_text, seconds_text
from dftracer.analyze.wording import stage_words

__all__ = ["evidence_line", "evidence_rows"]

_LABELS = {
    "stages_s": "waiting, by what the loader did",
    "files_while_waiting_s": "files read meanwhile",
    "share_of_step_time": "share of the step time",
    "max_speedup": "maximum speed-up",
    "read_s": "reading",
    "loading_in_main_thread_s": "loading in the main thread",
    "exposed_by_rank_s": "exposed, by rank",
    "mean_work_s": "own work per step, by rank",
    "times_slower_per_byte": "slower per byte",
    "first_step_index": "first such step",
    "idle": "device idle",
    "top": "files",
    "p50_s": "median item",
    "p99_s": "99th percentile",
    "max_s": "longest",
    "own_s": "this rank, per step",
    "median_rank_s": "median rank, per step",
    "median_s": "median step",
    "extra_s": "lost",
    "seconds": "time",
    "p": "probability that it is chance",
    "every": "interval in steps",
    "steps_slowest": "steps in which it came last",
}
_SECONDS = ("seconds", "idle")
_TIMES = ("max_speedup", "times_slower_per_byte")
_STAGES = ("stage", "stages_s", "idle")
_NAMES = ("rank", "worker", "pid", "tid", "first_step_index", "change_point_step_index")  # no amounts
_IN_TITLE = ("rank", "stage", "steps", "share_of_step_time", "kind", "path", "event")
_MOST = 8  # entries of a list


def _trimmed(text: str) -> str:
    """7.10 s becomes 7.1 s: a finding is not a measurement log."""
    number, space, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}{space}{unit}"


def _seconds(value: float) -> str:
    return _trimmed(seconds_text(value)) if value < 120 else seconds_text(value)


def _number(key: str, value: float) -> str:
    if key.endswith(("_s", "_us")) or key in _SECONDS:
        return _seconds(value / 1e6 if key.endswith("_us") else value)
    if "share" in key or key == "change":
        return f"{_trimmed(f'{100 * value:.1f}')} %"
    if "bytes" in key:
        return bytes_text(value)
    if key in _TIMES:
        return f"{value:.3g} times"
    if key in _NAMES or not isinstance(value, int):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return count_text(value)


def _named(key: str, name: str) -> str:
    """The name of an entry: a stage in plain words, a rank by its number, anything else as it is."""
    if key in _STAGES:
        return name.replace("_", " ")
    return f"rank {name}" if name.isdigit() else name


def _text(key: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(key, value)
    if isinstance(value, dict):
        parts = [f"{_named(key, str(k))} {_text(key, v)}" for k, v in value.items()]
        return _listed(parts, ", ")
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], dict):
            return _listed([_record(v) for v in value], "; ")
        return _listed([_text("pid" if "processes" in key else "", v) for v in value], ", ")
    return stage_words(str(value)) if key == "stage" else str(value)


def _record(row: dict[str, Any]) -> str:
    first, *rest = row.items()
    told = [f"{_label(k)} {_text(k, v)}" for k, v in rest if v is not None]
    return f"{_text(*first)} ({', '.join(told)})"


def _listed(parts: list[str], between: str) -> str:
    more = f"{between}{len(parts) - _MOST} more" if len(parts) > _MOST else ""
    return between.join(parts[:_MOST]) + more


def _label(key: str) -> str:
    plain = key.removesuffix("_s").removesuffix("_us").removesuffix("_bytes")
    return _LABELS.get(key, plain.replace("_", " "))


def evidence_rows(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """The label and text of every known fact."""
    return [(_label(k), text) for k, v in evidence.items() if v is not None and (text := _text(k, v))]


def evidence_line(evidence: dict[str, Any], most: int) -> str:
    """The first facts in one line, without those already in the title."""
    rows = evidence_rows({k: v for k, v in evidence.items() if k not in _IN_TITLE})
    return " · ".join(f"{label}: {text}" for label, text in rows[:most])
