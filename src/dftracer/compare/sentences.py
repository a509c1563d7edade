"""A comparison in sentences."""

from __future__ import annotations

from dftracer._units import plural, seconds_text
from dftracer.compare.comparison import PARTS, SAME_WITHIN, Comparison
from dftracer.compare.side import Side
from dftracer.compare.statistics import FEWEST_STEPS, Change

_BEYOND = 10.0  # changes above this many times are not shown to the last digit


def time_text(seconds: float) -> str:
    """A duration, always with three digits: two of them will be compared."""
    if seconds >= 120 or seconds <= 0:
        return seconds_text(seconds)
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            break
    return f"{f'{seconds * scale:#.3g}'.rstrip('.')} {unit}"


def letters(n: int) -> list[str]:
    """A, B, C … for the runs."""
    return [chr(ord("A") + i) if i < 26 else f"run {i + 1}" for i in range(n)]


def percent_text(share: float, signed: bool = True) -> str:
    """A change in percent with about three digits."""
    value = 100 * share
    digits = 0 if abs(value) >= 100 else 1
    # A change too small for the digits is shown as zero, without a sign.
    if round(value, digits) == 0:
        return "0 %"
    return f"{value:+.{digits}f} %" if signed else f"{value:.{digits}f} %"


def change_text(c: Change) -> str:
    return "new" if c.relative is None else percent_text(c.relative)


def interval_text(c: Change) -> str:
    """From, to; in seconds if there is no ratio."""
    if c.interval is not None:
        low, high = c.interval
        end = percent_text(high) if high <= _BEYOND else f"more than {percent_text(_BEYOND)}"
        return f"{percent_text(low)} to {end}"
    if c.interval_s is not None:
        low = max(c.interval_s[0], 0.0)
        return f"{time_text(low)} to {time_text(c.interval_s[1])}"
    return "not known"


def times_text(c: Change) -> str:
    return f"{time_text(c.a)} → {time_text(c.b)}"


def headline(c: Comparison, b: str = "B", a: str = "A") -> str:
    """The comparison in one sentence."""
    if not c.enough and not c.difference:
        return f"Cannot tell whether {a} and {b} differ: {_few(c)}."
    step = c.step
    if c.step_changed:
        how = "slower" if step.difference > 0 else "faster"
        by = percent_text(abs(step.relative or 0.0), signed=False)
        return f"{b} is {how} by {by}: {times_text(step)} per step ({interval_text(step)})."
    if c.changed or c.changed_in_bursts:
        told = list(dict.fromkeys([*c.changed, *c.changed_in_bursts]))
        return (
            f"{a} and {b} differ in {_listed(told)}; the step as a whole changed by no more than it varies:"
            f" {times_text(step)}."
        )
    if c.changed_parts and c.whole is not None:
        whole = c.whole
        how = "slower" if whole.b > whole.a else "faster"
        by = percent_text(abs(whole.b / whole.a - 1), signed=False) if whole.a else "much"
        parts = _listed([PARTS[p] for p in c.changed_parts])
        return f"{b} is {how} by {by} as a whole, because of {parts}: {_whole_text(c)}."
    if c.answer == "cannot_tell":
        return (
            f"Cannot tell whether {a} and {b} differ: {times_text(step)} per step, where"
            f" {interval_text(c.step_alone)} is possible; {needed_text(c)}."
        )
    reach = c.reach
    seen = f"; a change of {percent_text(reach, signed=False)} would have shown" if reach >= 0.001 else ""
    return f"No difference: {times_text(step)} per step{seen}."


def needed_text(c: Comparison, limit: float = SAME_WITHIN) -> str:
    """What would be needed to tell."""
    runs = "several runs of each would (dftracer compare A1 A2 A3 -- B1 B2 B3)"
    steps = c.steps_needed(limit)
    within = percent_text(limit, signed=False)
    if steps is None:
        return f"to tell a change of {within}, more steps would hardly help, {runs}"
    return f"to tell a change of {within} would take about {steps} steps, or {runs}"


def _whole_text(c: Comparison) -> str:
    whole = c.whole
    return "" if whole is None else f"{time_text(whole.a)} → {time_text(whole.b)} per step, all included"


def reasons(c: Comparison) -> list[str]:
    """A line for each stage that changed."""
    out = []
    for stage in c.changed:
        change = c.stages[stage]
        out.append(
            f"{stage}: {times_text(change)} per step ({change_text(change)}, {interval_text(change)}),"
            f" {percent_text(c.moves(stage))} of the step."
        )
    for stage in c.changed_in_bursts:
        if stage in c.changed:
            continue
        change = c.bursts[stage]
        out.append(
            f"{stage}: {times_text(change)} on average ({change_text(change)}, {interval_text(change)});"
            " it takes its time in only a few of the steps, so its median says little."
        )
    for part in c.changed_parts:
        x = c.parts[part]
        out.append(f"{PARTS[part]}: {time_text(x.a)} → {time_text(x.b)} per step, outside the steps.")
    if c.step_changed and not out:
        out.append("No single stage explains it: several changed a little.")
    return out


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _few(c: Comparison) -> str:
    small = [
        f"{s.name} has {plural(s.wall.size, 'steady step')}" for s in (c.a, c.b) if s.wall.size < FEWEST_STEPS
    ]
    return f"{' and '.join(small)}; {FEWEST_STEPS} are needed"


def notes(c: Comparison) -> list[str]:
    """What a reader must know: runs that differ in kind, stages that only one of them shows."""
    out = [f"{stage} was not seen in {name}, so it is not compared." for stage, name in c.unseen.items()]
    for side in (c.a, c.b):
        others = len(side.run.get("others") or [])
        if others:
            out.append(f"{side.name} also contains {plural(others, 'other run')}; the newest is compared.")
    if c.block > 1:
        out.append(f"Long and short steps alternate: a step is the mean of {c.block} consecutive ones here.")
    if c.a.ranks != c.b.ranks:
        out.append(f"The runs have {plural(c.a.ranks, 'rank')} and {plural(c.b.ranks, 'rank')}.")
    for key, words in (("host", "hosts"), ("command", "commands")):
        a, b = c.a.run.get(key), c.b.run.get(key)
        if a and b and a != b:
            out.append(f"The runs have different {words}: {a} and {b}.")
    sources = [(s.told.get("device") or {}).get("source") for s in (c.a, c.b)]
    if sources[0] != sources[1] and all(sources):
        out.append("The device's figures come from a profiler in one run and from events in the other.")
    if c.enough:
        short = [s for s in (c.a, c.b) if s.wall.size < 30]
        if short:
            told = " and ".join(f"{s.name} {plural(s.wall.size, 'steady step')}" for s in short)
            out.append(f"Few steps ({told}): only large changes can be detected.")
    return out


def side_text(side: Side) -> str:
    """One run in a line."""
    run = side.run
    several = len(side.members)
    said = [str(run["id"])] if run.get("id") and several == 1 else []
    if several > 1:
        said.append(plural(several, "run"))
    said.append(plural(side.steps, "steady step"))
    if side.ranks > 1:
        said.append(plural(side.ranks, "rank"))
    if run.get("host"):
        said.append(str(run["host"]))
    return f"{side.name} ({', '.join(said)})"
