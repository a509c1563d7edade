"""The head of every report in three lines: the verdict, why, and what to try next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dftracer._text import counted, plural
from dftracer.analyze.device.summary import DeviceShares, device_shares, exact_device, used_unseen
from dftracer.analyze.ledger import unseen_stages
from dftracer.analyze.rules.bound import (
    Bound,
    Candidate,
    JudgedRun,
    input_seconds,
    own_code_places,
    repeats,
    user_words,
)
from dftracer.analyze.rules.finding import Finding, JudgingContext
from dftracer.analyze.say.catalog import Case, advise, case_of, input_kind
from dftracer.analyze.say.wording import (
    host_whereabouts,
    input_words,
    percent,
    short,
    short_kernel,
    stage_words,
)
from dftracer.analyze.thresholds import ALWAYS, MAJORITY, MENTION_SHARE, OPTIMIZER_SHARE
from dftracer.load.rows import INFERENCE

Head = tuple[str, str, str]

# Findings that can be the reason for a bound.
_REASONS = {
    "input": (
        "slow_file",
        "slow_items",
        "straggler_worker",
        "cold_first_epoch",
        "rereads",
        "too_few_workers",
        "many_opens",
        "small_reads",
    ),
    "startup": ("epoch_restarts", "first_step"),
    "straggler": ("straggler_rank", "ranks_in_turn"),
    "between_steps": ("between_steps",),
}
_LAUNCHING = "The host only launches GPU work: its forward, backward and optimizer times are not the GPU's."

# While the device idles, by a profiler's account of a trace without steps.
_IDLES = {
    "input": "waiting for data",
    "comm": "while the host communicates",
    "checkpoint": "while the host writes or reads checkpoints",
    "dependency": "with work queued that waits for another stream or an event",
    "unseen": "for reasons that cannot be seen",
    "host": "while the host launches work or runs Python",
}
_NO_LOADER = (
    "Use a torch DataLoader or annotate the loop (ai.dataloader.fetch.iter), so that waiting for data can be"
    " distinguished from Python code."
)


def head(c: JudgingContext, findings: list[Finding]) -> Head:
    """Verdict, why, what to try; `findings`: all of them, symptoms included."""
    if c.judged is None or c.bound is None:
        alone = _device_alone(c)
        if alone is not None:
            return alone
        missing = next((f for f in findings if f.id == "not_enough_evidence"), None)
        if missing is None:
            return _no_training(c)
        return missing.title, _steps_seen(c), missing.advice
    run, bound = c.judged, c.bound
    case = case_of(run.job, run.account_rank, _place(run, bound))
    verdict = _sentence(run, bound)
    slow = next((f for f in findings if f.id == "slow_steps" and f.percent >= 100 * MENTION_SHARE), None)
    if bound.part.id not in {"compute", "other", "unseen"}:
        slow = None  # the bound already says so
    if slow is not None:
        verdict = f"{verdict.rstrip('.')}; {slow.title[0].lower()}{slow.title.partition(':')[0][1:]}."
    reason = _reason(bound, findings) or slow or _start_up(run, bound, findings)
    busy = next((f for f in findings if f.id == "machine_busy" and f.percent >= 100 * MENTION_SHARE), None)
    least = MAJORITY * bound.part.seconds if bound.part.of_run else 0.0  # it waited in the steps
    if busy is not None and busy.seconds >= (least if reason is None else reason.seconds):
        reason = busy  # without a CPU every part takes longer than it would
    if reason is not None:
        return verdict, reason.title, reason.advice
    if bound.part.id == "host" and used_unseen(run.account_rank):
        return verdict, _LAUNCHING, advise("host", case)
    return verdict, _device_reason(run, bound) or _why(run, bound), _try(run, bound, case)


def _no_training(c: JudgingContext) -> Head:
    """A program that has nothing to do with training needs no advice on it."""
    n = len(c.job.partials)
    who = "The program" if n == 1 else f"{n} processes"
    calls = 0 if c.files is None else int(c.files["ops"].sum())
    io = (
        f"{counted(calls, 'I/O call')} took {short(float(c.files['time_s'].sum()))}."
        if c.files is not None
        else ""
    )
    return f"{who} ran for {short(c.run_s)} and did no training.", io, ""


def _device_alone(c: JudgingContext) -> Head | None:
    """What a profiler saw of the device, in a trace without steps."""
    rank = next((r for r in c.job.ranks if exact_device(r)), None)
    shares = None if rank is None else device_shares(rank)
    if rank is None or shares is None:
        return None
    ident = max(shares.parts, key=lambda p: shares.parts[p])
    if ident == "device":
        verdict = (
            f"The GPU is the bottleneck: it is busy {percent(shares.device)} of the time{_kernels(shares)}."
        )
    else:
        verdict = _idles(shares, shares.parts[ident], _IDLES[ident])
    advice = (
        _NO_LOADER if ident == "unseen" else advise(ident if ident != "input" else "input.unseen", Case())
    )
    return verdict, _profiled(shares, ident) or _steps_seen(c), advice


def _idles(d: DeviceShares, share: float, why: str) -> str:
    where = f", most of it in {stage_words(d.phase)}" if d.phase and why == _IDLES["host"] else ""
    return f"The GPU is idle {percent(d.idle)} of the time: {percent(share)} {why}{where}."


def _kernels(d: DeviceShares | None) -> str:
    if d is None or d.kind is None or not d.account.busy_s:
        return ""
    return f"; {d.kind} kernels take {percent(d.account.kernels[d.kind] / d.account.busy_s)} of that"


def _steps_seen(c: JudgingContext) -> str:
    n = 0 if c.rank is None else len(c.rank.main.steps)
    if n:
        return f"A verdict needs 3 steps; {n} {'was' if n == 1 else 'were'} recorded."
    marks = "no training step was recorded (a `fetch.iter` loop body, a profiler step or `compute.step`)."
    fetches = c.fetches
    if fetches:
        return f"{plural(fetches, 'batch was', 'batches were')} fetched, but {marks}"
    return f"{marks[0].upper()}{marks[1:]}"


def _reason(bound: Bound, findings: list[Finding]) -> Finding | None:
    """The finding that explains most of what the run is bound by."""
    wanted = _REASONS.get(bound.part.id, ())
    fit = [f for f in findings if f.id in wanted and f.seconds >= MAJORITY * bound.part.seconds]
    return min(fit, key=lambda f: wanted.index(f.id), default=None)


def _start_up(run: JudgedRun, bound: Bound, findings: list[Finding]) -> Finding | None:
    """What takes longer than all steady steps together: there is little to gain in those."""
    part = next((p for p in bound.beside if p.id == "startup"), None)
    if (
        part is None
        or part.seconds <= run.account.whole_s
        or bound.part.id not in {"compute", "other", "unseen"}
    ):
        return None
    return next(
        (
            f
            for f in findings
            if f.id in {"first_step", "before_first_step"} and f.seconds > MAJORITY * part.seconds
        ),
        None,
    )


def _sentence(run: JudgedRun, b: Bound) -> str:
    return _VERDICTS[b.part.id](run, b)


def _loop(run: JudgedRun) -> str:
    """What the steps do."""
    flags = run.account_rank.main.steps.flags & INFERENCE
    return "The inference" if 2 * np.count_nonzero(flags) > flags.size else "The training"


def _input(run: JudgedRun, b: Bound) -> str:
    words = input_words(input_seconds(run.account_rank))
    n = len(run.account_rank.workers)
    share = percent(b.part.share)
    if not run.account.knows_device:
        return f"{_loop(run)} is input-bound: {share} of the steady time is spent waiting for data{words}."
    if n and words.endswith(")"):
        words = f"{words[:-1]}, {plural(n, 'loader worker')})"
    return f"The GPU waits for data: {share} of the steady time{words}."


def _device(run: JudgedRun, b: Bound) -> str:
    exact = exact_device(run.account_rank)
    verdict = "The GPU is the bottleneck: it"
    if b.part.share >= ALWAYS:
        verdict += " always has work queued"
    else:
        verdict += f" has work queued {percent(b.part.share)} of the time"
    d = device_shares(run.account_rank)
    if not exact or d is None or d.kind is None or not d.account.busy_s:
        return f"{verdict}."
    busy = percent(d.account.kernels[d.kind] / d.account.busy_s)
    return f"{verdict}; {d.kind} kernels take {busy} of its busy time."


def _host(run: JudgedRun, b: Bound) -> str:
    share = percent(b.part.share)
    if used_unseen(run.account_rank):
        return f"GPU activity is unknown: the host launches work or waits for it {share} of the steady time."
    d = device_shares(run.account_rank)
    if exact_device(run.account_rank) and d is not None and d.idle > MENTION_SHARE:
        return _idles(d, min(b.part.share, d.idle), _IDLES["host"])
    where = f", most of it in {stage_words(b.part.stage)}" if b.part.stage else ""
    return (
        f"The GPU waits for the host: for {share} of the time it finishes its work as soon as the host has"
        f" launched it{where}."
    )


def _compute(run: JudgedRun, b: Bound) -> str:
    stage = b.part.stage or "compute"
    whole = max(run.account.whole_s, 1e-9)
    mine = run.account.host.get(stage, b.part.seconds) / whole
    if b.alone:
        return f"No bottleneck outside compute: {stage} is {percent(mine)} of the steady time{_besides(b)}."
    if stage == "optimizer" and mine >= OPTIMIZER_SHARE:
        return f"{_loop(run)} is optimizer-bound: the optimizer takes {percent(mine)} of the steady time."
    if any(p.share > mine for p in b.beside if not p.of_run):
        return f"Compute is the largest part ({percent(b.part.share)}){_besides(b)}."
    return f"{stage.capitalize()} is the largest part ({percent(mine)}){_besides(b)}."


def _besides(b: Bound) -> str:
    """The parts other than compute that are worth mentioning."""
    parts = [_BESIDE[p.id](p) for p in b.beside if p.id in _BESIDE][:2]
    return "; " + " and ".join(parts) if parts else ""


_BESIDE: dict[str, Callable[[Candidate], str]] = {
    "input": lambda p: f"{percent(p.share)} is spent waiting for data",
    "transfer": lambda p: f"{percent(p.share)} is transfer to the device",
    "comm": lambda p: f"{percent(p.share)} is exposed communication",
    "straggler": lambda p: f"{percent(p.share)} is spent waiting for other ranks",
    "checkpoint": lambda p: (
        f"checkpointing takes {percent(p.share)} of the run"
        if p.of_run
        else f"{percent(p.share)} is checkpointing"
    ),
    "own_code": lambda p: f"{percent(p.share)} is the program's own code",
    "other": lambda p: f"{percent(p.share)} is {p.stage or 'other work'}",
    "unseen": lambda p: f"{percent(p.share)} is in no annotated stage",
    "host": lambda p: f"the GPU waits for the host {percent(p.share)} of the time",
    "compilation": lambda p: f"compilation takes {percent(p.share)} of the run",
    "evaluation": lambda p: (
        f"evaluation takes {percent(p.share)} of the run" if p.of_run else f"{percent(p.share)} is evaluation"
    ),
    "between_steps": lambda p: (
        f"{percent(p.share)}{' of the run' if p.of_run else ''} is spent between steps"
    ),
    "startup": lambda p: f"start-up takes {percent(p.share)} of the run",
}


def _straggler(run: JudgedRun, b: Bound) -> str:
    late = run.straggler
    if late is None:
        return (
            f"Ranks take turns waiting for each other, {percent(b.part.share)} of the steady time: none is a"
            " chronic straggler."
        )
    how = "" if late.chronic else ", occasionally"
    return (
        f"Rank {late.rank.number} is a straggler{how}: the others wait for it {percent(b.part.share)} of the"
        f" steady time ({stage_words(late.stage)})."
    )


def _startup(run: JudgedRun, b: Bound) -> str:
    cost = f"{short(b.part.seconds)}, {percent(b.part.share)} of the run"
    if repeats(run.rank):
        return f"Start-up costs the most, and recurs in every epoch: {cost}."
    imports = run.rank.main.phases.imports_us / 1e6
    besides = ", not counting imports" if run.of_run(imports) >= MENTION_SHARE else ""
    return f"Start-up costs the most{besides}: {cost}."


def _after_start(run: JudgedRun, b: Bound) -> str:
    """Imports and set-up are no bottleneck of training, but they may be larger."""
    phases = run.rank.main.phases
    begun = (phases.imports_us + phases.before_us) / 1e6
    return " after the start" if b.part.of_run and begun > b.part.seconds else ""


def _other(run: JudgedRun, b: Bound) -> str:
    name = user_words(run.account_rank) or "work in no known stage"
    return f"{_loop(run)} is bound by {name}: {percent(b.part.share)} of the steady time."


def _own_code(run: JudgedRun, b: Bound) -> str:
    verdict = f"The program's own code is the largest part: {percent(b.part.share)} of the steady time"
    places = own_code_places(run.account_rank)
    if not places:
        return f"{verdict} is in none of the stages of training."
    first = next(iter(places))
    most = "most of it " if places[first] > MAJORITY * sum(places.values()) else ""
    return f"{verdict}, {most}in {first}."


def _checkpoint(run: JudgedRun, b: Bound) -> str:
    share = percent(b.part.share)
    if run.account.knows_device and not b.part.of_run:
        return (
            f"The GPU waits for checkpoints: for {share} of the time the host writes or reads them and the"
            " GPU has at most their copies to do."
        )
    of = "run" if b.part.of_run else "steady time"
    return f"{_loop(run)} is checkpoint-bound: {short(b.part.seconds)}, {share} of the {of}."


def _unseen(run: JudgedRun, b: Bound) -> str:
    what = "Most of the step" if b.part.share > MAJORITY else "The largest part of the step"
    return f"{what} cannot be seen: {percent(b.part.share)} of the steady time is in no annotated stage."


_VERDICTS: dict[str, Callable[[JudgedRun, Bound], str]] = {
    "input": _input,
    "compute": _compute,
    "straggler": _straggler,
    "startup": _startup,
    "other": _other,
    "device": _device,
    "host": _host,
    "own_code": _own_code,
    "checkpoint": _checkpoint,
    "unseen": _unseen,
    "dependency": lambda run, b: (
        f"The GPU waits for itself: {percent(b.part.share)} of the time it has work queued that mostly waits"
        " for another stream or an event."
    ),
    "transfer": lambda run, b: (
        f"{_loop(run)} is transfer-bound: {percent(b.part.share)} of the steady time"
        " is spent moving data to or from the device."
    ),
    "comm": lambda run, b: (
        f"{_loop(run)} is communication-bound: {percent(b.part.share)} of the steady time"
        " is exposed communication."
    ),
    "compilation": lambda run, b: (
        f"Compilation is the largest part{_after_start(run, b)}: {short(b.part.seconds)},"
        f" {percent(b.part.share)} of the run."
    ),
    "evaluation": lambda run, b: (
        f"Evaluation is the largest part{_after_start(run, b)}: {short(b.part.seconds)},"
        f" {percent(b.part.share)} of the {'run' if b.part.of_run else 'time'}."
    ),
    "between_steps": lambda run, b: (
        f"The time between steps is the largest part{_after_start(run, b)}: {short(b.part.seconds)},"
        f" {percent(b.part.share)} of the {'run' if b.part.of_run else 'time'}, in no step"
        f"{f', most of it in {b.part.stage}' if b.part.stage else ''}."
    ),
}


def _profiled(d: DeviceShares, ident: str) -> str | None:
    """What a profiler says about the busy device, or about the host it waits for."""
    a = d.account
    if ident == "device" and a.top:
        kernels = [f"{short_kernel(t['name'])} {percent(t['share'])}" for t in a.top[:3]]
        return f"Largest kernels: {', '.join(kernels)} of the kernel time."
    if ident == "host" and (where := host_whereabouts(a)):
        return (
            f"While the GPU is idle, the host is in {where}; {plural(a.launches, 'launch', 'launches')},"
            f" {a.launch_delay_us or 0:.3g} us each from call to start."
        )
    return None


def _device_reason(run: JudgedRun, b: Bound) -> str | None:
    d = device_shares(run.account_rank)
    if b.part.id not in {"device", "host"} or d is None:
        return None
    if exact_device(run.account_rank):
        return _profiled(d, b.part.id)
    lag = "falls behind the host" if b.part.id == "device" else "keeps up with the host"
    return f"At phase boundaries the device {lag}; a profiler window would name the kernels."


def _why(run: JudgedRun, b: Bound) -> str:
    """Both values: what the part takes, and what it is compared with."""
    p, n = b.part, max(1, b.steps)
    step = run.account.step_s
    if p.of_run and run.whole_s <= 0:
        return f"The run takes {short(run.run_s)}, and all of its steps are part of that."
    if p.of_run or p.id == "evaluation":
        return f"The run takes {short(run.run_s)}, its last {plural(n, 'step')} {short(step)} each."
    stages = run.account.host
    if p.is_compute:
        name = "compute" if run.account_rank.main.unnamed_compute else "forward"
        parts = [f"{name} {short(stages['forward'] / n)}"] if stages["forward"] else []
        parts += [f"{s} {short(stages[s] / n)}" for s in ("backward", "optimizer") if stages[s]]
        # Loading that was not seen may have taken time all the same.
        loaded = run.account.seconds["input"]
        waiting = loaded > 0 or "fetch_wait" not in unseen_stages(run.account_rank)
        loading = f"; waiting for data {short(loaded / n)}" if waiting else ""
        return f"Of each {short(step)} step: {', '.join(parts)}{loading}."
    spent = f"{short(p.seconds / n)} of each {short(step)} step"
    if run.account.whole_s > 1.01 * step * n:  # a part may lie between steps, too
        spent = f"{short(p.seconds / n)} of the {short(run.account.whole_s / n)} from step to step"
    compute = run.account.seconds["host"] + run.account.seconds["device"]
    return f"{spent}, compute {short(compute / n)}." if compute else f"{spent}; no compute was seen."


def _place(run: JudgedRun, b: Bound) -> str:
    if b.part.id == "between_steps":
        return b.part.stage or ""
    return next(iter(own_code_places(run.account_rank)), "") if b.part.id == "own_code" else ""


def _try(run: JudgedRun, b: Bound, case: Case) -> str:
    p, rank = b.part, run.account_rank
    loading = input_kind(input_seconds(rank))
    if p.id == "input":
        return advise(loading, case)
    if p.is_compute:
        if not b.alone and p.stage in {"forward", "backward", "compute"}:
            beside = next((q for q in b.beside if not q.is_compute), None)
            if beside is not None and beside.id == "input":
                return advise(loading, case)
        return advise(p.stage or "compute", case)
    if p.id == "straggler":
        return "Give all ranks the same work between collectives; the ranks table shows who waits."
    if p.id == "startup" and p.stage == "fetch_wait" and rank.workers:
        rest = advise("startup", case)
        return f"Start workers once (persistent_workers=True); {rest[0].lower()}{rest[1:]}"
    return advise(p.id, case)
