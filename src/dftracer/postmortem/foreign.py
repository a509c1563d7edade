"""Files of others beside the traces: TorchElastic's error files, and dumps of torch's flight recorder."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LARGEST = 256 << 20
# <log dir>/<run>/attempt_<n>/<local rank>/error.json
_ERROR = re.compile(r"(?:attempt_(\d+)/)?(\d+)/error\.json$")
# TORCH_FR_DUMP_TEMP_FILE and its older name end with the rank.
_DUMP = re.compile(r"(?:nccl_trace_rank_|fr_trace_rank_|comm_lib_trace_rank_)(\d+)$")
_LINE = re.compile(r'File "([^"]+)", line (\d+), in ')


def elastic_errors(directory: Path) -> dict[int, dict[str, Any]]:
    """By rank, of the last attempt: what `torch.distributed.elastic`'s `@record` wrote."""
    found: dict[int, tuple[int, dict[str, Any]]] = {}
    for path in _files(directory):
        match = _ERROR.search(path.as_posix())
        if match is None:
            continue
        attempt, rank = int(match[1] or 0), int(match[2])
        error = _error(path)
        if error is not None and attempt >= found.get(rank, (-1,))[0]:
            found[rank] = attempt, error
    return {rank: error for rank, (_, error) in found.items()}


def _error(path: Path) -> dict[str, Any] | None:
    try:
        message = json.loads(path.read_text(encoding="utf-8", errors="replace"))["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(message, dict):
        return {"text": str(message), "exception": str(message).partition(":")[0], "time_us": None}
    text = str(message.get("message", ""))
    more = message.get("extraInfo")
    more = more if isinstance(more, dict) else {}
    try:
        time_us = int(more.get("timestamp", 0)) * 1_000_000
    except (TypeError, ValueError):
        time_us = 0
    lines = [m for m in _LINE.findall(str(more.get("py_callstack", ""))) if "-packages/" not in m[0]]
    exception = text.partition(":")[0]
    if lines:
        exception += f" at {os.path.basename(lines[-1][0])}:{lines[-1][1]}"
    return {"text": text.partition(":")[2].strip(), "exception": exception, "time_us": time_us or None}


class _Plain(pickle.Unpickler):
    """Lists, dicts, texts and numbers; a dump holds nothing else, and a pickle may call anything."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into a dump")


def flight_recorder_dumps(directory: Path) -> dict[int, dict[str, Any]]:
    """By rank: how far its groups were, and the collective that was open."""
    found = {}
    for path in _files(directory):
        match = _DUMP.search(path.name)
        trace = _dump(path) if match is not None else None
        if match is None or trace is None:
            continue
        groups = {}
        for group, status in (trace.get("pg_status") or {}).items():
            if isinstance(status, dict):
                groups[str(group)] = (
                    _number(status.get("last_enqueued_collective")),
                    _number(status.get("last_completed_collective")),
                )
        entries = [e for e in trace.get("entries") or () if isinstance(e, dict)]
        waits = next((e for e in entries if not e.get("retired") and e.get("state") != "completed"), None)
        found[int(match[1])] = {"groups": groups, "open": None if waits is None else _collective(waits)}
    return found


def _dump(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _LARGEST:
            return None
        raw = path.read_bytes()
        trace = json.loads(raw) if raw[:1] == b"{" else _Plain(io.BytesIO(raw)).load()
    except (OSError, ValueError, EOFError, pickle.UnpicklingError, IndexError, AttributeError, KeyError):
        return None
    return trace if isinstance(trace, dict) and "entries" in trace else None


def _collective(entry: dict[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group") or [""]
    name = str(entry.get("profiling_name", "")).rpartition(":")[2]
    return {"group": str(group[0]), "seq": _number(entry.get("collective_seq_id")), "op": name, "bytes": None}


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        for name in names:
            if name == "error.json" or "trace_rank_" in name:
                yield Path(folder, name)
