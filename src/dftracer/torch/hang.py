"""What the hang watch (native/module/hang_watch.hpp) needs from Python.

That is the process group of this rank, and when the program does something that may take long.
Torch's own record of collectives, its flight recorder, is read at the moment of a hang and never before: that
takes the interpreter lock for up to 30 ms.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from dftracer import _config, _core, _session
from dftracer._session import before_finalize, is_multiprocessing_child
from dftracer.torch.patches import Patches, safely

# Arguments of `_core.busy_begins` and `_core.busy_ends`, in the order of `Busy` in record/progress.hpp.
COLLECTIVE, BARRIER, CHECKPOINT, COMPILE, _GROUP = range(5)

# The types of tensors as torch's flight recorder spells them: bytes of an item, and torch's own name.
_TYPES = {
    "Byte": (1, "uint8"), "Char": (1, "int8"), "Bool": (1, "bool"), "Short": (2, "int16"), "UInt16": (2, "uint16"),
    "Int": (4, "int32"), "UInt32": (4, "uint32"), "Long": (8, "int64"), "UInt64": (8, "uint64"),
    "Half": (2, "float16"), "BFloat16": (2, "bfloat16"), "Float": (4, "float32"), "Double": (8, "float64"),
    "ComplexHalf": (4, "complex32"), "ComplexFloat": (8, "complex64"), "ComplexDouble": (16, "complex128"),
    "Float8_e4m3fn": (1, "float8_e4m3fn"), "Float8_e4m3fnuz": (1, "float8_e4m3fnuz"),
    "Float8_e5m2": (1, "float8_e5m2"), "Float8_e5m2fnuz": (1, "float8_e5m2fnuz"),
    "Float8_e8m0fnu": (1, "float8_e8m0fnu"),
}  # fmt: skip
_registered = _fork_hooks_set = False
# Who asked for the watch: the session, whose annotations are progress (True), automatic tracing (False).
_asked: set[bool] = set()
_joins: Patches | None = None


def install(torch: ModuleType, patches: Patches) -> None:
    """Watch from the first step on, or from the moment the process joins a group."""
    distributed: Any = getattr(torch, "distributed", None)
    available = distributed is not None and distributed.is_available()
    watch(distributed.distributed_c10d if available else None, by_hand=False)
    patches.on_undo(lambda: unwatch(by_hand=False))


def watch(groups: ModuleType | None, *, by_hand: bool) -> None:
    """Watch for automatic tracing, or a program that is annotated by hand until the end of its session.

    `groups` is torch.distributed.distributed_c10d. Of a program that is annotated by hand nothing else of
    torch is observed: progress is seen from what it records.
    """
    global _joins, _registered  # noqa: PLW0603 - one watch per process
    if not _session.SETTINGS.hang_s or _may_pause() or by_hand in _asked:
        return
    if not _registered:
        _registered = True
        before_finalize(_session_ends)
    pause_threads_around_fork()
    _asked.add(by_hand)
    _set_watch(at_once=not by_hand and _is_a_rank())
    if groups is not None and _joins is None:
        _joins = Patches()
        _joins.around(groups, "init_process_group", _joining)
        if groups.is_initialized():
            _joined()


def unwatch(*, by_hand: bool) -> None:
    """Stop, unless the other one has asked, too."""
    global _joins  # noqa: PLW0603
    if by_hand not in _asked:
        return
    _asked.remove(by_hand)
    if not _asked and _joins is not None:
        _joins.undo_all()
        _joins = None
    _set_watch()


def _set_watch(at_once: bool = False) -> None:
    _core.watch_hangs(_session.SETTINGS.hang_s if _asked else 0, describe, at_once, _asked == {True})


def _session_ends() -> None:
    unwatch(by_hand=True)
    _core.stop_describing_hangs()


def pause_threads_around_fork() -> None:
    """Python 3.12 and later warn of a fork in a process with threads: pause ours meanwhile."""
    global _fork_hooks_set  # noqa: PLW0603 - one per process
    if not _fork_hooks_set and sys.version_info >= (3, 12):
        _fork_hooks_set = True
        os.register_at_fork(before=_core.pause_threads, after_in_parent=_core.resume_threads)


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


def _may_pause() -> bool:
    """People pause between the cells of a notebook, and between lines at a prompt."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _is_a_rank() -> bool:
    """Whether a launcher started this process as one of several ranks; a rank's own children do not count."""
    own = _config.rank_info()
    if own.rank is None or (own.world_size or 1) < 2:
        return False
    if is_multiprocessing_child():
        return False
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return True
    environment = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
    return _config.rank_info(environment).rank != own.rank


def describe() -> tuple[str, str]:
    """JSON for the hang file: the collective that this rank waits in, and further members."""
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
    # Without its lock: the program may hang while it holds that.
    return {str(t.native_id): t._name for t in list(getattr(threading, "_active", {}).values())}


def _handled_exception() -> str | None:
    """What the main thread is cleaning up after, before it is reported: `ValueError at train.py:88: why`."""
    threading: Any = sys.modules.get("threading")
    found = sys._current_exceptions().get(threading.main_thread().ident) if threading is not None else None
    error = found[1] if isinstance(found, tuple) else found  # Python 3.11: as `sys.exc_info()`
    error = error or getattr(sys, "last_value", None)  # already printed, but the process has not ended
    if error is None or isinstance(error, StopIteration):  # loops end this way
        return None
    text, place = _session.describe_exception(error)
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
    # With gloo, the state never changes.
    return not entry.get("retired") and entry.get("state") != "completed"


def _collective(entry: dict[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group") or [""]
    message = entry.get("is_p2p")
    return {
        "group": str(group[0]),
        "seq": entry.get("p2p_seq_id" if message else "collective_seq_id"),
        "op": str(entry.get("profiling_name", "")).rpartition(":")[2],
        "bytes": recorded_bytes(entry.get("input_sizes"), entry.get("input_dtypes")),
        "since_us": (entry.get("time_created_ns") or 0) // 1000,
    }


def recorded_bytes(sizes: Any, types: Any) -> int:
    """The size of tensors in torch's record; 0 for those of an unknown type."""
    total = 0
    for size, kind in zip(sizes or (), types or (), strict=False):
        total += math.prod(size) * _TYPES.get(kind, (0, ""))[0]
    return total


def recorded_dtype(kind: str | None) -> str | None:
    """A type of torch's record under torch's own name."""
    return _TYPES[kind][1] if kind in _TYPES else kind


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
