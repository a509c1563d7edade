"""The kinds of findings: what each means, its evidence and what to try; source of docs/findings.md.

They are ordered by how specific they are: among findings of about the same cost, the earlier comes first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dftracer.analyze import thresholds as t
from dftracer.analyze.say.wording import percent


class Kind(NamedTuple):
    """One kind of finding."""

    id: str
    means: str
    made_when: str
    evidence: str
    advice: str
    general: bool = False  # says how much, not why: a specific one with most of its time comes first


KINDS: Final = (
    Kind(
        "memory_limit",
        "The program comes close to the memory limit of its control group, or was killed at it.",
        f"a process was killed there, or {percent(t.LIMIT_SHARE)} of the limit are in use, not counting the"
        " page cache",
        "`host`, `limit_bytes`, `used_bytes`, `limit_hits`, `oom_kills`, `memory_pressure_s`",
        "Raise the limit, or use less memory: fewer loader workers, a smaller prefetch_factor or batch.",
    ),
    Kind(
        "swapping",
        "The machine is short of memory and moves parts of it to the disk and back.",
        f"{t.SWAP_RATE >> 20} MiB per second or more are read back, and the program waits for pages",
        "`host`, `swapped_in_bytes`, `swapped_out_bytes`, `major_faults`, `memory_pressure_s`",
        "Use less memory (fewer loader workers, smaller caches), or find out what else uses it.",
    ),
    Kind(
        "gpu_throttled",
        "A GPU lowered its clocks: too hot, or at a power limit.",
        f"in {percent(t.THROTTLED_SHARE)} of the samples it was slowed down by its temperature, its hardware"
        " or the power brake, or by the power limit to less than 80 % of its highest clock",
        "`host`, `device`, `throttled_share`, `reasons`, `sm_mhz`, `sm_max_mhz`",
        "Check cooling, power limits (nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE) and the other GPUs"
        " of the node.",
    ),
    Kind(
        "cache_thrash",
        "The data set does not fit into memory: it is read from the disk again in each epoch.",
        f"after the first epoch {t.REREAD_BYTES >> 20} MiB or more per epoch come from the disk, and"
        f" {percent(t.MAJORITY)} of that is data that the page cache had to give up",
        "`rank`, `epochs`, `read_again_per_epoch_bytes`, `evicted_and_read_again_bytes`, `memory_bytes`",
        "Give it more memory, make the data smaller (compress it, store it at the size it is used), or read"
        " it from faster storage.",
    ),
    Kind(
        "machine_busy",
        "The program waits for a CPU: something else, or too much of its own, runs on them.",
        f"the training thread, or the loader's workers while it waits for them, waited for a CPU"
        f" {percent(t.BUSY_SHARE)} of the time of the steps; or slow steps are explained by such waiting."
        " What it explains (slow steps, drift, stragglers, slow items) is part of it",
        "`rank`, `cause` (`others`, `own`, `cpu_limit`, `unknown`), `waited_s`, `waited_by_workers_s`,"
        " `waited_for_cpu_share`, `cpus`, `runnable`, `own_cpu_s`, `other_cpu_s`, `cpu_limit`, `throttled_s`,"
        " `slow_steps`",
        "Find out what else runs there (top, other jobs of the node), and measure on a quiet machine.",
    ),
    Kind(
        "slow_file",
        "A few files are much slower to read than the others.",
        f"at most {percent(t.SLOW_FILE_MOST)} of the files take more than {t.SLOW_FILE_FACTOR:.0f} times the"
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
        "The ranks wait for each other, now for one and now for another: there is no chronic straggler.",
        f"a typical rank waits {percent(t.MENTION_SHARE)} of its steady time for others, and no rank causes"
        " most of it; only where collectives could be matched",
        "`waiting_s` and `caused_s` by rank, `stage` (that makes ranks late most often)",
        "Make the work of a step more even (batches of like size, less often what only some steps do), or"
        " synchronise less often.",
    ),
    Kind(
        "slow_steps",
        "Some steps take several times as long as the others.",
        f"at most {percent(t.SLOW_STEP_MOST)} of the steady steps take more than {t.SLOW_STEP_FACTOR:.0f}"
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
        "The model was compiled several times.",
        "two compilations",
        "`compilations`, `seconds`, `names`",
        "Keep shapes and flags constant, mark changing dimensions with torch._dynamo.mark_dynamic, or use"
        " torch.compile(dynamic=True); TORCH_LOGS=recompiles names the guard that failed.",
    ),
    Kind(
        "device_idle",
        "The device has nothing to do for part of the profiled time.",
        f"{percent(t.DEVICE_IDLE_SHARE)} of the profiled step time",
        "`rank`, `profiled_s`, `idle_s`, `idle` (by what the device waited for)",
        "Check which stage of the ledger fills the gaps: loader wait, transfers, or launch-bound small"
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
        "Look for what grows with time: logging, fragmentation, longer sequences, a cache that fills.",
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
        "Much of the run is over before its first step.",
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
_PLACE: Final = {k.id: i for i, k in enumerate(KINDS)}


def specificity(ident: str) -> int:
    """Smaller is more specific."""
    return _PLACE[ident]
