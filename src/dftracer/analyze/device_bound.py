"""The device's parts of a run, for the verdict: busy, and idle by what it waited for.

Their shares are of the time in which the device was observed (the profiler's windows, or the steady steps
with events); their seconds are that share of the steady steps, so that they compete with time outside steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from dftracer.analyze.device_account import DeviceAccount
from dftracer.analyze.job import Rank

__all__ = ["DeviceShares", "device_shares", "exact_device", "used_unseen", "uses_device"]


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
    sides = rank.main.devices
    best = None if sides is None else sides.best
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
