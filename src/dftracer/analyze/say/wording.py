"""Wording shared by findings and the head of a report."""

from __future__ import annotations

from dftracer.analyze.device.busy_time import DeviceAccount
from dftracer.analyze.thresholds import MAJORITY

STAGE_WORDS = {
    "fetch_wait": "waiting for data",
    "read": "storage reads",
    "preprocess": "preprocessing",
    "collate": "collating",
    "transfer": "transfer to the device",
    "comm": "communication",
    "checkpoint": "checkpointing",
    "sync": "waiting for the device",
    "own_code": "the program's own code",
    "sampler": "the sampler",
    "compute": "compute",
    "optimizer": "the optimizer",
    "other": "other annotated work",
    "unexplained": "no annotated stage",
    "idle": "idle workers",
    "unseen": "work that is not visible",
}


def stage_words(stage: str) -> str:
    """A stage in plain words."""
    return STAGE_WORDS.get(stage, stage.replace("_", " "))


def short(seconds: float) -> str:
    """A duration with a sensible number of digits: never `0.00 s`."""
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-5 else "under 0.01 ms"


def ordinal(n: int) -> str:
    """`1st`, `2nd`, `20th`."""
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def input_words(stages: dict[str, float]) -> str:
    """What the wait for data consisted of: `mostly` needs a majority, otherwise the two largest are named."""
    whole = sum(stages.values())
    if whole <= 0:
        return ""
    order = sorted(stages, key=lambda s: (-round(stages[s], 4), s))
    first = order[0]
    if first in {"unseen", "fetch_wait"} and stages[first] > MAJORITY * whole:
        return "; what the loader did is not visible"
    if stages[first] > MAJORITY * whole:
        return f" (mostly {stage_words(first)})"
    shares = [f"{stage_words(s)} {100 * stages[s] / whole:.0f} %" for s in order[:2]]
    return f" ({' and '.join(shares)} of it)"


def percent(share: float) -> str:
    """A share of the time."""
    return f"{100 * share:.0f} %"


def short_kernel(name: str, most: int = 40) -> str:
    """A kernel's name without namespaces."""
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("at::native::", "")
    name = name.partition("<")[0].partition("(")[0] or name
    return name if len(name) <= most else name[: most - 1] + "…"


def host_whereabouts(a: DeviceAccount, most: int = 3) -> str:
    """The functions, and the I/O, that the host was in while the device waited for it."""
    functions = [f"{_place(name)} {1e3 * s:.3g} ms" for name, s in [*a.host_functions.items()][:most]]
    files = [f"{_place(name)} {1e3 * s:.3g} ms" for name, s in [*a.host_io.items()][:most]]
    return " and ".join(
        part for part in (", ".join(functions), f"I/O: {', '.join(files)}" if files else "") if part
    )


def _place(name: str, most: int = 60) -> str:
    """A shortened name: the end of a long name says more than its beginning."""
    return name if len(name) <= most else "…" + name[1 - most :]
