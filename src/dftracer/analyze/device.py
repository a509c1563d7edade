"""Device time of a run, for the report: `device` in the document."""

from __future__ import annotations

from typing import Any

from dftracer.analyze.device_account import DeviceAccount
from dftracer.analyze.job import Job, Rank

__all__ = ["device_account", "device_document"]

_TOP = 30
_MAIN_FIGURES = ("observed_s", "busy_s", "idle_s", "busy_share", "idle", "host_paced_s", "in_checkpoints_s")
_NO_TRACE = (".json", ".json.gz", ".parquet")


def device_account(rank: Rank) -> DeviceAccount | None:
    """The best account of a rank's devices."""
    sides = rank.main.devices
    return None if sides is None else sides.best


def device_document(job: Job) -> dict[str, Any]:
    """Of all ranks. `source` is null if no device activity was recorded."""
    accounts = {r.number: a for r in job.ranks if (a := device_account(r)) is not None}
    sources = {a.source for a in accounts.values()}
    out: dict[str, Any] = {
        "source": "profiler" if "profiler" in sources else "events" if sources else None,
        "ranks": {str(n): account_json(a) for n, a in accounts.items()},
        "steps": [{"rank": n, **row} for n, a in accounts.items() for row in a.steps],
        "top_kernels": _top_kernels(accounts),
        "names": _names(job),
        "notes": _notes(job, accounts),
    }
    beside = {
        str(r.number): account_json(r.main.devices.events)
        for r in job.ranks
        if r.main.devices is not None
        and r.main.devices.profiler is not None
        and r.main.devices.events is not None
    }
    if beside:
        out["events"] = beside
    return out


def _notes(job: Job, accounts: dict[int, DeviceAccount]) -> list[str]:
    """What the figures cannot show, and how to find out more."""
    out: list[str] = []
    if accounts and all(r.main.process.file.name.endswith(_NO_TRACE) for r in job.ranks):
        out.append(
            "From the profiler's files alone: loader workers, files that were read, and steps outside of the"
            " windows are not visible. Run the program under `dftracer run` to see them."
        )
    blind = [n for n, a in accounts.items() if a.idle["unknown"] > 0.1 * a.observed_s]
    if blind:
        out.append(
            "Waiting for data cannot be told apart from Python, because no loader was found: use a torch"
            " DataLoader or annotate the loop with `ai.dataloader.fetch.iter`."
        )
    if not accounts and _names(job):
        out.append(
            "The program used a GPU, but nothing is known about what it did: leave DFTRACER_DEVICE_EVENTS on,"
            " or record a profiler window with `trace_handler`. The times of forward, backward and optimizer"
            " are launch times."
        )
    return out


def _names(job: Job) -> list[str]:
    found = {n for r in job.ranks if r.main.devices is not None for n in r.main.devices.names.values()}
    return sorted(found)


def account_json(a: DeviceAccount) -> dict[str, Any]:
    """One rank's figures."""
    exact = a.source == "profiler"
    out: dict[str, Any] = {
        "source": a.source,
        "observed_s": _r(a.observed_s),
        "busy_s": _r(a.busy_s),
        "idle_s": _r(a.idle_s),
        "busy_share": round(a.busy_share, 6),
        "idle": {k: _r(v) for k, v in a.idle.items()},
        "kernels": {k: _r(v) for k, v in a.kernels.items()},
        "exposed_comm_s": _r(a.exposed_comm_s) if exact else None,
        "copy_s": _r(a.copy_s) if exact else None,
        "overlap_share": None if a.overlap_share is None else round(a.overlap_share, 6),
        "host_phases": {k: _r(v) for k, v in a.host_phases.items()},
    }
    if exact:
        out["launches"] = a.launches
        out["launch_delay_us"] = None if a.launch_delay_us is None else round(a.launch_delay_us, 3)
        out["graph_replays"] = a.graph_replays
        out["host_functions"] = {k: _r(v) for k, v in a.host_functions.items()}
        out["host_io"] = {k: _r(v) for k, v in a.host_io.items()}
        out["streams"] = [{k: _r(v) if isinstance(v, float) else v for k, v in s.items()} for s in a.streams]
        out["windows"] = [{"first_us": w[0] // 1000, "last_us": w[1] // 1000} for w in a.windows]
    else:
        out["busy_is_upper_bound"] = True
        out["host_paced_s"] = _r(a.host_paced_s)
        out["in_checkpoints_s"] = _r(a.in_checkpoints_s)
        out["clock_error_us"] = a.error_us
        out["phases"] = a.phases
        out["memory_peak_bytes"] = a.memory_peak
        if a.steady is not None:
            out["steady"] = {k: v for k, v in account_json(a.steady).items() if k in _MAIN_FIGURES}
    return out


def _r(value: float) -> float:
    return round(value, 9)


def _top_kernels(accounts: dict[int, DeviceAccount]) -> list[dict[str, Any]]:
    """Over all ranks; phase, module and operator are those of the rank that spent most time in it."""
    rows: dict[str, dict[str, Any]] = {}
    for rank, a in accounts.items():
        for row in a.top:
            known = rows.get(row["name"])
            if known is None:
                rows[row["name"]] = {**row, "rank": rank, "most": row["seconds"]}
                continue
            if row["seconds"] > known["most"]:
                for key in ("phase", "module", "operator"):
                    known[key] = row[key]
                known["rank"], known["most"] = rank, row["seconds"]
            known["seconds"] = _r(known["seconds"] + row["seconds"])
            known["count"] += row["count"]
            known["mean_us"] = round(1e6 * known["seconds"] / known["count"], 3)
    whole = sum(r["seconds"] for r in rows.values()) or 1.0
    if len(accounts) > 1:
        for row in rows.values():
            row["share"] = round(row["seconds"] / whole, 6)
    ordered = sorted(rows.values(), key=lambda r: (-r["seconds"], r["name"]))[:_TOP]
    for row in ordered:
        del row["most"]
    return ordered
