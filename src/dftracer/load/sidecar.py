"""The columnar sidecar: a Parquet file per trace file that makes every later read instant.

It is in `.dftracer-cache` next to the trace, or in the user's cache directory if that is not writable.
A sidecar is used only while the trace has the same size, time and identity as when the sidecar was made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dftracer._packages import need
from dftracer.load.arrow import SCHEMA_VERSION, schema
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    import pyarrow as pa

_ROW_GROUP = 1 << 17


def fingerprint(file: Path) -> str:
    """Changes whenever the trace does."""
    s = file.stat()
    return f"{SCHEMA_VERSION}:{s.st_size}:{s.st_mtime_ns}:{s.st_ino}"


def _places(file: Path) -> list[Path]:
    own = file.parent / ".dftracer-cache" / f"{file.name}.parquet"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    if not _is_text(own.absolute()):  # Parquet libraries accept no other names
        return [base / "dftracer" / f"{digest}.parquet"]
    return [own, base / "dftracer" / f"{digest}-{file.name}.parquet"]


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def find(file: Path) -> Path | None:
    """The sidecar of `file` if it exists and is up to date."""
    wanted = fingerprint(file)
    for place in _places(file):
        if place.is_file() and _state(place).get("fingerprint") == wanted:
            return place
    return None


def _state(place: Path) -> dict[str, Any]:
    pq = need("pyarrow.parquet")
    try:
        meta = pq.read_metadata(place).metadata or {}
        state = json.loads(meta.get(b"dftracer", b"{}"))
    except Exception:
        return {}
    return state if isinstance(state, dict) else {}


def read_info(place: Path, file: Path) -> ProcessInfo:
    """The process facts kept with the sidecar."""
    kept = _state(place).get("process", {})
    return ProcessInfo(
        file,
        pid=kept.get("pid", -1),
        ppid=kept.get("ppid"),
        rank=kept.get("rank"),
        world_size=kept.get("world_size"),
        host=kept.get("host", ""),
        start_us=kept.get("start_us"),
        born_us=kept.get("born_us"),
        end_us=kept.get("end_us"),
        end=kept.get("end"),
        facts=kept.get("facts", {}),
        user_metadata=[(k, v) for k, v in kept.get("user_metadata", [])],
        command=kept.get("command", ""),
        counts=kept.get("counts", {}),
    )


def write(file: Path, batches: Iterable[pa.RecordBatch], process: ProcessInfo) -> Path | None:
    """Write the sidecar of `file` from its batches, a row group at a time; None if nothing can be written.

    `process` is filled while the batches are read, so its facts are stored last.
    """
    pq = need("pyarrow.parquet")
    stamp = fingerprint(file)
    begun = False
    for place in _places(file):
        # Not named after the process: containers that share a directory have equal pids.
        temporary = place.with_name(f".{place.name}.{os.urandom(6).hex()}")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            out = pq.ParquetWriter(
                temporary,
                schema(),
                compression="lz4",
                store_schema=False,  # engines read plain strings faster than dictionaries they must merge
                use_dictionary=["name", "cat", "ph", "path", "fhash", "host", "file"],
            )
            begun = True
            for table in _groups(batches):
                out.write_table(table, row_group_size=_ROW_GROUP)
            out.add_key_value_metadata({"dftracer": json.dumps(_kept(process, stamp))})
            out.close()
            # The trace may have grown while it was read: such a sidecar would be stale from the start.
            if fingerprint(file) != stamp:
                return None
            temporary.replace(place)
            return place
        except OSError:
            if begun:  # the disk is full, and the batches are used up
                return None
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return None


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches combined into row groups: many small ones would be slow to read."""
    arrow = need("pyarrow")
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= _ROW_GROUP:
            yield arrow.Table.from_batches(held).unify_dictionaries()
            held, rows = [], 0
    if held:
        yield arrow.Table.from_batches(held).unify_dictionaries()


def _kept(p: ProcessInfo, stamp: str) -> dict[str, Any]:
    facts = {
        "pid": p.pid,
        "ppid": p.ppid,
        "rank": p.rank,
        "world_size": p.world_size,
        "host": p.host,
        "start_us": p.start_us,
        "born_us": p.born_us,
        "end_us": p.end_us,
        "end": p.end,
        "facts": p.facts,
        "user_metadata": p.user_metadata,
        "command": p.command,
        "counts": p.counts,
    }
    return {"fingerprint": stamp, "process": facts}
