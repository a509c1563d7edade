"""The devices of a run in figures: shares for the verdict, `device` of the report, rates and utilisation.

Shares are of the time in which the device was observed (the profiler's windows, or the steady steps with
events); their seconds are that share of the steady steps, so that they compete with time outside steps.

Accelerator utilisation is defined as in DLIO and MLPerf Storage: the time in compute over the time from the
start of the second step to the end of the last, in percent; per epoch, then the mean over epochs, then the
mean over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dftracer.analyze.device.busy_time import DeviceAccount
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.stages import COMPUTE
from dftracer.load.chunk import MISSING

_TOP = 30
_MAIN_FIGURES = ("observed_s", "busy_s", "idle_s", "busy_share", "idle", "host_paced_s", "in_checkpoints_s")
_NO_TRACE = (".json", ".json.gz", ".parquet")

# Dense FLOP/s in bf16 (fp16 where the device has no bf16) from the vendors' data sheets; first match.
PEAKS: Final = (
    ("GB200", 2.5e15),
    ("B200", 2.25e15),
    ("H200", 9.89e14),
    ("H100 PCIe", 7.56e14),
    ("H100", 9.89e14),
    ("H800", 9.89e14),
    ("A100", 3.12e14),
    ("A800", 3.12e14),
    ("L40S", 3.62e14),
    ("L40", 1.81e14),
    ("A40", 1.497e14),
    ("L4", 1.21e14),
    ("V100", 1.25e14),
    ("T4", 6.5e13),
    ("RTX 4090", 1.652e14),
    ("MI300X", 1.307e15),
    ("MI250X", 3.83e14),
    ("MI210", 1.81e14),
    ("MI100", 1.846e14),
)


def device_account(rank: Rank) -> DeviceAccount | None:
    """The best account of a rank's devices."""
    sides = rank.main.devices
    return None if sides is None else sides.best


@dataclass(frozen=True)
class DeviceShares:
    """Shares of the observed time; `host` has launching and what the host paces."""

    account: DeviceAccount
    device: float
    input: float
    host: float
    comm: float
    checkpoint: float
    dependency: float
    unknown: float

    @property
    def parts(self) -> dict[str, float]:
        """By the names of the verdict's parts."""
        return {
            "device": self.device,
            "input": self.input,
            "host": self.host,
            "comm": self.comm,
            "checkpoint": self.checkpoint,
            "dependency": self.dependency,
            "unseen": self.unknown,
        }

    @property
    def idle(self) -> float:
        """The share that is certainly idle."""
        return max(0.0, 1.0 - self.account.busy_share)

    @property
    def kind(self) -> str | None:
        """The kind of kernel that takes most of the busy time."""
        kernels = self.account.kernels
        worst = max(kernels, key=lambda k: (kernels[k], k), default=None)
        return worst if worst is not None and kernels[worst] > 0 else None

    @property
    def phase(self) -> str | None:
        """Where the host is for most of the time that the device waits for it."""
        phases = self.account.host_phases
        worst = max(phases, key=lambda k: (phases[k], k), default=None)
        return worst if worst != "between phases" else None


def device_shares(rank: Rank) -> DeviceShares | None:
    """None if nothing is known about the rank's devices."""
    best = device_account(rank)
    if best is None:
        return None
    a = best.steady if best.steady is not None and best.steady.observed_s > 0 else best
    whole = a.observed_s
    if whole <= 0:
        return None
    return DeviceShares(
        a,
        device=(a.busy_s - a.host_paced_s - a.in_checkpoints_s) / whole,
        input=a.idle["input"] / whole,
        host=(a.idle["host"] + a.idle["launch"] + a.host_paced_s) / whole,
        comm=a.idle["comm"] / whole,
        checkpoint=(a.idle["checkpoint"] + a.in_checkpoints_s) / whole,
        dependency=a.idle["dependency"] / whole,
        unknown=a.idle["unknown"] / whole,
    )


def exact_device(rank: Rank) -> bool:
    """Whether a profiler recorded what its device did."""
    shares = device_shares(rank)
    return shares is not None and shares.account.source == "profiler"


def uses_device(rank: Rank) -> bool:
    """Whether the process used a device."""
    return rank.main.devices is not None or rank.main.blocked


def used_unseen(rank: Rank) -> bool:
    """The process used a device, but nothing is known about what the device did."""
    return uses_device(rank) and not rank.main.spent.knows_device


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
            "Waiting for data cannot be distinguished from Python code: no loader was found. Use a torch"
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


def _epochs(rank: Rank) -> list[np.ndarray]:
    """The steps of each epoch except the first."""
    steps = rank.main.steps
    label = np.where(steps.epoch == MISSING, steps.loop, steps.epoch)
    groups = [np.flatnonzero(label == e) for e in np.unique(label).tolist()]
    return [g[1:] for g in groups if g.size > 1]


def _span_us(rank: Rank, rows: np.ndarray) -> int:
    steps = rank.main.steps
    return int(steps.end[rows[-1]] - steps.start[rows[0]] - steps.evaluation[rows].sum())


def accelerator_utilisation(job: Job) -> float | None:
    """Percent; None if no batches or no compute are annotated, or if a GPU computes and the host launches."""
    shares = []
    for rank in job.ranks:
        compute = rank.main.account[:, [*COMPUTE]].sum(axis=1)
        if rank.main.steps.source != "fetch" or not compute.any():
            continue
        if device_shares(rank) is not None or used_unseen(rank):
            return None
        shares += [float(compute[g].sum()) / max(1, _span_us(rank, g)) for g in _epochs(rank)]
    return round(100 * float(np.mean(shares)), 3) if shares else None


def samples_per_step(rank: Rank) -> float | None:
    """None if items or batches are not annotated."""
    items = sum(int(p.items.size) for p in rank.members) or rank.main.samples_made
    return items / rank.main.batches if items and rank.main.batches else None


def samples_per_second(job: Job) -> float | None:
    """For all ranks together; None if items or batches are not annotated."""
    rate = 0.0
    for rank in job.ranks:
        samples, groups = samples_per_step(rank), _epochs(rank)
        if samples is None or not groups:
            return None
        steps = sum(g.size for g in groups)
        seconds = sum(_span_us(rank, g) for g in groups) / 1e6
        if seconds * 1e6 <= steps:  # but for the rounding of times, all of it is evaluation
            return None
        rate += samples * steps / seconds
    return round(rate, 3) if rate else None


def peak_of(name: str) -> float | None:
    """The device's peak; None for one that is not in the table."""
    return next((peak for part, peak in PEAKS if part.lower() in name.lower()), None)


def _per_step(rank: Rank, key: str) -> float | None:
    """What the program counted for one step of a rank (`count_flops`)."""
    counted = [value for name, value in rank.main.process.user_metadata if name == f"step.{key}"]
    try:
        return float(counted[-1]) if counted else None
    except ValueError:
        return None


def model_figures(job: Job, flops: float | None = None) -> dict[str, Any]:
    """For all ranks together; `flops` is per step and rank; without it, what the program counted is used.

    Unknown values are null; `note` says why there is no MFU.
    """
    ranks = [r for r in job.ranks if r.main.steps.steady.any()]
    out: dict[str, Any] = {
        "steps_per_s": None,
        "samples_per_s": samples_per_second(job),
        "tokens_per_s": None,
        "flops_per_step": None,
        "flops_per_s": None,
        "device": None,
        "peak_flops": None,
        "mfu": None,
        "memory_peak_bytes": None,
        "memory": {},
        "note": None,
    }
    slowest = job.slowest
    if slowest is None or slowest not in ranks:
        return out
    rate = slowest.main.steps.per_second
    if rate is None:
        return out
    seconds = 1 / rate
    out["steps_per_s"] = round(rate, 6)
    for key in ("samples", "tokens"):
        counts = [_per_step(r, key) for r in ranks]
        if all(c is not None for c in counts):
            out[f"{key}_per_s"] = round(sum(c or 0.0 for c in counts) / seconds, 3)
    _memory(out, ranks)
    per_step = [flops if flops is not None else _per_step(r, "flops") for r in ranks]
    if any(f is None for f in per_step):
        out["note"] = "FLOP per step is not known: give --flops, or count one step with count_flops()."
        return out
    out["flops_per_step"] = sum(f or 0.0 for f in per_step)
    out["flops_per_s"] = out["flops_per_step"] / seconds
    names = [n for r in ranks if r.main.devices is not None for n in r.main.devices.names.values()]
    out["device"] = names[0] if names else None
    peak = peak_of(names[0]) if names else None
    if peak is None:
        out["note"] = f"unknown device: no peak is known for {names[0] if names else 'it'}."
        return out
    out["peak_flops"] = peak * len(ranks)
    out["mfu"] = round(out["flops_per_s"] / out["peak_flops"], 6)
    return out


def _memory(out: dict[str, Any], ranks: list[Rank]) -> None:
    """The most memory used on any rank's device: overall, and at the end of each phase."""
    for rank in ranks:
        sides = rank.main.devices
        account = (sides.events if sides is not None else None) or device_account(rank)
        if account is None:
            continue
        if account.memory_peak is not None:
            out["memory_peak_bytes"] = max(out["memory_peak_bytes"] or 0, account.memory_peak)
        for row in account.phases:
            if row["memory_bytes"] is not None:
                phase = row["phase"]
                out["memory"][phase] = max(out["memory"].get(phase, 0), row["memory_bytes"])
