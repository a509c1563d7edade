"""Every number that decides what a report says about a run, in one place; source of docs/findings.md.

Shares are of the time they are compared with: of the steady steps, or of the run where noted.
"""

from __future__ import annotations

from typing import Final

# The verdict
ALWAYS: Final = 0.95  # of the time: "always"
COMPUTE_ALONE: Final = 0.85  # compute takes nearly all of the steady time: no bottleneck outside it
OPTIMIZER_SHARE: Final = 0.40  # of the steady time: the training is bound by the optimizer
MENTION_SHARE: Final = 0.10  # below this, a part is not mentioned in the head of a report
SHORT_RUN: Final = 20  # steps; in a shorter run start-up can be the largest cost
FEW_STEPS: Final = 3  # below this, nothing is judged
STEADY_STEPS: Final = 3  # fewer steady steps than this are not separated from the others

# All findings
FINDING_SHARE: Final = 0.01  # of the run; smaller costs are not reported
HIGH_PERCENT: Final = 20.0
MEDIUM_PERCENT: Final = 8.0
LOW_PERCENT: Final = 5.0  # below this, a finding is for information only
MAJORITY: Final = 0.5  # "mostly" needs it

# Steps
SLOW_STEP_FACTOR: Final = 3.0  # times the median step
SLOW_STEP_MAX: Final = 0.25  # of the steps; if there are more, they are not exceptions
DRIFT_STEPS: Final = 24
DRIFT_CHANGE: Final = 0.10
DRIFT_P: Final = 0.01  # how often shuffled steps show such a trend
COLD_FACTOR: Final = 1.3  # times the I/O per step of later epochs

# A loop before training that makes no use of its batches does not evaluate.
UNUSED_BATCH_US: Final = 200  # it asks for the next batch this soon
UNUSED_SHARE: Final = 0.01  # at most this share of its time goes to anything but waiting for batches

# Ranks
ONE_SIDED: Final = 0.5  # a straggler waits at most this share of what the others wait
LATE_STEP: Final = 0.05  # of the step time; a rank that keeps the others waiting longer is late
CHRONIC_SHARE: Final = 0.5  # of the steps

# Loader
WORKERS_BUSY: Final = 0.7
WORKER_FACTOR: Final = 1.5  # times the others' time per item
SHORT_ITEM_US: Final = 200  # handing such an item over costs as much as making it
SLOW_ITEM_FACTOR: Final = 5.0  # times the median item

# Storage
SMALL_READ: Final = 64 << 10  # bytes
SMALL_READS: Final = 100
MANY_OPENS: Final = 100
OPENS_SHARE: Final = 0.2  # of the I/O time
REREAD_FACTOR: Final = 2.0  # opens per epoch, by one rank
SLOW_FILE_FACTOR: Final = 4.0  # times the usual time per byte and per call
SLOW_FILE_MAX: Final = 0.25  # of the files

# Machine
BUSY_SHARE: Final = 0.10  # of the time of the steps, in which they waited for a CPU
THROTTLED_SHARE: Final = 0.10  # of the samples of a GPU
SWAP_RATE: Final = 1 << 20  # bytes per second that are read back
REREAD_BYTES: Final = 32 << 20  # per epoch; less comes from the disk again for other reasons
LIMIT_SHARE: Final = 0.90  # of the memory limit, without the page cache

# Trust
UNSEEN_SHARE: Final = 0.2
DEVICE_IDLE_SHARE: Final = 0.1

# Warm-up, and trainings one after another
WARM_UP_FACTOR: Final = (
    1.5  # steps at the beginning that take this many times as long as later ones are warm-up
)
WARM_UP_STEPS: Final = 3  # which takes at least four times as many steps to tell
TRAINING_STEPS: Final = 5  # on average, for an optimizer made between steps to begin another training
