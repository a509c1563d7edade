"""`hang_<rank>.json`: what a process that stands still writes beside its trace.

The object has the keys of a rank in `dftracer postmortem --json` (rank, state, step, stage, where, since_s,
collective, open_file, exit_code, signal, exception) and

    run, attempt, pid, host, world_size   whose it is
    moved_us, written_us                  when it last moved, and when this was written (us since the epoch)
    went_on_after_s                       null while it stands still; `earlier`: hangs before this one
    patience_s                            DFTRACER_HANG_S
    because_of                            the rank whose hang file triggered this one; null: none
    in_group                              it had joined a process group
    lock_held_by                          tid of the thread that keeps the interpreter lock from all others
    groups, collectives                   torch's own record: how far each group is, the latest collectives
    handling                              the exception that its main thread is cleaning up after
    threads                               tid, name, state, call, path and frames ("file:line function")
    workers                               its child processes: pid, name, state, where, open_file, threads
    events                                the last 50 events of its trace
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = re.compile(r"hang_(\d+)(-.*)?\.json$")
_LARGEST = 64 << 20


def hang_files(directory: Path) -> Iterator[Path]:
    """All of them below a directory."""
    for folder, _, names in os.walk(directory):
        for name in sorted(names):
            if NAME.match(name):
                yield Path(folder, name)


def read_hang_file(path: Path) -> dict[str, Any] | None:
    """What it says; None if it is damaged or something else."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        found = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("threads"), list):
        return None
    for key, kind in (("workers", list), ("events", list), ("groups", list), ("collectives", list)):
        found[key] = (
            [e for e in found[key] if isinstance(e, dict)] if isinstance(found.get(key), kind) else []
        )
    found["threads"] = [_thread(t) for t in found["threads"] if isinstance(t, dict)]
    for worker in found["workers"]:
        threads = worker.get("threads")
        worker["threads"] = [_thread(t) for t in threads or () if isinstance(t, dict)]
    for key in ("rank", "pid", "attempt", "moved_us", "written_us", "step"):
        if type(found.get(key)) is not int:
            found[key] = None
    if not isinstance(found.get("handling"), str):
        found["handling"] = None
    if not isinstance(found.get("collective"), dict):
        found["collective"] = None
    return found


def _thread(thread: dict[str, Any]) -> dict[str, Any]:
    frames = thread.get("frames")
    return {**thread, "frames": [str(f) for f in frames] if isinstance(frames, list) else []}
