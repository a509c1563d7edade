"""Findings about the training: how its step times change, and where else the time of the run goes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import polars as pl

from dftracer._text import plural
from dftracer.analyze.device.summary import device_shares
from dftracer.analyze.intervals import Floats, total
from dftracer.analyze.job import Rank
from dftracer.analyze.rules.bound import (
    JudgedRun,
    between_place,
    between_seconds,
    input_seconds,
    own_code_places,
    recurring_s,
    restarts_often,
    startup_stage,
    user_event,
    user_words,
)
from dftracer.analyze.rules.finding import Finding, JudgingContext, confidence, only_this_rank
from dftracer.analyze.say.catalog import advise, case_of, input_kind, straggler_kind
from dftracer.analyze.say.wording import ordinal, short, stage_words
from dftracer.analyze.stages import INPUT_STAGES, NONE, STAGE_INDEX, STAGES
from dftracer.analyze.thresholds import (
    COLD_FACTOR,
    DEVICE_IDLE_SHARE,
    DRIFT_CHANGE,
    DRIFT_P,
    DRIFT_STEPS,
    FINDING_SHARE,
    MAJORITY,
    MENTION_SHARE,
    SLOW_STEP_FACTOR,
    SLOW_STEP_MAX,
    UNSEEN_SHARE,
)
from dftracer.load.chunk import MISSING

_SHUFFLES = 999
_BLOCKS = 24

# What a device waits for.
_WAITS = {
    "input": "waiting for data",
    "host": "waiting for the host to launch work",
    "comm": "while the host communicates",
    "checkpoint": "while the host writes or reads checkpoints",
    "dependency": "waiting for other streams or events",
}


def first_step(c: JudgingContext) -> Iterator[Finding]:
    """Warm-up: of one step, or of several."""
    run = c.judged
    if run is None or len(run.rank.main.steps) < 5 or restarts_often(run.rank):
        return
    wall, steady = run.rank.wall_us.astype(float), run.rank.main.steps.steady
    usual = run.rank.main.steps.usual_us
    n = max(1, run.rank.main.phases.warm_up)
    mean = float(wall[:n].mean())
    if usual <= 0 or (n == 1 and mean < 3 * usual):
        return
    stage = _grown(run.rank, np.arange(n), np.flatnonzero(steady))
    which = "The first step takes" if n == 1 else f"Warm-up: the first {n} steps take"
    what = short(mean / 1e6) if n == 1 else f"{short(mean / 1e6)} each"
    yield c.finding(
        "first_step",
        f"{which} {mean / usual:.{0 if mean >= 3 * usual else 1}f} times as long as a usual one (mostly"
        f" {stage_words(stage)}): {what}, against a median of {short(usual / 1e6)}.",
        float((wall[:n] - usual).sum()) / 1e6,
        0.9,
        severity=None if c.is_bound("startup") else "info",
        evidence={"steps": n, "first_s": wall[0] / 1e6, "median_s": usual / 1e6, "stage": stage},
        advice="Start-up (caches, compilation) happens once; it matters in short runs."
        if run.loads_in_main
        else "",
    )


def before_first_step(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    main = run.rank.main
    seconds = (main.phases.before_us - main.phases.importing_us) / 1e6
    if run.of_run(seconds) < MENTION_SHARE:
        return
    most = int(np.argmax(main.before[:NONE]))
    stage = STAGES[most] if main.before[most] > MAJORITY * main.phases.before_us else None
    where = f" (mostly {stage_words(stage)})" if stage else ""
    after = "After imports, " if main.phases.imports_us else ""
    yield c.finding(
        "before_first_step",
        f"{after}{short(seconds)} of the run ({100 * run.of_run(seconds):.0f} %) is spent before the first"
        f" step{where}.",
        seconds,
        0.9,
        severity=None if c.is_bound("startup") else "info",
        evidence={"rank": run.rank.number, "seconds": round(seconds, 6), "stage": stage},
        advice="Shorten it, or keep what can be kept between runs." if stage else "",
    )


def epoch_restarts(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None or not restarts_often(run.rank):
        return
    steps, phases = run.rank.main.steps, run.rank.main.phases
    wall = run.rank.wall_us.astype(float)
    first = float(np.median(wall[steps.first])) / 1e6
    usual = steps.usual_us / 1e6
    stage = startup_stage(run.rank)
    seconds = recurring_s(run.rank)
    where = f" ({stage_words(stage)})" if stage else ""
    yield c.finding(
        "epoch_restarts",
        f"Each epoch begins with a slow step{where}: {short(first)}, against a median of {short(usual)}.",
        seconds,
        confidence(phases.epoch_starts * 3),
        evidence={
            "epochs": phases.epoch_starts + 1,
            "restarts": phases.restarts,
            "first_step_s": round(first, 6),
            "median_s": round(usual, 6),
            "stage": stage,
        },
        advice=_restart_advice(run, stage),
    )


def _restart_advice(run: JudgedRun, stage: str | None) -> str:
    if stage is not None and stage not in INPUT_STAGES:
        where = stage_words(stage)
        return f"Find out what runs only in the first step of an epoch ({where}), and do it once."
    if run.loads_in_main:
        return (
            "Do once what the main thread does for each epoch's first batch (listing, shuffling, opening"
            " files), and keep it between epochs."
        )
    return ""


def slow_steps(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    steady = np.flatnonzero(run.rank.main.steps.steady)
    wall = run.rank.wall_us.astype(float)[steady]
    if wall.size < 10:
        return
    usual = float(np.median(wall))
    slow = np.flatnonzero(wall > SLOW_STEP_FACTOR * max(usual, 1.0))
    if slow.size == 0 or slow.size > SLOW_STEP_MAX * wall.size:
        return
    lost = float((wall[slow] - usual).sum()) / 1e6
    stage = _grown(run.rank, steady[slow], np.delete(steady, slow))
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
        f" {short(float(np.median(wall[slow])) / 1e6)}, against a median of {short(usual / 1e6)}.",
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
        advice=advise("checkpoint", case_of(c.job, run.rank)) if stage == "checkpoint" else "",
    )


def cold_first_epoch(c: JudgingContext) -> Iterator[Finding]:
    """Only if I/O itself was slower: many other things can make a first epoch slow."""
    run = c.judged
    if run is None or not run.rank.explanations:
        return
    rank, steps = run.rank, run.rank.main.steps
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


def step_drift(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    main = run.rank.main
    filling = main.spent.queue_fills(main.account, run.rank.wall_us)
    steady = np.flatnonzero(main.steps.steady & ~filling)
    if steady.size < DRIFT_STEPS or main.steps.training.any():  # another model takes another time
        return
    wall = run.rank.wall_us.astype(float)[steady]
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
    account = run.rank.main.account[steady].astype(float)
    difference = account[-quarter:].mean(axis=0) - account[:quarter].mean(axis=0)
    stage = STAGES[int(np.argmax(difference * np.sign(change)))]
    extra = max(0.0, float((limited[turn:] - head).sum()) / 1e6) if change > 0 else 0.0
    grown = _batches_grown(run.rank, steady, quarter)
    if change > 0 and grown >= MAJORITY * change:
        yield c.finding(
            "step_drift",
            f"Steps get longer with their batches: {short(tail / 1e6)} in the last quarter,"
            f" {short(head / 1e6)} in the first; a batch has {100 * grown:.0f} % more data.",
            extra,
            confidence(wall.size),
            severity="info",
            evidence={"change": round(change, 4), "batch_growth": round(grown, 4), "p": round(p, 4)},
            advice="Nothing to fix if that is intended; compare steps with batches of the same size.",
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
        advice="" if change > 0 else "This is warm-up: measure after the change point.",
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


def _grown(rank: Rank, some: npt.NDArray[np.intp], others: npt.NDArray[np.intp]) -> str:
    """The stage that makes some steps longer than others."""
    a = rank.main.account
    difference = a[some].mean(axis=0) - a[others].mean(axis=0)
    return STAGES[int(np.argmax(difference))]


def exposed_comm(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    exposed = run.rank.account.seconds["comm"]
    if run.share(exposed) < MENTION_SHARE:
        return
    everything = total(run.rank.main.comm) / 1e6
    waiting = round(run.rank.account.seconds["peers"], 6) if len(c.job.ranks) > 1 else None
    spent = float(run.rank.stage_us("comm").sum()) / 1e6
    yield c.finding(
        "exposed_comm",
        f"{100 * run.share(exposed):.0f} % of rank {run.rank.number}'s steady time is communication that"
        " is not hidden.",
        exposed,
        confidence(int(run.rank.main.steps.steady.sum())),
        evidence={
            "rank": run.rank.number,
            "exposed_s": round(exposed, 6),
            "communication_s": round(everything, 6),
            "hidden_s": round(max(0.0, everything - spent), 6),
            "waiting_for_peers_s": waiting,
            "exposed_by_rank_s": {
                str(r.number): round(float(r.stage_us("comm").sum()) / 1e6, 6) for r in c.job.ranks
            },
        },
    )


def transfer_bound(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    seconds, n = run.rank.account.seconds["transfer"], run.rank.account.steps
    if run.share(seconds) < MENTION_SHARE:
        return
    yield c.finding(
        "transfer_bound",
        f"{100 * run.share(seconds):.0f} % of the steady time is spent moving data to or from the device:"
        f" {short(seconds / n)} of each {short(run.rank.account.step_s)} step.",
        seconds,
        confidence(n),
        evidence={
            "rank": run.rank.number,
            "transfer_s": round(seconds, 6),
            "share_of_step_time": round(run.share(seconds), 4),
            "transfer_per_step_s": round(seconds / n, 6),
        },
    )


def user_stage(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None or run.share(run.rank.account.annotated_s) < MENTION_SHARE:
        return
    seconds = run.rank.account.annotated_s
    event = user_event(run.rank)
    if event is None:  # operators of the profiler that belong to no stage
        return
    yield c.finding(
        "user_stage",
        f"{100 * run.share(seconds):.0f} % of the steady time is spent in {user_words(run.rank)}.",
        seconds,
        confidence(int(run.rank.main.steps.steady.sum())),
        evidence={
            "rank": run.rank.number,
            "event": event,
            "seconds": round(seconds, 6),
            "share_of_step_time": round(run.share(seconds), 4),
        },
    )


def own_code(c: JudgingContext) -> Iterator[Finding]:
    """The program's own code in steps; between them it is another finding."""
    run = c.judged
    if run is None:
        return
    a = run.rank.account
    seconds = a.seconds["own_code"] - a.annotated_s - a.between_of("own_code")
    if run.share(seconds) < MENTION_SHARE:
        return
    places = own_code_places(run.rank)
    first = next(iter(places), "")
    where = f", especially in {first}" if first else ""
    inside = " in steps" if run.share(a.between_of("own_code")) >= FINDING_SHARE else ""
    yield c.finding(
        "own_code",
        f"{100 * run.share(seconds):.0f} % of the steady time is the program's own code{inside}{where}.",
        seconds,
        confidence(a.steps),
        evidence={
            "rank": run.rank.number,
            "seconds": round(seconds, 6),
            "share_of_step_time": round(run.share(seconds), 4),
            **({"where_s": {k: round(s, 6) for k, s in [*places.items()][:5]}} if places else {}),
        },
        advice=advise("own_code", case_of(c.job, run.rank, first)),
    )


def checkpoint_stall(c: JudgingContext) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    inside = rank.stage_us("checkpoint")
    outside = int(rank.main.outside[STAGE_INDEX["checkpoint"]])
    seconds = float(inside.sum() + outside) / 1e6
    if seconds <= 0:
        return
    seconds = min(seconds, max(0.0, seconds - rank.account.device.get("checkpoint", 0.0)))
    longest = float(inside.max()) / 1e6 if inside.size else 0.0
    usual = float(np.median(rank.wall_us)) / 1e6
    if c.percent(seconds) < 2 and longest < 5 * usual:
        return
    yield c.finding(
        "checkpoint_stall",
        f"Training stops for {short(seconds)} to save or load checkpoints.",
        seconds,
        0.9,
        evidence={
            "rank": rank.number,
            "in_steps_s": round(float(inside.sum()) / 1e6, 6),
            "between_steps_s": round(outside / 1e6, 6),
            "steps_with_checkpoint": int((inside > 0).sum()),
            "longest_in_a_step_s": round(longest, 6),
            "median_step_s": round(usual, 6),
        },
        advice=advise("checkpoint", case_of(c.job, rank)),
    )


def between_steps(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    main = run.rank.main
    phases = main.phases
    seconds = between_seconds(run.rank)
    if run.of_run(seconds) < MENTION_SHARE:
        return
    lengths = (phases.gaps[1] - phases.gaps[0])[: -1 if phases.unfinished_us else None] / 1e6
    long = lengths[lengths > 0.1 * lengths.max()]
    place = between_place(run.rank)
    yield c.finding(
        "between_steps",
        f"{short(seconds)} of the run ({100 * run.of_run(seconds):.0f} %) is outside steps: {len(long)}"
        f" {'gap' if len(long) == 1 else 'gaps'} of {short(float(np.median(long)))} between or after steps"
        f"{f', most of it in {place}' if place else ''}.",
        seconds,
        0.9,
        evidence={
            "rank": run.rank.number,
            "seconds": round(seconds, 6),
            "gaps": len(long),
            "longest_s": round(float(lengths.max()), 6),
        },
        advice=advise("between_steps", case_of(c.job, run.rank, place or "")),
    )


def evaluation_time(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None:
        return
    phases = run.rank.main.phases
    seconds = phases.evaluation_us / 1e6
    if run.of_run(seconds) < MENTION_SHARE:
        return
    inside = float(run.rank.main.steps.evaluation.sum()) / 1e6
    yield c.finding(
        "evaluation_time",
        f"Evaluation takes {short(seconds)}, {100 * run.of_run(seconds):.0f} % of the run.",
        seconds,
        0.9,
        severity=None if c.is_bound("evaluation") else "info",
        evidence={"rank": run.rank.number, "seconds": round(seconds, 6), "inside_steps_s": round(inside, 6)},
    )


def straggler_rank(c: JudgingContext) -> Iterator[Finding]:
    late = None if c.judged is None else c.judged.straggler
    if late is None:
        return
    share = late.late / max(1, late.steps)
    how = "chronically" if late.chronic else "occasionally"
    lost = ("at least " if late.rank.peers.at_least else "") + short(late.all_lost_s)
    title = (
        f"Rank {late.rank.number} spends {short(late.own_s)} in {stage_words(late.stage)}, the median rank"
        f" {short(late.median_s)}, {how} (in {100 * share:.0f} % of the steps); the others lose"
        f" {lost} waiting for it."
    )
    alone = only_this_rank(late.stage, late.own_s, late.median_s)
    if alone and late.stage == "checkpoint":
        title = (
            f"Rank {late.rank.number} is checkpointing while the others wait: {short(late.own_s)} at a time,"
            f" in {100 * share:.0f} % of the steps; the others lose {lost} waiting for it."
        )
    found = c.finding(
        "straggler_rank",
        title,
        late.lost_s,
        confidence(late.steps) * (0.9 if late.chronic or late.late >= 3 else 0.7),
        evidence={
            "rank": late.rank.number,
            "stage": late.stage,
            "own_s": round(late.own_s, 6),
            "median_rank_s": round(late.median_s, 6),
            "kind": "chronic" if late.chronic else "one-off",
            "steps_slowest": late.late,
            "steps": late.steps,
            "first_step_index": late.first,
            "mean_work_s": {str(k): round(w, 6) for k, w in late.work_s.items()},
            "lost_by_all_s": round(late.all_lost_s, 6),
        },
        advice=advise(straggler_kind(late.stage), case_of(c.job, late.rank)),
    )
    if alone:  # what it does and the waiting for it are one thing
        found.line = late.stage
    yield found


def ranks_in_turn(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    if run is None or run.straggler is not None:
        return
    ranks = sorted((r for r in c.job.ranks if r.peers.exact), key=lambda r: r.account.seconds["peers"])
    if len(ranks) < 2:
        return
    typical = ranks[(len(ranks) - 1) // 2]
    seconds = typical.account.seconds["peers"]
    if typical.account.share("peers") < MENTION_SHARE:
        return
    causes: dict[str, float] = {}
    for rank in ranks:
        for stage, s in rank.peers.caused_s.items():
            causes[stage] = causes.get(stage, 0.0) + s
    stage = max(causes, key=lambda s: (causes[s], s))
    at_least = "at least " if typical.peers.at_least else ""
    yield c.finding(
        "ranks_in_turn",
        f"Ranks take turns waiting for each other, {at_least}"
        f"{100 * typical.account.share('peers'):.0f} % of the steady"
        f" time: there is no chronic straggler. Most often {stage_words(stage)} makes one late.",
        seconds,
        confidence(typical.account.steps),
        evidence={
            "stage": stage,
            "waiting_s": {str(r.number): round(sum(r.peers.waiting_s.values()), 6) for r in c.job.ranks},
            "caused_s": {str(r.number): round(sum(r.peers.caused_s.values()), 6) for r in c.job.ranks},
        },
    )


def device_idle(c: JudgingContext) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    shares = device_shares(rank)
    if shares is None or shares.account.source != "profiler" or shares.idle < DEVICE_IDLE_SHARE:
        return
    account = shares.account
    idle = {k: s for k, s in shares.parts.items() if k in _WAITS}
    most = max(idle, key=lambda k: idle[k])
    mostly = most if idle[most] > MAJORITY * shares.idle else None
    why = f", mostly {_WAITS[mostly]}" if mostly else ""
    kind = input_kind(input_seconds(rank)) if mostly == "input" else mostly
    advice = advise(kind, case_of(c.job, rank)) if kind else None
    yield c.finding(
        "device_idle",
        f"The device idles {100 * shares.idle:.0f} % of the profiled time{why}.",
        shares.idle * float(rank.wall_us.sum()) / 1e6,
        0.6,
        evidence={
            "rank": rank.number,
            "profiled_s": round(account.observed_s, 6),
            "idle_s": round(account.idle_s, 6),
            "idle": {k: round(v, 6) for k, v in account.idle.items() if v > 0},
        },
        line=mostly or "",
        advice=advice or "",
    )


def recompiles(c: JudgingContext) -> Iterator[Finding]:
    hits = c.names.filter(pl.col("name").str.to_lowercase().str.contains("recompil"))
    n = int(hits["count"].sum()) if hits.height else 0
    if not n:
        return
    seconds = float(hits["total_s"].sum())
    yield c.finding(
        "recompiles",
        f"Parts of the model were compiled again, {plural(n, 'time')}: {short(seconds)}.",
        seconds,
        0.7,
        evidence={"recompilations": n, "seconds": round(seconds, 6)},
    )


def compilation_time(c: JudgingContext) -> Iterator[Finding]:
    run = c.judged
    seconds = 0.0 if run is None else run.rank.main.phases.compilation_us / 1e6
    if run is None or run.of_run(seconds) < MENTION_SHARE:
        return
    yield c.finding(
        "compilation_time",
        f"Compilation takes {short(seconds)}, {100 * run.of_run(seconds):.0f} % of the run.",
        seconds,
        0.9,
        severity=None if c.is_bound("compilation") else "info",
        evidence={"rank": run.rank.number, "seconds": round(seconds, 6)},
        advice=advise("compilation", case_of(c.job, run.rank)),
    )


def unexplained_time(c: JudgingContext) -> Iterator[Finding]:
    rank = c.rank
    if rank is None:
        return
    seconds = float(rank.stage_us("unexplained").sum()) / 1e6
    wall = float(rank.wall_us.sum()) / 1e6
    if wall <= 0 or seconds / wall < UNSEEN_SHARE:
        return
    yield c.finding(
        "unexplained_time",
        f"{100 * seconds / wall:.0f} % of the step time is not covered by any annotation.",
        seconds,
        1.0,
        severity=None if c.is_bound("unseen") else "info",
        evidence={"rank": rank.number, "unexplained_s": round(seconds, 6), "step_time_s": round(wall, 6)},
        advice=advise("unseen", case_of(c.job, rank)),
    )


RULES = (
    first_step,
    before_first_step,
    epoch_restarts,
    slow_steps,
    cold_first_epoch,
    step_drift,
    exposed_comm,
    transfer_bound,
    user_stage,
    own_code,
    checkpoint_stall,
    between_steps,
    evaluation_time,
    straggler_rank,
    ranks_in_turn,
    device_idle,
    recompiles,
    compilation_time,
    unexplained_time,
)
