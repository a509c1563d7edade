"""The head of every report in three lines: the verdict, why, and what to try next."""

from __future__ import annotations

from collections.abc import Callable

from dftracer._units import counted, plural
from dftracer.analyze.bound import Bound
from dftracer.analyze.device_bound import device_shares, exact_device, used_unseen
from dftracer.analyze.device_verdict import device_advice, device_reason, device_verdict
from dftracer.analyze.finding import Context, Finding
from dftracer.analyze.ledger import unseen_stages
from dftracer.analyze.parts import Part, View, input_seconds, repeats, user_words
from dftracer.analyze.thresholds import BOUND_SHARE, MAJORITY, MENTION_SHARE
from dftracer.analyze.wording import input_advice, input_words, short, stage_words

__all__ = ["Head", "head"]

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
    "straggler": ("straggler_rank",),
    "between_steps": ("between_steps",),
}
_TRY = {
    "forward": "Look into the model: lower precision (bf16), torch.compile, or profile its operators.",
    "backward": "Look into the model: lower precision (bf16), torch.compile, or profile its operators.",
    "optimizer": "Use a fused or foreach optimizer (fused=True), accumulate gradients, or shard its state.",
    "compute": "Annotate its parts (ai.compute.forward, backward, step) to see which one it is.",
    "transfer": "Pin the memory (pin_memory=True), copy with non_blocking=True, or move less.",
    "comm": "Overlap it with the backward pass, or send less (bf16, larger local batches, fewer syncs).",
    "checkpoint": "Write checkpoints in the background (torch.distributed.checkpoint.async_save), or fewer.",
    "startup": "Cache what is set up before the first step, and judge longer runs.",
    "compilation": "Keep compiled code between runs (a TORCHINDUCTOR_CACHE_DIR that stays), avoid recompiling"
    " (dynamic=True), or compile less of the model.",
    "evaluation": "Evaluate less often or on fewer samples, with torch.inference_mode() and a larger batch.",
    "between_steps": "Annotate what runs there (ai.checkpoint, ai.pipeline.evaluate, your own functions).",
    "other": "Move it out of the step, or overlap it with compute.",
    "unseen": "Annotate more of the step (ai.compute.*, ai.device.transfer, ai.comm.*), or trace with"
    " `dftracer run`.",
}


_LAUNCHING = "On a GPU the host only launches: times of forward, backward and optimizer are not the device's."
_SEE_DEVICE = (
    "Leave DFTRACER_DEVICE_EVENTS on, or record a profiler window (dftracer.python.torch.trace_handler)."
)


def head(c: Context, findings: list[Finding]) -> Head:
    """Verdict, why, what to try."""
    if c.view is None or c.bound is None:
        alone = _device_alone(c)
        if alone is not None:
            return alone
        missing = next((f for f in findings if f.id == "not_enough_evidence"), None)
        if missing is None:
            return _no_training(c)
        return missing.title, _steps_seen(c), missing.advice
    v, bound = c.view, c.bound
    verdict = _sentence(v, bound)
    slow = next((f for f in findings if f.id == "slow_steps" and f.percent >= 100 * MENTION_SHARE), None)
    if bound.part.id not in {"compute", "other", "unseen"}:
        slow = None  # the bound already says so
    if slow is not None:
        verdict = f"{verdict.rstrip('.')}; {slow.title[0].lower()}{slow.title.partition(':')[0][1:]}."
    reason = _reason(bound, findings)
    reason = reason or slow
    if reason is not None:
        return verdict, reason.title, reason.advice
    why = device_reason(v.rank, bound.part.id) or _why(v, bound)
    advice = device_advice(bound.part.id) if device_shares(v.rank) is not None else None
    if used_unseen(v.rank):
        return verdict, _LAUNCHING, _SEE_DEVICE
    return verdict, why, advice or _try(v, bound)


def _no_training(c: Context) -> Head:
    """A program that has nothing to do with training needs no advice on it."""
    n = len(c.job.partials)
    who = "The program" if n == 1 else f"{n} processes"
    calls = 0 if c.files is None else int(c.files["ops"].sum())
    io = (
        f"{counted(calls, 'I/O call')} took {short(float(c.files['time_s'].sum()))}."
        if c.files is not None
        else ""
    )
    return f"{who} ran for {short(c.run_s)} and trained nothing.", io, ""


def _device_alone(c: Context) -> Head | None:
    """What a profiler saw of the device, in a trace without steps."""
    rank = next((r for r in c.job.ranks if exact_device(r)), None)
    shares = None if rank is None else device_shares(rank)
    if rank is None or shares is None:
        return None
    ident = max(shares.parts, key=lambda p: shares.parts[p])
    said = device_verdict(rank, ident, shares.parts[ident], {})
    if said is None:
        return None
    return said, device_reason(rank, ident) or _steps_seen(c), device_advice(ident) or _TRY.get(ident, "")


def _sentence(v: View, b: Bound) -> str:
    p, said = b.part, None
    if not p.of_run:
        said = device_verdict(v.rank, p.id, p.share, input_seconds(v.rank))
    if said is None and p.id == "unseen" and used_unseen(v.rank):
        return (
            f"What the GPU did is not known: {_percent(p.share)} of the steady time launches work on it"
            " or waits for it."
        )
    return said or _VERDICTS[p.id](v, b)


def _steps_seen(c: Context) -> str:
    n = 0 if c.rank is None else len(c.rank.main.steps)
    if n:
        return f"A verdict needs 3 steps; {n} {'was' if n == 1 else 'were'} recorded."
    marks = "neither the body of a fetch.iter loop nor a profiler step nor a compute.step was recorded."
    fetches = c.fetches
    if fetches:
        return f"{plural(fetches, 'batch was', 'batches were')} fetched, but {marks}"
    return f"{marks[0].upper()}{marks[1:]}"


def _reason(bound: Bound, findings: list[Finding]) -> Finding | None:
    """The finding that explains most of what the run is bound by."""
    wanted = _REASONS.get(bound.part.id, ())
    fit = [f for f in findings if f.id in wanted and f.seconds >= MAJORITY * bound.part.seconds]
    return min(fit, key=lambda f: wanted.index(f.id), default=None)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _input(v: View, b: Bound) -> str:
    words = input_words(input_seconds(v.rank))
    return f"The training is input-bound: {_percent(b.part.share)} of the steady time waits for data{words}."


def _compute(v: View, b: Bound) -> str:
    stage = b.part.stage or "compute"
    if b.alone:
        share = _percent(b.part.share)
        return f"No bottleneck outside compute: {stage} is {share} of the steady time{_besides(b)}."
    if stage == "optimizer" and b.part.share >= BOUND_SHARE:
        share = _percent(b.part.share)
        return f"The training is optimizer-bound: the optimizer takes {share} of the steady time."
    return f"{stage.capitalize()} is the largest part ({_percent(b.part.share)}){_besides(b)}."


def _besides(b: Bound) -> str:
    """The parts other than compute that are worth mentioning."""
    told = [_BESIDE[p.id](p) for p in b.beside if p.id in _BESIDE][:2]
    return "; " + " and ".join(told) if told else ""


_BESIDE: dict[str, Callable[[Part], str]] = {
    "input": lambda p: f"{_percent(p.share)} waits for data",
    "transfer": lambda p: f"{_percent(p.share)} is transfer to the device",
    "comm": lambda p: f"{_percent(p.share)} is exposed communication",
    "checkpoint": lambda p: (
        f"checkpointing takes {_percent(p.share)} of the run"
        if p.of_run
        else f"{_percent(p.share)} is checkpointing"
    ),
    "other": lambda p: f"{_percent(p.share)} is {p.stage or 'other work'}",
    "unseen": lambda p: f"{_percent(p.share)} is in no annotated stage",
    "device": lambda p: f"the GPU is busy {_percent(p.share)} of the time",
    "host": lambda p: f"the GPU waits for the host {_percent(p.share)} of the time",
    "compilation": lambda p: f"compilation takes {_percent(p.share)} of the run",
    "evaluation": lambda p: f"evaluation takes {_percent(p.share)} of the run",
    "between_steps": lambda p: f"{_percent(p.share)} of the run lies between steps",
    "startup": lambda p: f"start-up takes {_percent(p.share)} of the run",
}


def _straggler(v: View, b: Bound) -> str:
    late = v.straggler
    assert late is not None
    how = "" if late.chronic else ", occasionally"
    return (
        f"Rank {late.rank.number} is a straggler{how}: the others wait for it {_percent(b.part.share)} of the"
        f" steady time ({stage_words(late.stage)})."
    )


def _startup(v: View, b: Bound) -> str:
    cost = f"{short(b.part.seconds)}, {_percent(b.part.share)} of the run"
    if repeats(v.rank):
        return f"Start-up costs most, and recurs in every epoch: {cost}."
    return f"Start-up costs most: {cost}."


def _other(v: View, b: Bound) -> str:
    name = user_words(v.rank) or "work in no known stage"
    return f"The training is bound by {name}: {_percent(b.part.share)} of the steady time."


_VERDICTS: dict[str, Callable[[View, Bound], str]] = {
    "input": _input,
    "compute": _compute,
    "straggler": _straggler,
    "startup": _startup,
    "other": _other,
    "transfer": lambda v, b: (
        f"The training is transfer-bound: {_percent(b.part.share)} of the steady time"
        " moves data to or from the device."
    ),
    "comm": lambda v, b: (
        f"The training is communication-bound: {_percent(b.part.share)} of the steady time"
        " is exposed communication."
    ),
    "checkpoint": lambda v, b: (
        f"The training is checkpoint-bound: {short(b.part.seconds)},"
        f" {_percent(b.part.share)} of the {'run' if b.part.of_run else 'steady time'}."
    ),
    "compilation": lambda v, b: (
        f"Compilation is the largest part: {short(b.part.seconds)}, {_percent(b.part.share)} of the run."
    ),
    "evaluation": lambda v, b: (
        f"Evaluation is the largest part: {short(b.part.seconds)}, {_percent(b.part.share)} of the run."
    ),
    "between_steps": lambda v, b: (
        f"The time between steps is the largest part: {short(b.part.seconds)},"
        f" {_percent(b.part.share)} of the run, in no step."
    ),
    "unseen": lambda v, b: (
        f"Most of the step cannot be seen: {_percent(b.part.share)} of the steady time"
        " is in no annotated stage."
    ),
}


def _why(v: View, b: Bound) -> str:
    """Both values: what the part takes, and what it is compared with."""
    p, n = b.part, max(1, b.steady_steps)
    step = v.steady_s / n
    if p.of_run and v.steady_s <= 0:
        return f"The run takes {short(v.run_s)}, and none of its steps lies outside of that."
    if p.of_run:
        return (
            f"The run takes {short(v.run_s)}, its {n} steady steps {short(v.steady_s)} of that"
            f" ({short(step)} each)."
        )
    if p.is_compute:
        name = "compute" if v.rank.main.unnamed_compute else "forward"
        told = [f"{name} {short(v.stages_s['forward'] / n)}"] if v.stages_s["forward"] else []
        told += [f"{s} {short(v.stages_s[s] / n)}" for s in ("backward", "optimizer") if v.stages_s[s]]
        # Loading that was not seen did not take no time.
        waiting = v.input_s > 0 or "fetch_wait" not in unseen_stages(v.rank)
        loading = f"; waiting for data {short(v.input_s / n)}" if waiting else ""
        return f"Of each {short(step)} step: {', '.join(told)}{loading}."
    spent = f"{short(p.seconds / n)} of each {short(step)} step"
    return f"{spent}, compute {short(v.compute_s / n)}." if v.compute_s else f"{spent}; no compute was seen."


def _try(v: View, b: Bound) -> str:
    p = b.part
    if p.id == "input":
        advice = input_advice(v.rank, input_seconds(v.rank))
        return f"{advice[0].upper()}{advice[1:]}."
    if p.is_compute:
        if not b.alone:
            beside = next((q for q in b.beside if not q.is_compute), None)
            if beside is not None and p.stage in {"forward", "backward", "compute"} and beside.id == "input":
                advice = input_advice(v.rank, input_seconds(v.rank))
                return f"{advice[0].upper()}{advice[1:]}."
        advice = _TRY[p.stage or "compute"]
        return advice.replace(" torch.compile,", "") if v.rank.main.compiles else advice
    if p.id == "startup" and p.stage == "fetch_wait" and v.rank.workers:
        return f"Start workers once (persistent_workers=True); {_TRY[p.id][0].lower()}{_TRY[p.id][1:]}"
    return _TRY[p.id]
