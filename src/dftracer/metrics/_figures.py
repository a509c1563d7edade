"""What is exported: the sums of all steps so far, under names that are the same for every target."""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

from dftracer import _config, _core, _session
from dftracer.format.members import ROW_FLAGS

# Of a step's time, what is not progress: waiting for a batch or making it, saving.
_NOT_PRODUCTIVE = ("fetch_wait", "read", "preprocess", "collate", "checkpoint")
_NOT_STAGES = ("wall_us", "device_busy_us", "evaluation_us")


class Figures(NamedTuple):
    """Of this process, from its first step until now. Times are in seconds."""

    steps: int
    samples: int
    seconds: float
    stages: dict[str, float]
    busy: float | None  # of the device; None without one
    step: int  # number of the latest step
    ended: float | None  # when that ended, since the epoch
    age: float  # of the process
    dropped: int

    @property
    def goodput(self) -> float:
        """The share of the process's life in which steps made progress."""
        idle = sum(self.stages.get(stage, 0.0) for stage in _NOT_PRODUCTIVE)
        return min(1.0, max(0.0, self.seconds - idle) / self.age) if self.age > 0 else 0.0

    def since(self, earlier: Figures | None) -> Figures:
        """What the steps after `earlier` add; what is not a sum stays."""
        if earlier is None:
            return self
        return self._replace(
            steps=self.steps - earlier.steps,
            samples=self.samples - earlier.samples,
            seconds=self.seconds - earlier.seconds,
            stages={name: s - earlier.stages.get(name, 0.0) for name, s in self.stages.items()},
            busy=None if self.busy is None else self.busy - (earlier.busy or 0.0),
        )


class Metric(NamedTuple):
    """A family of samples; the names are promised to dashboards and alerts."""

    name: str
    kind: str  # counter, gauge or summary
    help: str


STEP_SECONDS = Metric("dftracer_step_seconds", "summary", "Wall time of training steps.")
STEPS = Metric("dftracer_steps_total", "counter", "Training steps that have ended.")
SAMPLES = Metric("dftracer_samples_total", "counter", "Samples in the batches of these steps.")
STAGE_SECONDS = Metric("dftracer_stage_seconds_total", "counter", "Time of training steps, by stage.")
LAST_STEP = Metric("dftracer_last_step_timestamp_seconds", "gauge", "When the latest step ended.")
DEVICE_BUSY = Metric("dftracer_device_busy_ratio", "gauge", "Share of the steps' time the device was busy.")
GOODPUT = Metric("dftracer_goodput_ratio", "gauge", "Share of the process's life in which steps progressed.")
DROPPED = Metric("dftracer_dropped_events_total", "counter", "Events that could not be recorded.")
RUNNING = Metric("dftracer_running", "gauge", "1 while the process records, 0 once it has ended cleanly.")

FAMILIES = (
    STEP_SECONDS,
    STEPS,
    SAMPLES,
    STAGE_SECONDS,
    LAST_STEP,
    DEVICE_BUSY,
    GOODPUT,
    DROPPED,
    RUNNING,
)

Sample = tuple[str, dict[str, str], float]


def samples(figures: Figures, running: bool) -> list[tuple[Metric, list[Sample]]]:
    """Every family with its samples: suffix of the name, labels beside the common ones, value."""
    found: list[tuple[Metric, list[Sample]]] = [
        (STEP_SECONDS, [("_sum", {}, figures.seconds), ("_count", {}, figures.steps)]),
        (STEPS, [("", {}, figures.steps)]),
        (SAMPLES, [("", {}, figures.samples)]),
        (STAGE_SECONDS, [("", {"stage": stage}, s) for stage, s in figures.stages.items()]),
        (GOODPUT, [("", {}, figures.goodput)]),
        (DROPPED, [("", {}, figures.dropped)]),
        (RUNNING, [("", {}, int(running))]),
    ]
    if figures.ended is not None:
        found.append((LAST_STEP, [("", {}, figures.ended)]))
    if figures.busy is not None and figures.seconds > 0:
        found.append((DEVICE_BUSY, [("", {}, min(1.0, figures.busy / figures.seconds))]))
    return found


def scalars(figures: Figures) -> dict[str, float]:
    """The same as one point of a curve, for trackers; `figures` are those since the point before."""
    found = {"dftracer/goodput_ratio": figures.goodput, "dftracer/dropped_events_total": figures.dropped}
    if figures.steps > 0 and figures.seconds > 0:
        found["dftracer/step_seconds"] = figures.seconds / figures.steps
        found["dftracer/samples_per_second"] = figures.samples / figures.seconds
        for stage, seconds in figures.stages.items():
            found[f"dftracer/stage_share/{stage}"] = seconds / figures.seconds
        if figures.busy is not None:
            found["dftracer/device_busy_ratio"] = min(1.0, figures.busy / figures.seconds)
    return found


def labels() -> dict[str, str]:
    """What tells this process from all others: the job, the run and the rank in it."""
    rank = _config.rank_info().rank
    return {"job": _job(), "run": _core.run_id(), "rank": str(0 if rank is None else rank)}


def _job() -> str:
    """The name of the run, the launcher's name of the job, or the program's."""
    of_launchers = (os.environ.get(name, "") for name in ("SLURM_JOB_NAME", "TORCHELASTIC_RUN_ID"))
    for name in map(str.strip, (_session.SETTINGS.run_name, *of_launchers)):
        # torchrun makes up an id where none is given: a new one with each start.
        made_up = name == "none" or (len(name) == 36 and name.count("-") == 4)
        if name and not made_up:
            return name
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")
    return os.path.basename(file).removesuffix(".py") or "python"


def read() -> Figures:
    """The figures as they are now; all zero before the first step."""
    sums, last = _core.row_sums() or {}, _core.last_row() or {}
    stages = {
        name.removesuffix("_us"): us / 1e6
        for name, us in sums.items()
        if name.endswith("_us") and name not in _NOT_STAGES
    }
    end = last["start_us"] + last["wall_us"] + last["evaluation_us"] if last else None
    return Figures(
        steps=sums.get("steps", 0),
        samples=sums.get("samples", 0),
        seconds=sums.get("wall_us", 0) / 1e6,
        stages=stages,
        busy=sums["device_busy_us"] / 1e6 if last and last["flags"] & ROW_FLAGS["device"] else None,
        step=max(0, last.get("step", 0)),
        ended=None if end is None else end / 1e6,
        age=_age(),
        dropped=sum(n for name, n in _core.stats().items() if name.startswith("dropped")),
    )


def _age() -> float:
    """How long ago this process began, in seconds."""
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
