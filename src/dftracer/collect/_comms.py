"""Plug-in `comms`: every collective, with type, dtype, bytes, group, ranks, sequence number, async or not.

Calls of torch.distributed are timed where the program makes them. What is issued below Python (DDP's buckets,
FSDP, functional collectives) comes from torch's own flight recorder, and its duration, inside windows, from
Kineto. Both know the backend's sequence number, which joins them and is the same on all ranks of a group.
"""

from __future__ import annotations

import array
import bisect
import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from dftracer import _core
from dftracer.collect._plugins import Context, Plugin
from dftracer.format.records import COLLECTIVES_LANE
from dftracer.torch import collectives
from dftracer.torch.collectives import EVENT, Call, counts_messages, issued_by, listen, unlisten
from dftracer.torch.hang import recorded_bytes, recorded_dtype

_BELOW = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_allv": "all_to_all",
    "alltoall_base": "all_to_all",
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "_reduce_scatter_tensor": "reduce_scatter",
}
_POLL_AFTER = 1000  # collectives; torch keeps the last 2000
_LIMIT = 2_000_000
# NCCL keeps a recorder of its own beside the one of the other backends.
_FLIGHT_RECORDERS = ("_dump_nccl_trace", "_dump_fr_trace")
_BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


class Comms(Plugin):
    """Hooks on torch.distributed for the time of the collection."""

    name = "comms"
    below_python = True

    def __init__(self) -> None:
        self.records: dict[tuple[str, int, str], dict[str, Any]] = {}
        self._context: Context | None = None
        self.step_number: int | None = 0
        self._starts = array.array("q")
        self._seen_records: dict[str, int] = {}  # by recorder
        self._seen_total = 0
        self.records_calls = True
        self._flights: dict[str, Callable[..., bytes]] = {}

    # Plug-in --------------------------------------------------------------------------------------

    def start(self, context: Context) -> None:
        self._context = context
        distributed = getattr(context.torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return
        try:
            c10d = importlib.import_module("torch._C._distributed_c10d")
            self._flights = {name: getattr(c10d, name) for name in _FLIGHT_RECORDERS if hasattr(c10d, name)}
        except ImportError:
            self._flights = {}
        if collectives.distributed() is not None:
            self._poll()  # what was before the collection is not part of it
            self.records.clear()
        listen(context.torch, self)

    def step(self, step: int) -> None:
        self.step_number = step + 1
        self._starts.append(_core.time_ns())
        if collectives.distributed() is not None and self._issued() - self._seen_total >= _POLL_AFTER:
            self._poll()

    def window_start(self, index: int, step: int) -> None:
        self.step_number = step

    def window_end(self, index: int, step: int) -> None:
        self._poll()

    def finish(self) -> Iterator[dict[str, Any]] | None:
        try:
            self._poll()
        finally:
            unlisten(self)
        if not self.records:
            return None
        return iter(sorted(self.records.values(), key=lambda r: r["start_us"]))

    # Calls ----------------------------------------------------------------------------------------

    def called(self, call: Call) -> None:
        """One call of torch.distributed has returned."""
        if not self.records_calls:
            return
        group, get = call.group, call.get
        record: dict[str, Any] = {
            "type": call.kind,
            "dtype": call.dtype,
            "bytes": call.in_bytes or call.out_bytes,
            "in_bytes": call.in_bytes,
            "out_bytes": call.out_bytes,
            "group": group["name"],
            "group_desc": group["desc"],
            "ranks": group["ranks"],
            "backend": group["backend"],
            "seq": call.seq,
            "async": not call.waits,
            "start_us": call.start_ns / 1000,
            "dur_us": (call.end_ns - call.start_ns) / 1000,
            "op_dur_us": None,
            "step": self.step_number,
            "source": "call",
        }
        for key in ("src", "dst", "op", "tag"):
            value = get(key)
            if value is None and isinstance(get(f"group_{key}"), int):
                value = group["ranks"][get(f"group_{key}")]
            if value is not None and call.name != "barrier":
                record[key] = value if isinstance(value, int) else str(value)
        self._keep(record)

    def call_failed(self, error: Exception) -> None:
        """After a call that cannot be described, calls are no longer described; the program continues."""
        self.records_calls = False
        if self._context is not None:
            self._context.warn(f"comms: calls are no longer recorded: {type(error).__name__}: {error}")

    def _keep(self, record: dict[str, Any]) -> None:
        if len(self.records) < _LIMIT:
            self.records[record["group"], record["seq"], record["type"]] = record

    # Below Python ---------------------------------------------------------------------------------

    def _issued(self) -> int:
        distributed = collectives.distributed()
        try:
            groups = list(distributed.distributed_c10d._world.pg_map)
        except Exception:
            groups = [known["group"] for known in collectives.groups.known.values()]
        return sum(issued_by(group) or 0 for group in groups)

    def _count_messages(self, entries: list[dict[str, Any]], groups: dict[str, dict[str, Any]]) -> None:
        """What a backend has counted and its recorder has not are sends and receives."""
        for name, group in groups.items():
            issued = issued_by(group["group"]) if counts_messages(group) else None
            if issued is not None:
                own = (e for e in entries if (e.get("process_group") or ("",))[0] == name)
                seen = max((int(e.get("collective_seq_id") or 0) for e in own), default=0)
                collectives.groups.messages[name] = issued - seen

    def _step_at(self, time_ns: int) -> int:
        return bisect.bisect_right(self._starts, time_ns)

    def _poll(self) -> None:
        """Take what torch's flight recorder has that no call of ours has shown."""
        distributed = collectives.distributed()
        if not self._flights or distributed is None:
            return
        self._seen_total = self._issued()
        by_name = {}
        for group in list(getattr(distributed.distributed_c10d._world, "pg_map", {})):
            found = collectives.groups.of(group)
            if found is not None:
                by_name[found["name"]] = found
        for name, dump in [*self._flights.items()]:
            try:
                entries = pickle.loads(dump(True, False, False)).get("entries", [])
            except Exception:
                del self._flights[name]  # an older torch without a recorder for this backend
                continue
            self._count_messages(entries, by_name)
            for entry in entries:
                if entry.get("record_id", -1) > self._seen_records.get(name, -1):
                    self._seen_records[name] = entry["record_id"]
                    self._below(entry, by_name)

    def _below(self, entry: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
        backend, _, kind = str(entry.get("profiling_name", "")).partition(":")
        kind = _BELOW.get(kind, kind)
        names = entry.get("process_group") or ("", "")
        sequence = int(entry.get("collective_seq_id") or 0)
        if entry.get("is_p2p") or (names[0], sequence, kind) in self.records:
            return
        group = groups.get(names[0], {})
        sent = recorded_bytes(entry.get("input_sizes"), entry.get("input_dtypes"))
        received = recorded_bytes(entry.get("output_sizes"), entry.get("output_dtypes"))
        dtype = (entry.get("input_dtypes") or [None])[0]
        start_ns = int(entry.get("time_created_ns") or 0)
        done_ns = entry.get("time_discovered_completed_ns")
        self._keep(
            {
                "type": kind,
                "dtype": recorded_dtype(dtype),
                "bytes": sent or received,
                "in_bytes": sent,
                "out_bytes": received,
                "group": names[0],
                "group_desc": names[1] if len(names) > 1 else "",
                "ranks": group.get("ranks", []),
                "backend": backend,
                "seq": sequence,
                "async": True,
                "start_us": start_ns / 1000,
                "dur_us": (done_ns - start_ns) / 1000 if done_ns else None,
                "op_dur_us": None,
                "step": self._step_at(start_ns),
                "source": "backend",
            }
        )

    def add_kineto_times(self, window: dict[str, Any], events: list[list[Any]], base_ns: int) -> None:
        """How long each collective of a window took, from Kineto's events of it."""
        inside = [
            record
            for record in self.records.values()
            if window["start_us"] <= record["start_us"] <= window["end_us"]
        ]
        for kind in {record["type"] for record in inside}:
            records = sorted((r for r in inside if r["type"] == kind), key=lambda r: r["start_us"])
            for lane in (True, False):  # the device's own time where there is one
                found = sorted(
                    (base_ns / 1000 + ts, dur)
                    for name, ts, dur, _, cat in events
                    if _kind(name) == kind and (cat == "gpu_user_annotation") is lane
                )
                if found:
                    _pair(records, found)
                    break

    def log_backend_events(self) -> None:
        """What was issued below Python, into our trace, on a lane beside the threads."""
        lane = None
        for record in sorted(self.records.values(), key=lambda r: r["start_us"]):
            if record["source"] != "backend":
                continue
            if lane is None:
                lane = COLLECTIVES_LANE
                _core.log_metadata("thread_name", "collectives issued below Python", str(lane), lane)
            args = {key: record[key] for key in ("dtype", "bytes", "group", "seq", "async", "step")}
            args["ranks"] = len(record["ranks"])
            args["issued"] = "below Python"
            _core.log_event(
                EVENT.get(record["type"], record["type"]),
                "comm",
                int(record["start_us"] * 1000),
                int((record["dur_us"] or 0) * 1000),
                args,
                lane,
            )


def _kind(name: str) -> str | None:
    backend, _, kind = name.partition(":")
    return _BELOW.get(kind, kind) if backend in _BACKENDS else None


def _pair(records: list[dict[str, Any]], events: list[tuple[float, float]]) -> None:
    """Both are in the order in which they were issued; where one has more, the nearest belong together."""
    if len(records) == len(events):
        pairs = list(zip(records, events, strict=True))
    else:
        pairs, free = [], list(records)
        for event in events:
            if free:
                nearest = min(free, key=lambda r: abs(r["start_us"] - event[0]))
                free.remove(nearest)
                pairs.append((nearest, event))
    for record, (_, duration) in pairs:
        record["op_dur_us"] = duration
        if record["source"] == "backend":
            record["dur_us"] = duration
