"""What each kind of finding means, and what to try; source of docs/findings.md.

Kinds are ordered by how specific they are: among findings of about the same cost, the earlier comes first.
Advice is given only where it fits. It is one table, read top to bottom: the first row of a kind whose
condition holds is the advice; every row has a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dftracer.analyze import thresholds as t
from dftracer.analyze.device.summary import used_unseen, uses_device
from dftracer.analyze.job import Job, Rank
from dftracer.analyze.say.wording import percent
from dftracer.load.rows import FORWARD_UNSEEN


class Kind(NamedTuple):
    """One kind of finding."""

    id: str
    meaning: str
    reported_when: str
    evidence: str
    advice: str
    general: bool = False  # says how much, not why: a specific cause goes first


KINDS: Final = (
    Kind(
        "memory_limit",
        "The program comes close to the memory limit of its control group, or was killed at it.",
        f"a process was killed there, or {percent(t.LIMIT_SHARE)} of the limit is in use, not counting the"
        " page cache",
        "`host`, `limit_bytes`, `used_bytes`, `limit_hits`, `oom_kills`, `memory_pressure_s`",
        "Raise the limit, or use less memory: fewer loader workers, a smaller prefetch_factor or batch.",
    ),
    Kind(
        "swapping",
        "The machine is short of memory and moves parts of it to the disk and back.",
        f"{t.SWAP_RATE >> 20} MiB per second or more is read back, and the program waits for pages",
        "`host`, `swapped_in_bytes`, `swapped_out_bytes`, `major_faults`, `memory_pressure_s`",
        "Use less memory (fewer loader workers, smaller caches), or find out what else uses it.",
    ),
    Kind(
        "gpu_throttled",
        "A GPU lowered its clocks because of heat or a power limit.",
        f"in {percent(t.THROTTLED_SHARE)} of the samples it was slowed down by its temperature, its hardware"
        " or the power brake, or by the power limit to less than 80 % of its highest clock",
        "`host`, `device`, `throttled_share`, `reasons`, `sm_mhz`, `sm_max_mhz`",
        "Check cooling, power limits (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE) and the other GPUs"
        " on the node.",
    ),
    Kind(
        "cache_thrash",
        "The data set does not fit into memory: it is read from the disk again in each epoch.",
        f"after the first epoch {t.REREAD_BYTES >> 20} MiB or more per epoch comes from the disk, and"
        f" {percent(t.MAJORITY)} of that is data that the page cache had evicted",
        "`rank`, `epochs`, `read_again_per_epoch_bytes`, `evicted_and_read_again_bytes`, `memory_bytes`",
        "Give it more memory, make the data smaller (compress it, store it at the size it is used), or read"
        " it from faster storage.",
    ),
    Kind(
        "machine_busy",
        "The program waits for a CPU: other programs, or too many threads of its own, keep them busy.",
        f"the training thread, or the loader's workers while it waits for them, waited for a CPU"
        f" {percent(t.BUSY_SHARE)} of the time of the steps; or slow steps are explained by such waiting."
        " What it explains (slow steps, drift, stragglers, slow items) is part of it",
        "`rank`, `cause` (`others`, `own`, `cpu_limit`, `unknown`), `waited_s`, `waited_by_workers_s`,"
        " `waited_for_cpu_share`, `cpus`, `runnable`, `own_cpu_s`, `other_cpu_s`, `cpu_limit`, `throttled_s`,"
        " `slow_steps`",
        "Find out what else runs there (top, other jobs on the node), and measure on a quiet machine.",
    ),
    Kind(
        "slow_file",
        "A few files are much slower to read than the others.",
        f"at most {percent(t.SLOW_FILE_MAX)} of the files take more than {t.SLOW_FILE_FACTOR:.0f} times the"
        " median time per byte and per call",
        "`path`, `read_s`, `reads`, `read_bytes`, `times_slower_per_byte`, `extra_s`, `files`",
        "Check where the file is (another disk or server, stripes, compression) and who else reads it.",
    ),
    Kind(
        "slow_items",
        "A few samples are slow and hold up whole batches.",
        f"of at least 100 items some take more than {t.SLOW_ITEM_FACTOR:.0f} times the median and twice what"
        " 95 % of them take",
        "`items`, `p50_s`, `p99_s`, `max_s`, `slow_items`",
        "Find out what sets these samples apart (size, format, location); a larger prefetch_factor hides"
        " individual slow ones.",
    ),
    Kind(
        "straggler_worker",
        "One loader worker takes longer per item than the others.",
        f"its mean item takes {t.WORKER_FACTOR} times that of the median worker",
        "`rank`, `worker`, `pid`, `mean_item_s`, `others_mean_item_s`, `items`, `kind`, `extra_worker_s`",
        "Check where this worker runs (cores, NUMA node, other jobs) and which samples it gets.",
    ),
    Kind(
        "straggler_rank",
        "The other ranks wait for one that is late.",
        f"it waits less than {percent(t.ONE_SIDED)} of what the others wait, and is late by more than"
        f" {percent(t.LATE_STEP)} of the step; chronic when in {percent(t.CHRONIC_SHARE)} of the steps",
        "`rank`, `stage`, `own_s` and `median_rank_s` per late step, `kind`, `steps_slowest`, `steps`,"
        " `first_step_index`, `mean_work_s`, `lost_by_all_s`",
        "Compare its node with the others (clocks, temperature, other processes, its share of the data).",
    ),
    Kind(
        "ranks_in_turn",
        "Ranks take turns waiting for each other: no single rank is the cause.",
        f"a typical rank waits {percent(t.MENTION_SHARE)} of its steady time for others, and no rank causes"
        " most of it; only where collectives could be matched",
        "`waiting_s` and `caused_s` by rank, `stage` (that makes ranks late most often)",
        "Even out the work of the steps (batches of equal size, rare work less often), or synchronise less"
        " often.",
    ),
    Kind(
        "slow_steps",
        "Some steps take several times as long as the others.",
        f"at most {percent(t.SLOW_STEP_MAX)} of the steady steps take more than {t.SLOW_STEP_FACTOR:.0f}"
        " times the median",
        "`steps`, `slow_steps`, `every` (where they come regularly), `slow_s`, `median_s`, `stage`,"
        " `first_step_index`",
        "Find out what runs only in those steps: logging, metrics, the end of a data shard, garbage"
        " collection.",
        general=True,
    ),
    Kind(
        "epoch_restarts",
        "Each epoch begins with a slow step: the loader starts again.",
        "the first step of most epochs takes more than twice the median step",
        "`epochs`, `restarts`, `first_step_s`, `median_s`, `stage`",
        "Keep loader workers alive with persistent_workers=True, and make the dataset cheap to send to them.",
    ),
    Kind(
        "too_few_workers",
        "The loader workers cannot keep up, or there are none.",
        f"workers are busy {percent(t.WORKERS_BUSY)} of their time, or the main thread loads data itself",
        "`workers`, `busy_share`, `workers_needed`, `busy_per_step_s`, `other_work_per_step_s`",
        "Use more workers if the machine has the cores, or make an item cheaper to load.",
        general=True,
    ),
    Kind(
        "cold_first_epoch",
        "Storage was slower in the first epoch: the data was not cached yet.",
        f"I/O per step takes more than {t.COLD_FACTOR} times that of later epochs, and steps wait for it",
        "`first_epoch_io_s` and `later_io_s` per step, `first_epoch_median_s` and `later_median_s` of"
        " waiting, `epochs`, `steps_in_first_epoch`",
        "Stage the data to local storage or warm the cache before training; measure from the second epoch"
        " on.",
    ),
    Kind(
        "rereads",
        "Files are opened and read several times per epoch.",
        f"a rank opens a file {t.REREAD_FACTOR:.0f} times per epoch or more",
        "`files`, `epochs`, `opens_per_epoch`, `read_again_s`, `read_by_every_rank`, `top`",
        "Cache what is read more than once per epoch (in memory or on local disk), or let one rank read and"
        " share.",
    ),
    Kind(
        "transfer_bound",
        "Moving batches to the device takes a large share of the step.",
        f"{percent(t.MENTION_SHARE)} of the steady steps",
        "`rank`, `transfer_s`, `share_of_step_time`, `transfer_per_step_s`",
        "Pin the memory (pin_memory=True), copy with non_blocking=True, move less (smaller types, augment on"
        " the device), and overlap the copy with compute.",
        general=True,
    ),
    Kind(
        "exposed_comm",
        "Exposed communication, not counting time spent waiting for other ranks.",
        f"{percent(t.MENTION_SHARE)} of the steady steps",
        "`rank`, `exposed_s`, `communication_s`, `hidden_s`, `waiting_for_peers_s`, `exposed_by_rank_s`",
        "Overlap it with the backward pass (bucketed all-reduce, no_sync while accumulating) or send less"
        " (fp16/bf16, larger local batches).",
        general=True,
    ),
    Kind(
        "checkpoint_stall",
        "Training stops while state is saved or loaded.",
        "2 % of the run, or five median steps at once",
        "`rank`, `in_steps_s`, `between_steps_s`, `steps_with_checkpoint`, `longest_in_a_step_s`,"
        " `median_step_s`",
        "Copy the state and write it in the background (torch.distributed.checkpoint.async_save), write less"
        " often, or to faster storage.",
        general=True,
    ),
    Kind(
        "between_steps",
        "Time outside steps: between epochs, or after the last step.",
        f"{percent(t.MENTION_SHARE)} of the run, not counting checkpoints and evaluation",
        "`rank`, `seconds`, `gaps`, `longest_s`, `stage`",
        "Annotate what runs there (ai.checkpoint, ai.pipeline.evaluate, your own functions) to see it.",
        general=True,
    ),
    Kind(
        "user_stage",
        "A user-defined stage takes a large share of the step.",
        f"{percent(t.MENTION_SHARE)} of the steady steps",
        "`rank`, `event`, `seconds`, `share_of_step_time`",
        "Look into that function: move it out of the step, or overlap it with compute.",
        general=True,
    ),
    Kind(
        "own_code",
        "The program's own code, in none of the stages of training, takes a large share of the step.",
        f"{percent(t.MENTION_SHARE)} of the steady steps of a run that was traced automatically",
        "`rank`, `seconds`, `share_of_step_time`, `where_s` (by function and line, as sampled)",
        "Look at what the loop does besides training: move it out of the loop, or do it less often.",
        general=True,
    ),
    Kind(
        "input_bound",
        "Steps wait for data, or load it themselves.",
        f"{percent(t.MENTION_SHARE)} of the steady steps",
        "`rank`, `steps`, `share_of_step_time`, `max_speedup`, `stage`, `stages_s`, `files_while_waiting_s`,"
        " `steps_that_waited`",
        "Find out which part of the loader is slow: storage, preprocessing, collating, or too few workers.",
        general=True,
    ),
    Kind(
        "many_opens",
        "Opening files and other metadata calls take much of the I/O time.",
        f"{t.MANY_OPENS} opens for reading and {percent(t.OPENS_SHARE)} of the I/O time",
        "`opens`, `reads`, `metadata_s`, `io_s`, `opens_per_item`",
        "Keep files open, or put many samples into one file; on parallel file systems an open costs a server"
        " round trip.",
        general=True,
    ),
    Kind(
        "small_reads",
        "Most reads are small.",
        f"{t.SMALL_READS} reads and half of all are below {t.SMALL_READ >> 10} KiB",
        "`reads`, `small_reads`, `small_read_s`, `read_s`, `small_bytes`, `mean_small_bytes`",
        "Read in larger pieces: buffer, memory-map, or pack samples into larger files (tar shards, HDF5"
        " chunks, Parquet).",
        general=True,
    ),
    Kind(
        "recompiles",
        "A part of the model that had been compiled before was compiled again.",
        "any such compilation that takes a visible share of the run",
        "`recompilations`, `seconds`",
        "Keep shapes and flags constant, mark changing dimensions with torch._dynamo.mark_dynamic, or use"
        " torch.compile(dynamic=True); TORCH_LOGS=recompiles names the guard that failed.",
    ),
    Kind(
        "compilation_time",
        "Compilation takes a large share of the run.",
        f"{percent(t.MENTION_SHARE)} of the run",
        "`rank`, `seconds`",
        "Keep compiled code between runs (set TORCHINDUCTOR_CACHE_DIR to a persistent directory), or compile"
        " less of the model.",
        general=True,
    ),
    Kind(
        "device_idle",
        "The device has nothing to do for part of the profiled time.",
        f"{percent(t.DEVICE_IDLE_SHARE)} of the profiled step time",
        "`rank`, `profiled_s`, `idle_s`, `idle` (by what the device waited for)",
        "Check what fills the gaps: loader wait, transfers, or launch-bound small"
        " kernels (try torch.compile or CUDA graphs).",
        general=True,
    ),
    Kind(
        "step_drift",
        "Steps get slower, or faster, over the run.",
        f"{t.DRIFT_STEPS} steady steps, a change of {percent(t.DRIFT_CHANGE)} and a trend that shuffled"
        f" steps show in less than {percent(t.DRIFT_P)} of cases",
        "`first_quarter_median_s`, `last_quarter_median_s`, `change`, `p`, `change_point_step_index`,"
        " `stage`",
        "Look for what grows over time: logging, fragmentation, longer sequences, a cache that fills up.",
    ),
    Kind(
        "first_step",
        "The first step takes several times as long as a usual one.",
        "3 median steps",
        "`first_s`, `median_s`, `stage`",
        "Start-up (workers, caches, compilation) happens once; it matters in short runs.",
    ),
    Kind(
        "before_first_step",
        "Much of the run is spent before the first step.",
        f"{percent(t.MENTION_SHARE)} of the run, not counting evaluation",
        "`rank`, `seconds`, `stage` (if most of it is in one)",
        "Find out what runs there (building the model, listing files, loading the whole dataset), and keep"
        " what can be kept between runs.",
        general=True,
    ),
    Kind(
        "evaluation_time",
        "Evaluation takes a large share of the run.",
        f"{percent(t.MENTION_SHARE)} of the run",
        "`rank`, `seconds`, `inside_steps_s`",
        "Evaluate less often or on fewer samples, with torch.inference_mode() and a larger batch.",
        general=True,
    ),
    Kind(
        "unexplained_time",
        "Part of the step is in no annotated stage.",
        f"{percent(t.UNSEEN_SHARE)} of the step time",
        "`rank`, `unexplained_s`, `step_time_s`",
        "Annotate more of the step (ai.compute.forward, backward, step, ai.device.transfer, ai.comm.*) or"
        " trace it with torch.profiler.",
        general=True,
    ),
    Kind(
        "incomplete_trace",
        "Processes died, files are truncated or events were dropped.",
        "any of them",
        "`processes_without_end`, `recovered_processes`, `died`, `truncated_files`, `dropped`,"
        " `dropped_by_reason`, `bad_lines`, `ranks_missing`",
        "The numbers cover what was recorded. A process without an end was killed or is still running;"
        " `dftracer validate` lists the files, `dftracer repair` closes them.",
    ),
    Kind(
        "not_enough_evidence",
        "Too few steps were recorded to judge the run.",
        f"fewer than {t.FEW_STEPS} steps",
        "`steps`, `events`",
        "Wrap the training loop: `for batch in ai.dataloader.fetch.iter(loader):`, and annotate forward,"
        " backward and the optimizer step.",
    ),
)

FINDING_IDS: Final = tuple(k.id for k in KINDS)
_RANK: Final = {k.id: i for i, k in enumerate(KINDS)}


def specificity(ident: str) -> int:
    """Smaller is more specific."""
    return _RANK[ident]


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
    recompiled: bool = False  # it compiled something again
    same_host: bool = True  # all ranks are on one
    place: str = ""  # where the program's own code spends its time
    waiting: bool = False  # there it waits for another thread or process
    model_unseen: bool = False  # most steps call no model that could be seen
    from_rows: bool = False  # only step rows are left
    items: bool = False  # the items that workers make can be seen


class AdviceRow(NamedTuple):
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
_WAITING = (
    "{place} waits for another thread or process: make what it does cheaper, let several of them do it, or"
    " let it work further ahead."
)
_BATCHED = (
    "An item takes microseconds: workers would cost more than they save. Take whole batches at once"
    " (`__getitems__`, slices of one tensor)"
)
_STRAGGLER_HERE = (
    "The ranks share a host: compare its share of the data, its cores and what else runs on them."
)

ADVICE_TABLE: Final = (
    AdviceRow("forward", "torch.compile is in use", lambda c: c.compiled, _MODEL_COMPILED),
    AdviceRow("forward", "otherwise", _always, _MODEL),
    AdviceRow("backward", "torch.compile is in use", lambda c: c.compiled, _MODEL_COMPILED),
    AdviceRow("backward", "otherwise", _always, _MODEL),
    AdviceRow(
        "optimizer",
        "always",
        _always,
        "Use a fused or foreach optimizer (fused=True), accumulate gradients, or shard its state.",
    ),
    AdviceRow(
        "compute",
        "its parts are not annotated",
        _always,
        "Annotate its parts (ai.compute.forward, backward, step) to see which one it is.",
    ),
    AdviceRow("host", "nothing is known about the device", lambda c: c.gpu_unseen, _GPU_UNSEEN),
    AdviceRow(
        "host",
        "torch.compile is in use",
        lambda c: c.compiled,
        'Launch fewer kernels, and earlier: CUDA graphs (mode="reduce-overhead"), a larger batch, no .item()'
        " or print in the loop.",
    ),
    AdviceRow(
        "host",
        "otherwise",
        _always,
        "Launch fewer kernels, and earlier: torch.compile or CUDA graphs, a larger batch, no .item() or print"
        " in the loop.",
    ),
    AdviceRow(
        "device",
        "torch.compile is in use",
        lambda c: c.compiled,
        "Reduce its work: lower precision (bf16, fp8), faster versions of the top kernels.",
    ),
    AdviceRow(
        "device",
        "otherwise",
        _always,
        "Reduce its work: lower precision (bf16, fp8), torch.compile to fuse small kernels, faster versions"
        " of the top kernels.",
    ),
    AdviceRow(
        "dependency",
        "always",
        _always,
        "Look at what the streams wait for: fewer events and synchronisations between them.",
    ),
    AdviceRow(
        "transfer",
        "always",
        _always,
        "Pin the memory (pin_memory=True), copy with non_blocking=True, or move less.",
    ),
    AdviceRow(
        "comm",
        "always",
        _always,
        "Overlap it with the backward pass, or send less (bf16, larger local batches, fewer syncs).",
    ),
    AdviceRow(
        "checkpoint",
        "another thread writes them",
        lambda c: c.background,
        "They are already written in the background: what remains is copying the state. Write less often, or"
        " less of it.",
    ),
    AdviceRow(
        "checkpoint",
        "otherwise",
        _always,
        "Write checkpoints in the background (torch.distributed.checkpoint.async_save), or less often.",
    ),
    AdviceRow(
        "startup", "always", _always, "Cache what is set up before the first step, and judge longer runs."
    ),
    AdviceRow(
        "compilation",
        "something was compiled again",
        lambda c: c.recompiled,
        "Avoid recompiling (constant shapes, or dynamic=True; TORCH_LOGS=recompiles says why), and keep"
        " compiled code between runs (set TORCHINDUCTOR_CACHE_DIR to a persistent directory).",
    ),
    AdviceRow(
        "compilation",
        "otherwise",
        _always,
        "Keep compiled code between runs (set TORCHINDUCTOR_CACHE_DIR to a persistent directory), or compile"
        " less of the model.",
    ),
    AdviceRow(
        "evaluation",
        "always",
        _always,
        "Evaluate less often or on fewer samples, with torch.inference_mode() and a larger batch.",
    ),
    AdviceRow(
        "between_steps",
        "it waits for another thread or process",
        lambda c: c.waiting,
        _WAITING,
    ),
    AdviceRow(
        "between_steps",
        "its source line is known",
        lambda c: bool(c.place),
        "Look at {place}: do it less often, or in another thread.",
    ),
    AdviceRow(
        "between_steps",
        "recorded automatically",
        lambda c: c.automatic,
        "Look at what the program does between its steps: at the ends of epochs, in callbacks, in logging.",
    ),
    AdviceRow(
        "between_steps",
        "annotated by hand",
        _always,
        "Annotate what runs there (ai.checkpoint, ai.pipeline.evaluate, your own functions).",
    ),
    AdviceRow("other", "always", _always, "Move it out of the step, or overlap it with compute."),
    AdviceRow(
        "own_code",
        "it waits for another thread or process",
        lambda c: c.waiting,
        _WAITING,
    ),
    AdviceRow(
        "own_code",
        "its source line is known, and no model could be seen",
        lambda c: bool(c.place) and c.model_unseen,
        "Look at {place}. The loop calls no model that could be seen: if this is the forward pass, annotate"
        " it (ai.compute.forward).",
    ),
    AdviceRow(
        "own_code",
        "its source line is known",
        lambda c: bool(c.place),
        "Look at {place}: move it out of the loop, do it less often, or in another thread.",
    ),
    AdviceRow(
        "own_code",
        "no model could be seen",
        lambda c: c.model_unseen,
        "Annotate what the model does (ai.compute.forward): the loop calls no model that could be seen.",
    ),
    AdviceRow(
        "own_code",
        "its source line is not known",
        _always,
        "Look at what the loop does besides training (logging, metrics, preparing batches): move it out of"
        " the loop, or do it less often.",
    ),
    AdviceRow(
        "unseen",
        "recorded automatically",
        lambda c: c.automatic,
        "Annotate what the model does (ai.compute.forward): the loop calls no model that could be seen.",
    ),
    AdviceRow(
        "unseen",
        "annotated by hand",
        _always,
        "Annotate more of the step (ai.compute.*, ai.device.transfer, ai.comm.*), or trace with"
        " `dftracer run`.",
    ),
    AdviceRow(
        "input.sampler",
        "always",
        _always,
        "The sampler is the slow part, not the items: precompute the indices, or draw them in larger chunks;"
        " more workers do not help.",
    ),
    AdviceRow("input.read", "an item takes microseconds", lambda c: c.short_items, f"{_BATCHED}."),
    AdviceRow(
        "input.read",
        "otherwise",
        _always,
        "Storage is the slow part: fewer and larger reads, a faster or local copy of the data, or {workers}.",
    ),
    AdviceRow("input.preprocess", "an item takes microseconds", lambda c: c.short_items, f"{_BATCHED}."),
    AdviceRow(
        "input.preprocess",
        "otherwise",
        _always,
        "Preprocessing is the slow part: make it cheaper, do it once and store the result, or use {workers}.",
    ),
    AdviceRow(
        "input.collate",
        "without workers",
        lambda c: not c.workers,
        "Collating is the slow part: avoid copies, use larger contiguous samples, or collate in loader"
        " workers.",
    ),
    AdviceRow(
        "input.collate",
        "with workers",
        _always,
        "Collating is the slow part: avoid copies, use larger contiguous samples.",
    ),
    AdviceRow(
        "input.idle",
        "always",
        _always,
        "The workers are idle while the loop waits: raise prefetch_factor, use persistent_workers, check"
        " the cost of passing batches between processes (large tensors, pickling).",
    ),
    AdviceRow(
        "input.unseen",
        "only step rows are left",
        lambda c: c.from_rows,
        "Step rows do not say what makes the batches: record some steps with all events.",
    ),
    AdviceRow(
        "input.unseen",
        "recorded automatically",
        lambda c: c.automatic,
        "Look into what makes the batches: a torch DataLoader with workers can prepare them while the model"
        " computes.",
    ),
    AdviceRow(
        "input.unseen",
        "annotated by hand, the items of workers too",
        lambda c: c.items and c.workers > 0,
        "Nothing shows what the workers do between their items: annotate the collate_fn (ai.data.collate), or"
        " record with `dftracer run`, which sees collating.",
    ),
    AdviceRow(
        "input.unseen",
        "annotated by hand",
        _always,
        "Annotate the dataset (ai.data.item, ai.data.preprocess) to see what the loader does.",
    ),
    AdviceRow(
        "straggler.input",
        "always",
        _always,
        "Its loader is slower: compare its workers, its share of the data and its storage path.",
    ),
    AdviceRow(
        "straggler.checkpoint",
        "always",
        _always,
        "Only this rank saves: let all ranks write their share, save in the background, or less often.",
    ),
    AdviceRow(
        "straggler.own_code",
        "always",
        _always,
        "Only this rank runs that code (logging, metrics, evaluation): move it out of the loop, or do it less"
        " often.",
    ),
    AdviceRow("straggler.compute", "the ranks share a host", lambda c: c.same_host, _STRAGGLER_HERE),
    AdviceRow(
        "straggler.compute",
        "it has a host of its own",
        _always,
        "Compare its node with the others (clocks, temperature, other processes, its share of the data).",
    ),
)


def advise(kind: str, case: Case) -> str:
    """The advice for a part of the run, or a kind of finding."""
    text = next(row.advice for row in ADVICE_TABLE if row.kind == kind and row.applies(case))
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
    dynamo = set() if names is None else set(names.filter(names["cat"] == "dynamo")["name"].to_list())
    return Case(
        automatic=main.auto,
        gpu=uses_device(rank),
        gpu_unseen=used_unseen(rank),
        workers=len(rank.workers),
        short_items=median is not None and median < t.SHORT_ITEM_US,
        background=saving > int(rank.stage_us("checkpoint").sum()),
        compiled=bool(dynamo),
        recompiled="recompile" in dynamo,
        same_host=len({r.main.process.host for r in job.ranks}) <= 1,
        place=place,
        waiting=bool(place) and main.samples.waits_at(place),
        model_unseen=bool((main.steps.flags & FORWARD_UNSEEN != 0).sum() > t.MAJORITY * len(main.steps)),
        from_rows=main.from_rows,
        items=any(w.lane["items"] for w in rank.workers),
    )
