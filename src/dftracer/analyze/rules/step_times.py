"""Findings about how step times change: first steps, occasional slow steps, drift, a cold cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dftracer._text import plural
from dftracer.analyze.job import Rank
from dftracer.analyze.rules.bound import View, recurring_s, restarts_often, startup_stage
from dftracer.analyze.rules.finding import Context, Finding, confidence
from dftracer.analyze.say.advice import advise, case_of
from dftracer.analyze.say.wording import ordinal, short, stage_words
from dftracer.analyze.stages import INPUT_STAGES, NONE, STAGES
from dftracer.analyze.thresholds import (
    COLD_FACTOR,
    DRIFT_CHANGE,
    DRIFT_P,
    DRIFT_STEPS,
    MAJORITY,
    MENTION_SHARE,
    SLOW_STEP_FACTOR,
    SLOW_STEP_MOST,
)
from dftracer.load.chunk import MISSING

Floats = npt.NDArray[np.float64]

_SHUFFLES = 999
_BLOCKS = 24


def _grown(rank: Rank, some: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> str:
    """The stage that makes some steps longer than others."""
    a = rank.main.account
    difference = a[some].mean(axis=0) - a[others].mean(axis=0)
    return STAGES[int(np.argmax(difference))]


def first_step(c: Context) -> Iterator[Finding]:
    """Warm-up: of one step, or of several."""
    v = c.view
    if v is None or len(v.rank.main.steps) < 5 or restarts_often(v.rank):
        return
    wall, steady = v.rank.wall_us.astype(float), v.rank.main.steps.steady
    usual = v.rank.main.steps.usual_us
    n = max(1, v.rank.main.phases.warm_up)
    mean = float(wall[:n].mean())
    if usual <= 0 or (n == 1 and mean < 3 * usual):
        return
    stage = _grown(v.rank, np.arange(n), np.flatnonzero(steady))
    which = "The first step takes" if n == 1 else f"Warm-up: the first {n} steps take"
    what = short(mean / 1e6) if n == 1 else f"{short(mean / 1e6)} each"
    yield c.finding(
        "first_step",
        f"{which} {mean / usual:.{0 if mean >= 3 * usual else 1}f} times as long as a usual one (mostly"
        f" {stage_words(stage)}): {what}, the median step {short(usual / 1e6)}.",
        float((wall[:n] - usual).sum()) / 1e6,
        0.9,
        severity=None if c.is_bound("startup") else "info",
        evidence={"steps": n, "first_s": wall[0] / 1e6, "median_s": usual / 1e6, "stage": stage},
        advice="Start-up (caches, compilation) happens once; it matters in short runs."
        if v.loads_in_main
        else "",
    )


def before_first_step(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    main = v.rank.main
    seconds = main.phases.before_us / 1e6
    if v.of_run(seconds) < MENTION_SHARE:
        return
    most = int(np.argmax(main.before[:NONE]))
    stage = STAGES[most] if main.before[most] > MAJORITY * main.phases.before_us else None
    where = f" (mostly {stage_words(stage)})" if stage else ""
    yield c.finding(
        "before_first_step",
        f"{short(seconds)} of the run ({100 * v.of_run(seconds):.0f} %) pass before the first step{where}.",
        seconds,
        0.9,
        severity=None if c.is_bound("startup") else "info",
        evidence={"rank": v.rank.number, "seconds": round(seconds, 6), "stage": stage},
        advice="Shorten it, or keep what can be kept between runs." if stage else "",
    )


def _restart_advice(v: View, stage: str | None) -> str:
    if stage is not None and stage not in INPUT_STAGES:
        where = stage_words(stage)
        return f"Find out what runs only in the first step of an epoch ({where}), and do it once."
    if v.loads_in_main:
        return (
            "Do once what the main thread does for each epoch's first batch (listing, shuffling, opening"
            " files), and keep it between epochs."
        )
    return ""


def epoch_restarts(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None or not restarts_often(v.rank):
        return
    steps, phases = v.rank.main.steps, v.rank.main.phases
    wall = v.rank.wall_us.astype(float)
    first = float(np.median(wall[steps.first])) / 1e6
    usual = steps.usual_us / 1e6
    stage = startup_stage(v.rank)
    seconds = recurring_s(v.rank)
    where = f" ({stage_words(stage)})" if stage else ""
    yield c.finding(
        "epoch_restarts",
        f"Each epoch begins with a slow step{where}: {short(first)}, the median step {short(usual)}.",
        seconds,
        confidence(phases.epoch_starts * 3),
        evidence={
            "epochs": phases.epoch_starts + 1,
            "restarts": phases.restarts,
            "first_step_s": round(first, 6),
            "median_s": round(usual, 6),
            "stage": stage,
        },
        advice=_restart_advice(v, stage),
    )


def slow_steps(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    steady = np.flatnonzero(v.rank.main.steps.steady)
    wall = v.rank.wall_us.astype(float)[steady]
    if wall.size < 10:
        return
    usual = float(np.median(wall))
    slow = np.flatnonzero(wall > SLOW_STEP_FACTOR * max(usual, 1.0))
    if slow.size == 0 or slow.size > SLOW_STEP_MOST * wall.size:
        return
    lost = float((wall[slow] - usual).sum()) / 1e6
    stage = _grown(v.rank, steady[slow], np.delete(steady, slow))
    if stage == "sync":  # the host ran ahead in the others, and waits here for the work of all of them
        return
    # The slowest decide whether they come regularly: a busy machine adds some at random.
    beyond = wall[slow] - usual
    apart = np.diff(steady[slow[beyond >= MAJORITY * float(np.quantile(beyond, 0.9))]])
    every = int(np.median(apart)) if apart.size else 0
    regular = apart.size >= 2 and float((np.abs(apart - every) <= 0.1 * every).mean()) >= 0.8
    regular = regular and (apart.size + 1) * every >= MAJORITY * wall.size  # not just for a while
    factor = float(np.median(wall[slow])) / max(usual, 1.0)
    some = f"{slow.size} of {plural(wall.size, 'step')} take{'s' if slow.size == 1 else ''}"
    which = f"Every {ordinal(every)} step takes" if regular else some
    yield c.finding(
        "slow_steps",
        f"{which} {factor:.0f} times as long as the others ({stage_words(stage)}):"
        f" {short(float(np.median(wall[slow])) / 1e6)}, the median step {short(usual / 1e6)}.",
        lost,
        confidence(int(wall.size)) * (0.9 if slow.size >= 3 else 0.6),
        evidence={
            "steps": int(wall.size),
            "slow_steps": int(slow.size),
            "every": every if regular else None,
            "slow_s": round(float(np.median(wall[slow])) / 1e6, 6),
            "median_s": round(usual / 1e6, 6),
            "stage": stage,
            "first_step_index": int(steady[slow[0]]),
        },
        advice=advise("checkpoint", case_of(c.job, v.rank)) if stage == "checkpoint" else "",
    )


def cold_first_epoch(c: Context) -> Iterator[Finding]:
    """Only if I/O itself was slower: many other things can make a first epoch slow."""
    v = c.view
    if v is None or not v.rank.explanations:
        return
    rank, steps = v.rank, v.rank.main.steps
    label = np.where(steps.epoch == MISSING, steps.loop, steps.epoch)
    epochs = np.unique(label)
    usable = steps.steady
    first, rest = usable & (label == epochs[0]), usable & (label != epochs[0])
    if first.sum() < 3 or rest.sum() < 3:
        return
    io = np.sum([e.step_io_us for e in rank.explanations.values()], axis=0).astype(float)
    loading = np.sum([rank.stage_us(s) for s in ("fetch_wait", "read")], axis=0).astype(float)
    io_first, io_later = float(io[first].mean()), float(io[rest].mean())
    a, b = float(loading[first].mean()), float(loading[rest].mean())
    extra = (a - b) * float(first.sum()) / 1e6
    if a < COLD_FACTOR * b or io_first < COLD_FACTOR * io_later or io_first - io_later < MAJORITY * (a - b):
        return
    yield c.finding(
        "cold_first_epoch",
        f"Storage takes {short(io_first / 1e6)} per step in the first epoch, {short(io_later / 1e6)} later:"
        " the data was not cached.",
        extra,
        confidence(int(min(first.sum(), rest.sum()))),
        evidence={
            "first_epoch_io_s": round(io_first / 1e6, 6),
            "later_io_s": round(io_later / 1e6, 6),
            "first_epoch_median_s": round(float(np.median(loading[first])) / 1e6, 6),
            "later_median_s": round(float(np.median(loading[rest])) / 1e6, 6),
            "epochs": int(epochs.size),
            "steps_in_first_epoch": int(first.sum()),
        },
    )


def trend(values: Floats) -> float:
    """How often the shuffled means of consecutive blocks of steps show a trend as strong as the actual order.

    Whole blocks are shuffled, so that patterns that repeat from step to step do not count as a trend; values
    are limited to their middle nine tenths, so that a few slow steps do not either.
    """
    limited = np.clip(values, *np.quantile(values, (0.05, 0.95)))
    blocks = np.array([b.mean() for b in np.array_split(limited, min(_BLOCKS, values.size // 2))])
    at = np.arange(blocks.size) - (blocks.size - 1) / 2
    seen = abs(float(at @ blocks))
    rng = np.random.default_rng(0)
    shuffled = np.array([abs(float(at @ rng.permutation(blocks))) for _ in range(_SHUFFLES)])
    return float((1 + (shuffled >= seen * (1 - 1e-9)).sum()) / (1 + _SHUFFLES))


def _batches_grown(rank: Rank, steps: npt.NDArray[np.intp], quarter: int) -> float:
    """By which share the batches of the last quarter are larger than those of the first; 0 if not known."""
    size = rank.main.spent.size
    if size.size != len(rank.main.steps):
        return 0.0
    first, last = float(size[steps[:quarter]].mean()), float(size[steps[-quarter:]].mean())
    return last / first - 1 if first > 0 else 0.0


def step_drift(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    main = v.rank.main
    filling = main.spent.queue_fills(main.account, v.rank.wall_us)
    steady = np.flatnonzero(main.steps.steady & ~filling)
    if steady.size < DRIFT_STEPS or main.steps.training.any():  # another model takes another time
        return
    wall = v.rank.wall_us.astype(float)[steady]
    limited = np.clip(wall, *np.quantile(wall, (0.05, 0.95)))
    quarter = wall.size // 4
    head, tail = float(limited[:quarter].mean()), float(limited[-quarter:].mean())
    change = (tail - head) / head if head > 0 else 0.0
    if abs(change) < DRIFT_CHANGE:
        return
    p = trend(wall)
    if p > DRIFT_P:
        return
    turn = int(np.argmax(np.abs(np.cumsum(limited - limited.mean())))) + 1
    turn = min(turn, wall.size - 1)
    account = v.rank.main.account[steady].astype(float)
    difference = account[-quarter:].mean(axis=0) - account[:quarter].mean(axis=0)
    stage = STAGES[int(np.argmax(difference * np.sign(change)))]
    extra = max(0.0, float((limited[turn:] - head).sum()) / 1e6) if change > 0 else 0.0
    grown = _batches_grown(v.rank, steady, quarter)
    if change > 0 and grown >= MAJORITY * change:
        yield c.finding(
            "step_drift",
            f"Steps get longer with their batches: {short(tail / 1e6)} in the last quarter,"
            f" {short(head / 1e6)} in the first; a batch has {100 * grown:.0f} % more data.",
            extra,
            confidence(wall.size),
            severity="info",
            evidence={"change": round(change, 4), "batch_growth": round(grown, 4), "p": round(p, 4)},
            advice="Nothing to do if that is meant; compare steps with batches of the same size.",
        )
        return
    way = "slower" if change > 0 else "faster"
    yield c.finding(
        "step_drift",
        f"Steps get {way}: {short(tail / 1e6)} in the last quarter, {short(head / 1e6)} in the first (mostly"
        f" {stage_words(stage)}).",
        extra,
        confidence(wall.size),
        severity=None if change > 0 else "info",
        evidence={
            "first_quarter_median_s": round(float(np.median(wall[:quarter])) / 1e6, 6),
            "last_quarter_median_s": round(float(np.median(wall[-quarter:])) / 1e6, 6),
            "change": round(change, 4),
            "p": round(p, 4),
            "change_point_step_index": int(steady[turn]),
            "stage": stage,
        },
        advice="" if change > 0 else "A warm-up; measure after the change point.",
    )


RULES = (first_step, before_first_step, epoch_restarts, slow_steps, cold_first_epoch, step_drift)
