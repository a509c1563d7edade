"""Model figures: samples, tokens and FLOPs per second, and the share of the device's peak."""

from __future__ import annotations

from typing import Any, Final

from dftracer.analyze.device import device_account
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.rates import samples_per_second

__all__ = ["PEAKS", "model_figures", "peak_of"]

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


def peak_of(name: str) -> float | None:
    """The device's peak; None for one that is not in the table."""
    return next((peak for part, peak in PEAKS if part.lower() in name.lower()), None)


def _per_step(rank: Rank, key: str) -> float | None:
    """What the program counted for one step of a rank (`count_flops`)."""
    said = [value for name, value in rank.main.process.user_metadata if name == f"step.{key}"]
    try:
        return float(said[-1]) if said else None
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
