"""Findings about the run as a whole: ranks, communication, checkpoints, time outside steps, the device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from dftracer.analyze.device.summary import device_shares
from dftracer.analyze.intervals import total
from dftracer.analyze.rules.bound import (
    between_seconds,
    input_seconds,
    own_code_places,
    user_event,
    user_words,
)
from dftracer.analyze.rules.finding import Context, Finding, confidence
from dftracer.analyze.say.advice import advise, case_of, input_kind, straggler_kind
from dftracer.analyze.say.wording import short, stage_words
from dftracer.analyze.stages import STAGE_INDEX
from dftracer.analyze.thresholds import DEVICE_IDLE_SHARE, MAJORITY, MENTION_SHARE, UNSEEN_SHARE

# What a device waits for.
_WAITS = {
    "input": "waiting for data",
    "host": "waiting for the host to launch work",
    "comm": "while the host communicates",
    "checkpoint": "while the host writes or reads checkpoints",
    "dependency": "waiting for other streams or events",
}


def exposed_comm(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    exposed = v.rank.account.seconds["comm"]
    if v.share(exposed) < MENTION_SHARE:
        return
    everything = total(v.rank.main.comm) / 1e6
    waiting = round(v.rank.account.seconds["peers"], 6) if len(c.job.ranks) > 1 else None
    spent = float(v.rank.stage_us("comm").sum()) / 1e6
    yield c.finding(
        "exposed_comm",
        f"{100 * v.share(exposed):.0f} % of rank {v.rank.number}'s steady time is communication that"
        " nothing hides.",
        exposed,
        confidence(int(v.rank.main.steps.steady.sum())),
        evidence={
            "rank": v.rank.number,
            "exposed_s": round(exposed, 6),
            "communication_s": round(everything, 6),
            "hidden_s": round(max(0.0, everything - spent), 6),
            "waiting_for_peers_s": waiting,
            "exposed_by_rank_s": {
                str(r.number): round(float(r.stage_us("comm").sum()) / 1e6, 6) for r in c.job.ranks
            },
        },
    )


def transfer_bound(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    seconds, n = v.rank.account.seconds["transfer"], v.rank.account.steps
    if v.share(seconds) < MENTION_SHARE:
        return
    yield c.finding(
        "transfer_bound",
        f"{100 * v.share(seconds):.0f} % of the steady time moves data to or from the device:"
        f" {short(seconds / n)} of each {short(v.rank.account.step_s)} step.",
        seconds,
        confidence(n),
        evidence={
            "rank": v.rank.number,
            "transfer_s": round(seconds, 6),
            "share_of_step_time": round(v.share(seconds), 4),
            "transfer_per_step_s": round(seconds / n, 6),
        },
    )


def user_stage(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None or v.share(v.rank.account.annotated_s) < MENTION_SHARE:
        return
    seconds = v.rank.account.annotated_s
    event = user_event(v.rank)
    if event is None:  # operators of the profiler that belong to no stage
        return
    yield c.finding(
        "user_stage",
        f"{100 * v.share(seconds):.0f} % of the steady time is spent in {user_words(v.rank)}.",
        seconds,
        confidence(int(v.rank.main.steps.steady.sum())),
        evidence={
            "rank": v.rank.number,
            "event": event,
            "seconds": round(seconds, 6),
            "share_of_step_time": round(v.share(seconds), 4),
        },
    )


def own_code(c: Context) -> Iterator[Finding]:
    """The program's own code in steps; between them it is another finding."""
    v = c.view
    if v is None:
        return
    a = v.rank.account
    seconds = a.seconds["own_code"] - a.annotated_s - a.between_of("own_code")
    if v.share(seconds) < MENTION_SHARE:
        return
    places = own_code_places(v.rank)
    first = next(iter(places), "")
    where = f", most of all in {first}" if first else ""
    yield c.finding(
        "own_code",
        f"{100 * v.share(seconds):.0f} % of the steady time is the program's own code{where}.",
        seconds,
        confidence(a.steps),
        evidence={
            "rank": v.rank.number,
            "seconds": round(seconds, 6),
            "share_of_step_time": round(v.share(seconds), 4),
            **({"where_s": {k: round(s, 6) for k, s in [*places.items()][:5]}} if places else {}),
        },
        advice=advise("own_code", case_of(c.job, v.rank, first)),
    )


def checkpoint_stall(c: Context) -> Iterator[Finding]:
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


def between_steps(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    main = v.rank.main
    phases = main.phases
    seconds = between_seconds(v.rank)
    if v.of_run(seconds) < MENTION_SHARE:
        return
    lengths = (phases.gaps[1] - phases.gaps[0])[: -1 if phases.unfinished_us else None] / 1e6
    long = lengths[lengths > 0.1 * lengths.max()]
    yield c.finding(
        "between_steps",
        f"{short(seconds)} of the run ({100 * v.of_run(seconds):.0f} %) are outside steps: {len(long)}"
        f" {'gap' if len(long) == 1 else 'gaps'} of {short(float(np.median(long)))} between or after steps.",
        seconds,
        0.9,
        evidence={
            "rank": v.rank.number,
            "seconds": round(seconds, 6),
            "gaps": len(long),
            "longest_s": round(float(lengths.max()), 6),
        },
        advice=advise("between_steps", case_of(c.job, v.rank)),
    )


def evaluation_time(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None:
        return
    phases = v.rank.main.phases
    seconds = phases.evaluation_us / 1e6
    if v.of_run(seconds) < MENTION_SHARE:
        return
    inside = float(v.rank.main.steps.evaluation.sum()) / 1e6
    yield c.finding(
        "evaluation_time",
        f"Evaluation takes {short(seconds)}, {100 * v.of_run(seconds):.0f} % of the run.",
        seconds,
        0.9,
        severity=None if c.is_bound("evaluation") else "info",
        evidence={"rank": v.rank.number, "seconds": round(seconds, 6), "inside_steps_s": round(inside, 6)},
    )


def straggler_rank(c: Context) -> Iterator[Finding]:
    late = None if c.view is None else c.view.straggler
    if late is None:
        return
    share = late.late / max(1, late.steps)
    how = "chronically" if late.chronic else "occasionally"
    title = (
        f"Rank {late.rank.number} spends {short(late.own_s)} in {stage_words(late.stage)}, the median rank"
        f" {short(late.median_s)}, {how} (in {100 * share:.0f} % of the steps); the others lose"
        f" {short(late.all_lost_s)} waiting for it."
    )
    alone = late.stage == "checkpoint" and late.median_s < late.own_s / 10
    if alone:
        title = (
            f"Rank {late.rank.number} is checkpointing while the others wait: {short(late.own_s)} at a time,"
            f" in {100 * share:.0f} % of the steps; the others lose {short(late.all_lost_s)} waiting for it."
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
    if alone:  # the time of its checkpoints and the waiting for them are one thing
        found.line = "checkpoint"
    yield found


def ranks_in_turn(c: Context) -> Iterator[Finding]:
    v = c.view
    if v is None or v.straggler is not None:
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
    yield c.finding(
        "ranks_in_turn",
        f"The ranks wait for each other in turns, {100 * typical.account.share('peers'):.0f} % of the steady"
        f" time: there is no chronic straggler. Most often {stage_words(stage)} makes one late.",
        seconds,
        confidence(typical.account.steps),
        evidence={
            "stage": stage,
            "waiting_s": {str(r.number): round(sum(r.peers.waiting_s.values()), 6) for r in c.job.ranks},
            "caused_s": {str(r.number): round(sum(r.peers.caused_s.values()), 6) for r in c.job.ranks},
        },
    )


def device_idle(c: Context) -> Iterator[Finding]:
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


def recompiles(c: Context) -> Iterator[Finding]:
    low = pl.col("name").str.to_lowercase()
    hits = c.names.filter(
        low.str.contains("recompil") | ((pl.col("cat") == "dynamo") & low.str.contains("compile"))
    )
    n = int(hits["count"].sum()) if hits.height else 0
    if n < 2:
        return
    seconds = float(hits["total_s"].sum())
    yield c.finding(
        "recompiles",
        f"The model was compiled {n} times.",
        seconds,
        0.7,
        evidence={"compilations": n, "seconds": round(seconds, 6), "names": hits["name"].to_list()[:10]},
    )


def unexplained_time(c: Context) -> Iterator[Finding]:
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
    unexplained_time,
)
