"""What to try, by finding and case: advice fits the case, or is not given.

One table, read top to bottom: the first row of a kind whose condition holds is the advice. `docs/findings.md`
shows it, and every row has a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dftracer.analyze.device.summary import used_unseen, uses_device
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.thresholds import SHORT_ITEM_US


@dataclass(frozen=True)
class Case:
    """What the advice depends on."""

    automatic: bool = False  # recorded by automatic tracing
    gpu: bool = False
    gpu_unseen: bool = False  # a GPU was used, and nothing is known about what it did
    workers: int = 0  # of the loader
    short_items: bool = False  # an item takes microseconds
    background: bool = False  # checkpoints are written by another thread
    compiled: bool = False  # torch.compile is in use
    same_host: bool = True  # all ranks are on one
    place: str = ""  # where the program's own code spends its time
    from_rows: bool = False  # only step rows are left
    items: bool = False  # the items that workers make can be seen


class Row(NamedTuple):
    """Advice on one kind of finding or part."""

    kind: str
    case: str  # in words, for the documentation
    applies: Callable[[Case], bool]
    advice: str


def _always(case: Case) -> bool:
    return True


_MODEL = "Look into the model: lower precision (bf16), torch.compile, or profile its operators."
_MODEL_COMPILED = "Look into the model: lower precision (bf16), or profile its operators."
_GPU_UNSEEN = (
    "Leave DFTRACER_DEVICE_EVENTS on, or record a profiler window (dftracer.python.torch.trace_handler)."
)
_BATCHED = (
    "An item takes microseconds: workers would cost more than they save. Take whole batches at once"
    " (`__getitems__`, slices of one tensor)"
)
_STRAGGLER_HERE = (
    "The ranks share a host: compare its share of the data, its cores and what else runs on them."
)

TABLE: Final = (
    Row("forward", "torch.compile is in use", lambda c: c.compiled, _MODEL_COMPILED),
    Row("forward", "otherwise", _always, _MODEL),
    Row("backward", "torch.compile is in use", lambda c: c.compiled, _MODEL_COMPILED),
    Row("backward", "otherwise", _always, _MODEL),
    Row(
        "optimizer",
        "always",
        _always,
        "Use a fused or foreach optimizer (fused=True), accumulate gradients, or shard its state.",
    ),
    Row(
        "compute",
        "its parts have no names",
        _always,
        "Annotate its parts (ai.compute.forward, backward, step) to see which one it is.",
    ),
    Row("host", "nothing is known about the device", lambda c: c.gpu_unseen, _GPU_UNSEEN),
    Row(
        "host",
        "torch.compile is in use",
        lambda c: c.compiled,
        'Launch less and earlier: CUDA graphs (mode="reduce-overhead"), a larger batch, no .item() or print'
        " in the loop.",
    ),
    Row(
        "host",
        "otherwise",
        _always,
        "Launch less and earlier: torch.compile or CUDA graphs, a larger batch, no .item() or print in the"
        " loop.",
    ),
    Row(
        "device",
        "torch.compile is in use",
        lambda c: c.compiled,
        "Give it less to do: lower precision (bf16, fp8), a better kernel for the ones on top.",
    ),
    Row(
        "device",
        "otherwise",
        _always,
        "Give it less to do: lower precision (bf16, fp8), torch.compile to fuse small kernels, a better"
        " kernel for the ones on top.",
    ),
    Row(
        "dependency",
        "always",
        _always,
        "Look at what the streams wait for: fewer events and synchronisations between them.",
    ),
    Row(
        "transfer",
        "always",
        _always,
        "Pin the memory (pin_memory=True), copy with non_blocking=True, or move less.",
    ),
    Row(
        "comm",
        "always",
        _always,
        "Overlap it with the backward pass, or send less (bf16, larger local batches, fewer syncs).",
    ),
    Row(
        "checkpoint",
        "another thread writes them",
        lambda c: c.background,
        "They are already written in the background: what remains is copying the state. Write less often, or"
        " less of it.",
    ),
    Row(
        "checkpoint",
        "otherwise",
        _always,
        "Write checkpoints in the background (torch.distributed.checkpoint.async_save), or fewer.",
    ),
    Row("startup", "always", _always, "Cache what is set up before the first step, and judge longer runs."),
    Row(
        "compilation",
        "always",
        _always,
        "Keep compiled code between runs (a TORCHINDUCTOR_CACHE_DIR that stays), avoid recompiling"
        " (dynamic=True), or compile less of the model.",
    ),
    Row(
        "evaluation",
        "always",
        _always,
        "Evaluate less often or on fewer samples, with torch.inference_mode() and a larger batch.",
    ),
    Row(
        "between_steps",
        "its place is known",
        lambda c: bool(c.place),
        "Look at {place}: do it less often, or in another thread.",
    ),
    Row(
        "between_steps",
        "recorded automatically",
        lambda c: c.automatic,
        "Look at what the program does between its steps: at the ends of epochs, in callbacks, in logging.",
    ),
    Row(
        "between_steps",
        "annotated by hand",
        _always,
        "Annotate what runs there (ai.checkpoint, ai.pipeline.evaluate, your own functions).",
    ),
    Row("other", "always", _always, "Move it out of the step, or overlap it with compute."),
    Row(
        "own_code",
        "its place is known",
        lambda c: bool(c.place),
        "Look at {place}: move it out of the loop, do it less often, or in another thread.",
    ),
    Row(
        "own_code",
        "its place is not known",
        _always,
        "Look at what the loop does besides training (logging, metrics, preparing batches): move it out of"
        " the loop, or do it less often.",
    ),
    Row(
        "unseen",
        "recorded automatically",
        lambda c: c.automatic,
        "Annotate what the model does (ai.compute.forward): the loop calls no model that could be seen.",
    ),
    Row(
        "unseen",
        "annotated by hand",
        _always,
        "Annotate more of the step (ai.compute.*, ai.device.transfer, ai.comm.*), or trace with"
        " `dftracer run`.",
    ),
    Row(
        "input.sampler",
        "always",
        _always,
        "The sampler is the slow part, not the items: choose indices in advance or in larger pieces; more"
        " workers do not help.",
    ),
    Row("input.read", "an item takes microseconds", lambda c: c.short_items, f"{_BATCHED}."),
    Row(
        "input.read",
        "otherwise",
        _always,
        "Storage is the slow part: fewer and larger reads, a faster or local copy of the data, or {workers}.",
    ),
    Row("input.preprocess", "an item takes microseconds", lambda c: c.short_items, f"{_BATCHED}."),
    Row(
        "input.preprocess",
        "otherwise",
        _always,
        "Preprocessing is the slow part: make it cheaper, do it once and store the result, or use {workers}.",
    ),
    Row(
        "input.collate",
        "without workers",
        lambda c: not c.workers,
        "Collating is the slow part: avoid copies, use larger contiguous samples, or collate in loader"
        " workers.",
    ),
    Row(
        "input.collate",
        "with workers",
        _always,
        "Collating is the slow part: avoid copies, use larger contiguous samples.",
    ),
    Row(
        "input.idle",
        "always",
        _always,
        "The workers are idle while the loop waits: raise prefetch_factor, use persistent_workers, look at"
        " the transfer between processes (large tensors, pickling).",
    ),
    Row(
        "input.unseen",
        "only step rows are left",
        lambda c: c.from_rows,
        "Step rows do not say what makes the batches: record some steps with all events.",
    ),
    Row(
        "input.unseen",
        "recorded automatically",
        lambda c: c.automatic,
        "Look into what makes the batches: a torch DataLoader with workers can prepare them while the model"
        " computes.",
    ),
    Row(
        "input.unseen",
        "annotated by hand, the items of workers too",
        lambda c: c.items and c.workers > 0,
        "Nothing shows what the workers do between their items: annotate the collate_fn (ai.data.collate), or"
        " record with `dftracer run`, which sees collating.",
    ),
    Row(
        "input.unseen",
        "annotated by hand",
        _always,
        "Annotate the dataset (ai.data.item, ai.data.preprocess) to see what the loader does.",
    ),
    Row(
        "straggler.input",
        "always",
        _always,
        "Its loader is slower: compare its workers, its share of the data and its storage path.",
    ),
    Row(
        "straggler.checkpoint",
        "always",
        _always,
        "Only this rank saves: let all ranks write their share, save in the background, or less often.",
    ),
    Row(
        "straggler.own_code",
        "always",
        _always,
        "Only this rank runs that code (logging, metrics, evaluation): move it out of the loop, or do it less"
        " often.",
    ),
    Row("straggler.compute", "the ranks share a host", lambda c: c.same_host, _STRAGGLER_HERE),
    Row(
        "straggler.compute",
        "it has a host of its own",
        _always,
        "Compare its node with the others (clocks, temperature, other processes, its share of the data).",
    ),
)


def advise(kind: str, case: Case) -> str:
    """The advice for a part of the run, or a kind of finding."""
    text = next(row.advice for row in TABLE if row.kind == kind and row.applies(case))
    workers = "more loader workers" if case.workers else "loader workers"
    return text.replace("{workers}", workers).replace("{place}", case.place)


def input_kind(stages: dict[str, float]) -> str:
    """The kind of advice on loading, by what it spends most time in."""
    worst = max(stages, key=lambda s: (stages[s], s)) if stages else "unseen"
    return (
        f"input.{worst}" if worst in {"read", "preprocess", "collate", "idle", "sampler"} else "input.unseen"
    )


def straggler_kind(stage: str) -> str:
    """The kind of advice on a late rank, by the stage in which it is late."""
    if stage in {"fetch_wait", "read", "preprocess", "collate"}:
        return "straggler.input"
    return f"straggler.{stage}" if stage in {"checkpoint", "own_code"} else "straggler.compute"


def case_of(job: Job, rank: Rank, place: str = "") -> Case:
    """The case of a rank; `place`: where its own code spends its time."""
    main = rank.main
    items = [p.items for p in rank.members if p.items.size]
    median = sorted(float(i[i.size // 2]) for i in items)[len(items) // 2] if items else None
    saving = sum(lane["stages"].get("checkpoint", 0) for lane in main.lanes if lane["tid"] != main.steps.tid)
    names = main.names
    compiled = names is not None and names.height and "dynamo" in set(names["cat"].to_list())
    return Case(
        automatic=main.auto,
        gpu=uses_device(rank),
        gpu_unseen=used_unseen(rank),
        workers=len(rank.workers),
        short_items=median is not None and median < SHORT_ITEM_US,
        background=saving > int(rank.stage_us("checkpoint").sum()),
        compiled=bool(compiled),
        same_host=len({r.main.process.host for r in job.ranks}) <= 1,
        place=place,
        from_rows=main.from_rows,
        items=any(w.lane["items"] for w in rank.workers),
    )
