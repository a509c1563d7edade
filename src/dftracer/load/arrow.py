"""Chunks as Arrow record batches, directly over the native memory, and the Parquet file that keeps them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dftracer._packages import need
from dftracer.load._scan import Scanner, validity
from dftracer.load.chunk import Chunk
from dftracer.load.find import user_caches
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
_INTS = ("id", "pid", "tid", "ts", "dur", "p_idx", "level", "epoch", "step", "image_idx")
_zero_buffer: Any = None
_IO_INTS = ("count", "size", "offset", "ret", "errno")


def schema() -> pa.Schema:
    """The single Arrow schema for events, whatever dialect they were written in."""
    arrow = need("pyarrow")
    text = arrow.dictionary(arrow.int32(), arrow.string())
    made: pa.Schema = arrow.schema(
        [
            ("name", text),
            ("cat", text),
            ("ph", text),
            ("rank", arrow.int32()),
            *((n, arrow.int64()) for n in _INTS),
            ("path", text),
            *((n, arrow.int64()) for n in _IO_INTS),
            ("fhash", text),
            ("host", text),
            ("file", text),
            ("args", arrow.string()),
        ],
        metadata={"dftracer_schema": str(SCHEMA_VERSION)},
    )
    return made


class BatchMaker:
    """Turns the chunks of one file into record batches; keeps the growing dictionaries."""

    def __init__(self, scanner: Scanner, process: ProcessInfo) -> None:
        self._pa = need("pyarrow")
        self._scanner = scanner
        self._process = process
        self._texts: dict[str, list[str]] = {c: [] for c in ("name", "cat", "hhash", "fhash")}
        self._arrays: dict[str, tuple[int, Any]] = {}
        self._schema = schema()

    def _path_of(self, fhash: str) -> str:
        known = self._process.path_of(fhash)
        if known != fhash:
            return known
        return next((p.paths[fhash] for p in self._process.others.values() if fhash in p.paths), fhash)

    def _dictionary(self, column: str, read: Callable[[str], str] | None = None, known: int = 0) -> Any:
        """The strings behind a column's codes; rebuilt when there are more, or `read` has learnt more."""
        source = {"path": "fhash", "host": "hhash"}.get(column, column)
        texts = self._texts[source]
        texts += self._scanner.dictionary(source, len(texts))
        size, array = self._arrays.get(column, (-1, None))
        if size != len(texts) + known:
            array = _strings(self._pa, texts if read is None else list(map(read, texts)))
            self._arrays[column] = (len(texts) + known, array)
        return array

    def batch(self, chunk: Chunk) -> pa.RecordBatch:
        pa = self._pa
        n = chunk.rows
        columns: dict[str, Any] = {}
        for name in (*_INTS, *_IO_INTS):
            raw = chunk.raw(name)
            if raw is None:
                columns[name] = self._nulls(n, pa.int64())
                continue
            bits, nulls = validity(raw, 8)
            buffers = [None if bits is None else pa.py_buffer(bits), pa.py_buffer(raw)]
            columns[name] = pa.Array.from_buffers(pa.int64(), n, buffers, nulls)
        for name in ("name", "cat", "fhash"):
            columns[name] = self._coded(chunk.raw(name), n, self._dictionary(name))
        process = self._process
        paths = len(process.paths) + sum(len(p.paths) for p in process.others.values())
        columns["path"] = self._coded(chunk.raw("fhash"), n, self._dictionary("path", self._path_of, paths))
        hosts = self._dictionary("host", lambda h: process.hosts.get(h, h), len(process.hosts))
        columns["host"] = self._coded(chunk.raw("hhash"), n, hosts)
        columns["ph"] = self._kinds(chunk)
        columns["file"] = self._constant(n, self._process.file.name)
        columns["rank"] = self._ranks(chunk)
        columns["args"] = self._args(chunk)
        return pa.RecordBatch.from_arrays([columns[f.name] for f in self._schema], schema=self._schema)

    def _ranks(self, chunk: Chunk) -> Any:
        pa, process = self._pa, self._process
        if process.others and chunk.has("pid"):  # a merged file
            of = process.ranks()
            pids, inverse = np.unique(chunk.ints("pid"), return_inverse=True)
            return pa.array([of.get(p) for p in pids.tolist()], pa.int32()).take(pa.array(inverse))
        if process.rank is None:
            return self._nulls(chunk.rows, pa.int32())
        return pa.Array.from_buffers(
            pa.int32(), chunk.rows, [None, pa.py_buffer(np.full(chunk.rows, process.rank, dtype=np.int32))]
        )

    def _coded(self, raw: Any, n: int, dictionary: Any) -> Any:
        pa = self._pa
        if raw is None:
            return pa.DictionaryArray.from_arrays(self._nulls(n, pa.int32()), dictionary)
        bits, nulls = validity(raw, 4)
        buffers = [None if bits is None else pa.py_buffer(bits), pa.py_buffer(raw)]
        codes = pa.Array.from_buffers(pa.int32(), n, buffers, nulls)
        return pa.DictionaryArray.from_arrays(codes, dictionary, safe=False)

    def _constant(self, n: int, text: str) -> Any:
        pa = self._pa
        codes = pa.Array.from_buffers(pa.int32(), n, [None, _zeros(pa, n * 4)])
        return pa.DictionaryArray.from_arrays(codes, _strings(pa, [text]), safe=False)

    def _nulls(self, n: int, kind: Any) -> Any:
        pa = self._pa
        zeros = _zeros(pa, n * 8)
        return pa.Array.from_buffers(kind, n, [zeros, zeros], n)

    def _kinds(self, chunk: Chunk) -> Any:
        pa = self._pa
        values, codes = np.unique(chunk.ph(), return_inverse=True) if not _all_x(chunk) else (None, None)
        if values is None or codes is None:
            return self._constant(chunk.rows, "X")
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32)), _strings(pa, [chr(v) for v in values.tolist()])
        )

    def _args(self, chunk: Chunk) -> Any:
        pa = self._pa
        if chunk.rows == 0:
            return pa.nulls(0, pa.string())
        ends = np.frombuffer(chunk.raw("args_end"), dtype=np.int32)
        if ends[-1] == 0:
            return pa.nulls(chunk.rows, pa.string())
        offsets = np.empty(chunk.rows + 1, dtype=np.int32)
        offsets[0] = 0
        offsets[1:] = ends
        bits = np.packbits(np.diff(offsets) > 0, bitorder="little")
        array = pa.Array.from_buffers(
            pa.string(),
            chunk.rows,
            [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(chunk.raw("args_text"))],
        )
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:  # another writer's bytes that are not UTF-8
            return pa.array([chunk.args_text(i) or None for i in range(chunk.rows)], pa.string())
        return array


def _strings(pa: Any, texts: list[str]) -> Any:
    """Like `pa.array(texts)`, which would import pandas just to see that these are not its own."""
    encoded = [t.encode("utf-8", "replace") for t in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(e) for e in encoded], out=offsets[1:])
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def _zeros(pa: Any, size: int) -> Any:
    """Zeros shared by all columns that contain nothing else: they cost no memory per batch."""
    global _zero_buffer  # noqa: PLW0603 - it only ever grows
    if _zero_buffer is None or _zero_buffer.size < size:
        _zero_buffer = pa.py_buffer(np.zeros(max(size, 1 << 20), dtype=np.uint8))
    return _zero_buffer


def _all_x(chunk: Chunk) -> bool:
    return bool((chunk.ph() == ord("X")).all())


# --- The columnar sidecar: a Parquet file per trace file that makes every later read instant
#
# It is in `.dftracer-cache` next to the trace, or in the user's cache directory if that is not writable.
# A sidecar is used only while the trace has the same size, time and identity as when the sidecar was made.

_ROW_GROUP = 1 << 17


def _fingerprint(file: Path) -> str:
    """Changes whenever the trace does."""
    s = file.stat()
    return f"{SCHEMA_VERSION}:{s.st_size}:{s.st_mtime_ns}:{s.st_ino}"


def _sidecars_of(file: Path) -> list[Path]:
    own = file.parent / ".dftracer-cache" / f"{file.name}.parquet"
    base = user_caches()
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


def find_sidecar(file: Path) -> Path | None:
    """The sidecar of `file` if it exists and is up to date."""
    wanted = _fingerprint(file)
    for sidecar in _sidecars_of(file):
        if sidecar.is_file() and _state(sidecar).get("fingerprint") == wanted:
            return sidecar
    return None


def _state(sidecar: Path) -> dict[str, Any]:
    pq = need("pyarrow.parquet")
    try:
        meta = pq.read_metadata(sidecar).metadata or {}
        state = json.loads(meta.get(b"dftracer", b"{}"))
    except Exception:
        return {}
    return state if isinstance(state, dict) else {}


def write_sidecar(file: Path, batches: Iterable[pa.RecordBatch], process: ProcessInfo) -> Path | None:
    """Write the sidecar of `file` from its batches, a row group at a time; None if nothing can be written.

    `process` is filled while the batches are read, so its facts are stored last.
    """
    pq = need("pyarrow.parquet")
    stamp = _fingerprint(file)
    begun = False
    for sidecar in _sidecars_of(file):
        # Not named after the process: containers that share a directory have equal pids.
        temporary = sidecar.with_name(f".{sidecar.name}.{os.urandom(6).hex()}")
        try:
            sidecar.parent.mkdir(parents=True, exist_ok=True)
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
            if _fingerprint(file) != stamp:
                return None
            temporary.replace(sidecar)
            return sidecar
        except OSError:
            if begun:  # the disk is full, and the batches are used up
                return None
        finally:
            with contextlib.suppress(OSError):  # what is left is only in the way
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
