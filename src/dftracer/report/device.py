"""Device time in the reports: terminal, Markdown, and what the page draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dftracer._text import (
    Column,
    bar,
    bar_room,
    bytes_text,
    count_text,
    counted,
    plural,
    print_table,
    seconds_text,
)
from dftracer.analyze import Analysis
from dftracer.analyze.device.busy_time import IDLE_CLASSES, DeviceAccount
from dftracer.analyze.device.summary import device_account, device_document
from dftracer.analyze.say.wording import host_whereabouts

if TYPE_CHECKING:
    from rich.console import Console


# A class that corresponds to a stage of the ledger has the stage's colour, and no other class has it.
DEVICE_COLOURS = {
    "busy": "#4d7c0f",
    "paced": "#a3b97c",
    "copies": "#cdd8b5",
    "input": "#e5484d",
    "host": "#155e75",
    "dependency": "#67a9bd",
    "launch": "#b6d7e1",
    "comm": "#e93d82",
    "checkpoint": "#ad7f58",
    "unknown": "#c9cbd3",
}
_WORDS = {
    "busy": "busy",
    "paced": "busy or idle: the host sets the pace",
    "copies": "busy or idle: the host is writing or reading a checkpoint",
    "input": "idle: waiting for data",
    "host": "idle: the host has launched nothing",
    "dependency": "idle: queued, waiting for another stream or event",
    "launch": "idle: launching",
    "comm": "idle: the host is communicating",
    "checkpoint": "idle: the host is writing or reading a checkpoint",
    "unknown": "idle: reason unknown",
}
_KERNELS = 8
_PART_COLUMNS = (
    Column("time", lead=True),
    Column("seconds", right=True),
    Column("share", right=True),
    Column("", drop=1),
)
_KERNEL_COLUMNS = (
    Column("kernel", lead=True),
    Column("kind", drop=2),
    Column("count", right=True),
    Column("total", right=True),
    Column("share", right=True),
    Column("phase", drop=3),
    Column("operator", drop=1),
)


def _parts(a: DeviceAccount) -> dict[str, float]:
    """The account in seconds, most informative first."""
    unsure = {"paced": a.host_paced_s, "copies": a.in_checkpoints_s}
    parts = {"busy": a.busy_s - sum(unsure.values())} | unsure | {c: a.idle[c] for c in IDLE_CLASSES}
    return {k: v for k, v in parts.items() if v > 0}


# What of the account a verdict means.
_BLAMED = {
    "device": ("busy",),
    "host": ("host", "launch", "paced"),
    "checkpoint": ("checkpoint", "copies"),
    "unseen": ("unknown",),
}


def _blamed(a: Analysis, parts: dict[str, float]) -> str | None:
    """The row to mark."""
    if a.bound is None:
        return None
    known = [p for p in _BLAMED.get(a.bound.part.id, (a.bound.part.id,)) if p in parts]
    return max(known, key=lambda p: parts[p], default=None)


def _about(a: DeviceAccount) -> str:
    if a.source == "profiler":
        text = f"{plural(len(a.windows), 'profiler window')}, {seconds_text(a.observed_s)}"
        if a.launches:
            text += f"; {counted(a.launches, 'launch', 'launches')}"
        if a.launch_delay_us is not None:
            text += f", {seconds_text(a.launch_delay_us / 1e6)} from call to start (median)"
        if a.graph_replays:
            text += f"; {plural(a.graph_replays, 'graph replay')}"
        return text
    text = f"events at phase boundaries, {seconds_text(a.observed_s)}; busy time is an upper bound"
    return text if a.error_us is None else f"{text}; clock within {seconds_text(a.error_us / 1e6)}"


def _whereabouts(d: DeviceAccount) -> str:
    """What the host did meanwhile; empty if not known."""
    where = host_whereabouts(d, most=5)
    return f"While the device waits for the host, the host is in {where}" if where else ""


def _rank(a: Analysis) -> tuple[int, DeviceAccount] | None:
    """The rank on the critical path if its device was observed, otherwise the first one that was."""
    ranks = sorted(a.job.ranks, key=lambda r: r is not a.job.slowest)
    return next(((r.number, d) for r in ranks if (d := device_account(r)) is not None), None)


def print_device(con: Console, a: Analysis) -> None:
    """Where the device's time went, and the kernels that took it."""
    found = _rank(a)
    figures = model_line(a)
    if figures:
        con.print()
        con.print(figures, style="dim")
    for note in device_document(a.job)["notes"]:
        con.print()
        con.print(note, style="dim")
    if found is None:
        return
    number, d = found
    if d.source != "profiler":
        return  # what events say of the device is in the account
    whole = d.observed_s or 1.0
    parts = _parts(d)
    blamed = _blamed(a, parts)
    longest = bar_room(con, 22 + max((len(_WORDS[p]) for p in parts), default=0))
    rows: list[list[Any]] = [
        [
            _WORDS[part],
            f"{seconds:.3f}",
            f"{100 * seconds / whole:.1f} %",
            bar(longest * seconds / whole, DEVICE_COLOURS[part], part == blamed),
        ]
        for part, seconds in parts.items()
    ]
    print_table(con, f"The device of rank {number}", _PART_COLUMNS, rows)
    con.print(_about(d), style="dim")
    if where := _whereabouts(d):
        con.print(where, style="dim")
    if d.top:
        rows = [
            [
                short_name(row["name"]),
                row["kind"],
                count_text(row["count"]),
                seconds_text(row["seconds"]),
                f"{100 * row['share']:.1f} %",
                row["phase"] or "-",
                row["operator"] or "-",
            ]
            for row in d.top[:_KERNELS]
        ]
        print_table(con, "Kernels", _KERNEL_COLUMNS, rows)


def model_line(a: Analysis) -> str:
    """Tokens, FLOP/s and MFU in one line; empty if none of them is known."""
    m = a.model
    facts = []
    if m["tokens_per_s"] is not None:
        facts.append(f"{count_text(round(m['tokens_per_s']))} tokens/s")
    if m["flops_per_s"] is not None:
        facts.append(f"{m['flops_per_s'] / 1e12:.3g} TFLOP/s")
        share = (
            f"{100 * m['mfu']:.1f} % of the peak of {m['device']} (MFU)"
            if m["mfu"] is not None
            else m["note"]
        )
        facts.append(share.rstrip("."))
    if m["memory_peak_bytes"] is not None:
        facts.append(f"at most {bytes_text(m['memory_peak_bytes'])} on the device")
    return "  ·  ".join(facts)


def short_name(name: str, most: int = 44) -> str:
    """A kernel's name without return type, parameters and namespaces."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    return name if len(name) <= most else name[: most - 1] + "…"


def device_lines(a: Analysis) -> list[str]:
    """The same as Markdown."""
    found = _rank(a)
    notes = [line for note in device_document(a.job)["notes"] for line in ("", note)]
    figures = model_line(a)
    if figures:
        notes = ["", figures, *notes]
    if found is None or found[1].source != "profiler":
        return notes
    number, d = found
    whole = d.observed_s or 1.0
    lines = ["", f"| device of rank {number} ({_about(d)}) | s | % |", "|---|---:|---:|"]
    parts = _parts(d)
    blamed = _blamed(a, parts)
    for part, s in parts.items():
        words = f"**{_WORDS[part]}**" if part == blamed else _WORDS[part]
        lines.append(f"| {words} | {s:.3f} | {100 * s / whole:.1f} |")
    if where := _whereabouts(d):
        lines += ["", where + "."]
    if d.top:
        lines += ["", "| kernel | kind | ms | % | phase | operator |", "|---|---|---:|---:|---|---|"]
        lines += [
            f"| `{short_name(r['name'])}` | {r['kind']} | {1e3 * r['seconds']:.3f} | {100 * r['share']:.1f}"
            f" | {r['phase'] or '-'} | {r['operator'] or '-'} |"
            for r in d.top[:_KERNELS]
        ]
    return lines + notes


def device_page(a: Analysis) -> dict[str, Any] | None:
    """What the page draws: a bar for each rank, idle over time, kernels."""
    found = _rank(a)
    if found is None or found[1].source != "profiler":
        return None
    number, d = found
    first = a.job.first_us
    accounts = {r.number: x for r in a.job.ranks if (x := device_account(r)) is not None}
    return {
        "rank": number,
        "about": ". ".join(part for part in (_about(d), _whereabouts(d)) if part),
        "colours": DEVICE_COLOURS,
        "words": _WORDS,
        "culprit": _blamed(a, _parts(d)),
        "bars": {str(n): {"whole": x.observed_s, "parts": _parts(x)} for n, x in accounts.items()},
        "over_time": [
            {
                "first_s": (w["first_us"] - first) / 1e6,
                "last_s": (w["last_us"] - first) / 1e6,
                "shares": w["shares"],
            }
            for w in d.over_time
        ],
        "kinds": {k: v for k, v in sorted(d.kernels.items(), key=lambda i: -i[1]) if v > 0},
        "phases": d.phases,
        "kernels": {
            "columns": [
                "kernel",
                "kind",
                "count",
                "total_s",
                "share",
                "mean_us",
                "phase",
                "module",
                "operator",
            ],
            "rows": [
                [
                    r["name"],
                    r["kind"],
                    r["count"],
                    r["seconds"],
                    f"{100 * r['share']:.1f} %",
                    r["mean_us"],
                    r["phase"] or "",
                    r["module"] or "",
                    r["operator"] or "",
                ]
                for r in d.top
            ],
        },
    }
