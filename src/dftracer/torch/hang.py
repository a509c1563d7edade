"""What the hang watch (native/module/hang_watch.hpp) is told, and what it may ask once nothing moves.

It needs the process group this rank belongs to, and the times when the program does something that may
take long. Torch's own record of collectives, its flight recorder, is read at the moment of a hang and never
before: that takes the interpreter lock for up to 30 ms.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dftracer import _config, _core, _session
from dftracer._session import before_finalize
from dftracer.torch.patches import Patches, safely

# What `_core.busy_begins` and `_core.busy_ends` are told; the order is that of `Busy` in record/progress.hpp.
COLLECTIVE, BARRIER, CHECKPOINT, COMPILE, _GROUP = range(5)

_SIZES = {
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_registered = _rests = False
_by_hand: Patches | None = None


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch from the first step on, or from the moment the process joins a group."""
    global _registered  # noqa: PLW0603 - one per process
    seconds = _session.SETTINGS.hang_s
    if not seconds or _is_interactive():
        return
    if not _registered:
        _registered = True
        before_finalize(_core.leave_hangs)
    rest_at_forks()
    _core.watch_hangs(seconds, describe, _is_a_rank())
    patches.later(lambda: _core.watch_hangs(0, describe, False))
    distributed: Any = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available():
        patches.around(distributed.distributed_c10d, "init_process_group", _joining)


def rest_at_forks() -> None:
    """Python 3.12 and later warn of a fork in a process with threads: ours are not there at that moment."""
    global _rests  # noqa: PLW0603 - one per process
    if not _rests and sys.version_info >= (3, 12):
        _rests = True
        os.register_at_fork(before=_core.threads_leave, after_in_parent=_core.threads_return)


def install_by_hand(groups: ModuleType) -> None:
    """Watch a program that is annotated by hand, from the moment it joins a group.

    `groups` is torch.distributed.distributed_c10d. Nothing else of torch is observed: whether the program
    moves is seen from what it records.
    """
    global _by_hand  # noqa: PLW0603 - one per process
    if _by_hand is not None or _is_interactive():
        return
    _by_hand = Patches()
    rest_at_forks()
    _core.watch_hangs(_session.SETTINGS.hang_s, describe, False, True)
    _by_hand.later(lambda: _core.watch_hangs(0, describe, False))
    _by_hand.around(groups, "init_process_group", _joining)
    before_finalize(_leave)
    if groups.is_initialized():
        _joined()


def _leave() -> None:
    global _by_hand  # noqa: PLW0603
    _core.leave_hangs()
    if _by_hand is not None:
        _by_hand.take_back()
        _by_hand = None


def _joining(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        safely(_core.busy_begins, _GROUP)
        try:
            result = original(*args, **kwargs)
        finally:
            safely(_core.busy_ends, _GROUP)
        safely(_joined)
        return result

    return init_process_group


def _joined() -> None:
    _core.in_group(sys.modules["torch"].distributed.get_rank())


def _is_interactive() -> bool:
    """People pause between the cells of a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _is_a_rank() -> bool:
    """Whether a launcher started this very process as one of several; not whether one of these has."""
    here = _config.rank_info()
    process = sys.modules.get("multiprocessing.process")
    if here.rank is None or (here.world_size or 1) < 2:
        return False
    if process is not None and process.parent_process() is not None:
        return False
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    above = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
    return _config.rank_info(above).rank != here.rank


def describe() -> tuple[str, str]:
    """JSON for the file of a hang: the collective that this rank waits in, and more members of its object."""
    more: dict[str, Any] = {"thread_names": _thread_names(), "handling": _handled_exception()}
    waits_in = None
    trace = _flight_recorder()
    if trace is not None:
        entries = [e for e in trace.get("entries", ()) if isinstance(e, dict)]
        waits_in = next((_collective(e) for e in entries if _is_open(e)), None)
        more["groups"] = [
            {
                "group": str(group),
                "enqueued": _number(status.get("last_enqueued_collective")),
                "completed": _number(status.get("last_completed_collective")),
            }
            for group, status in trace.get("pg_status", {}).items()
        ]
        more["collectives"] = [_collective(e) for e in entries[-20:]]
    return json.dumps(waits_in), json.dumps(more)[1:-1]


def _thread_names() -> dict[str, str]:
    threading: Any = sys.modules.get("threading")
    # Without its lock, which the program may hang with.
    return {str(t.native_id): t._name for t in list(getattr(threading, "_active", {}).values())}


def _handled_exception() -> str | None:
    """What the main thread is cleaning up after, before anybody is told: `ValueError at train.py:88: why`."""
    threading: Any = sys.modules.get("threading")
    found = sys._current_exceptions().get(threading.main_thread().ident) if threading is not None else None
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11: as `sys.exc_info()`
    error = error or getattr(sys, "last_value", None)  # it has been printed, and the program does not end
    if error is None or isinstance(error, StopIteration):  # loops end this way
        return None
    text, place = _session.told_by(error)
    return (
        type(error).__name__ + (f" at {place.rpartition('/')[2]}" if place else "") + (text and f": {text}")
    )


def _flight_recorder() -> dict[str, Any] | None:
    distributed: Any = sys.modules.get("torch.distributed")
    native: Any = sys.modules.get("torch._C._distributed_c10d")
    if native is None or distributed is None or not distributed.is_initialized():
        return None
    name = "_dump_nccl_trace_json" if "nccl" in str(distributed.get_backend()) else "_dump_fr_trace_json"
    dump = getattr(native, name, None)
    if dump is None:
        return None
    trace = json.loads(dump(includeCollectives=True, onlyActive=False))
    return trace if isinstance(trace, dict) else None


def _is_open(entry: dict[str, Any]) -> bool:
    # Of gloo, the state never changes.
    return not entry.get("retired") and entry.get("state") != "completed"


def _collective(entry: dict[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group") or [""]
    message = entry.get("is_p2p")
    return {
        "group": str(group[0]),
        "seq": entry.get("p2p_seq_id" if message else "collective_seq_id"),
        "op": str(entry.get("profiling_name", "")).rpartition(":")[2],
        "bytes": _bytes(entry),
        "since_us": (entry.get("time_created_ns") or 0) // 1000,
    }


def _bytes(entry: dict[str, Any]) -> int:
    total = 0
    for size, kind in zip(entry.get("input_sizes", ()), entry.get("input_dtypes", ()), strict=False):
        n = _SIZES.get(kind, 4)
        for each in size:
            n *= each
        total += n
    return total


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
