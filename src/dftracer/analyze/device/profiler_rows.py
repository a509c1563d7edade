"""Profiler events of one process as columns: what ran on the device, and the calls that launched it.

They come from the process's trace, or from the profiler's own files, next to a trace or alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from dftracer._packages import need
from dftracer.analyze.map.own_code import LONG_US
from dftracer.load._scan import arg_numbers, arg_texts
from dftracer.load.chunk import Chunk, Ints, int64s
from dftracer.load.process import ProcessInfo

if TYPE_CHECKING:
    from dftracer.link.columns import ActivityTable


HOST, LAUNCH, KERNEL, MEMCPY, MEMSET, MODULE, FUNCTION = range(7)
# Kinds of events, by the profiler's types.
_TYPES = {
    "kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "cpu_op": HOST,
    "user_annotation": HOST,
    "python_function": MODULE,
}

# The same in the tables that `dftracer link` writes.
_LINKED_KINDS = {
    "op": HOST,
    "annotation": HOST,
    "runtime": LAUNCH,
    "kernel": KERNEL,
    "memcpy": MEMCPY,
    "memset": MEMSET,
}
_NUMBERS = {
    "dur_ns": b'"dur_ns":',
    "correlation": b'"correlation":',
    "device": b'"device_index":',
    "stream": b'"stream":',
}

# In the smallest types that fit: there are as many of them as profiler events.
_COLUMNS = {
    "kind": np.int8,
    "name": np.int32,
    "op": np.int32,
    "start": np.int64,
    "end": np.int64,
    "tid": np.int64,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
}

# What a kernel does, judging by its name; the first matching rule counts.
KERNEL_KINDS: Final = (
    "gemm/conv",
    "attention",
    "elementwise",
    "reduction",
    "optimizer",
    "communication",
    "copy",
    "other",
)

KERNEL_RULES: Final = (
    ("copy", r"^memcpy"),
    ("other", r"^memset"),
    ("communication", r"nccl|rccl|nvshmem|mscclpp|cross_device_reduce|deep_?ep|one_shot_all|two_shot_all"),
    ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|lamb|lion)|adamw?_kernel|lamb_stage"),
    # Before the words below, which also occur among the template arguments of these.
    (
        "elementwise",
        r"^(void )?(at::native::)?(\(anonymous namespace\)::)?(vectorized_|unrolled_)?elementwise",
    ),
    ("reduction", r"^(void )?(at::native::)?reduce_kernel"),
    ("attention", r"flash|fmha|attention|attn|sdpa|\bmha_|paged_kv"),
    (
        "gemm/conv",
        r"gemm|gemv|nvjet|cublas|cutlass|wgmma|xmma|cijk_|conv(?!ert)|winograd|dgrad|wgrad|fprop|splitk"
        r"|matmul|triton_\w*_mm|_mm_kernel|implicit",
    ),
    (
        "reduction",
        r"reduce|reduction|softmax|norm|rowwisemoments|gammabeta|bn_(fw|bw)|argm(ax|in)|nll_loss|entropy"
        r"|\bscan|sort|cub::|topk|triton_(red|per)_|_sum_",
    ),
    (
        "elementwise",
        r"elementwise|pointwise|triton_poi_|functor|catarray|index|gather|scatter|fill|dropout|embedding|copy"
        r"|where|relu|gelu|silu|arange|tril|triu|distribution|bernoulli|im2col|pool|upsample",
    ),
)
_COMPILED: Final = tuple((kind, re.compile(rule, re.IGNORECASE)) for kind, rule in KERNEL_RULES)


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass
class DeviceRows:
    """Times are ns since the epoch; `name` and `op` are indices into `names`, -1 if there is none."""

    names: list[str] = field(default_factory=list)
    kind: Ints = field(default_factory=_none)
    name: Ints = field(default_factory=_none)
    op: Ints = field(default_factory=_none)
    start: Ints = field(default_factory=_none)
    end: Ints = field(default_factory=_none)
    tid: Ints = field(default_factory=_none)
    device: Ints = field(default_factory=_none)
    stream: Ints = field(default_factory=_none)
    correlation: Ints = field(default_factory=_none)
    windows: list[tuple[int, int]] = field(default_factory=list)  # known from outside, otherwise found here

    def __len__(self) -> int:
        return int(self.kind.size)

    def take(self, rows: Any) -> DeviceRows:
        """Some of the rows."""
        columns = {c: getattr(self, c)[rows] for c in _COLUMNS}
        return DeviceRows(self.names, **columns, windows=self.windows)

    def compact(self) -> DeviceRows:
        """The same in less memory."""
        for column, dtype in _COLUMNS.items():
            setattr(self, column, getattr(self, column).astype(dtype, copy=False))
        return self

    @property
    def on_device(self) -> npt.NDArray[np.bool_]:
        flags: npt.NDArray[np.bool_] = (self.kind >= KERNEL) & (self.kind <= MEMSET)
        return flags


def joined(parts: Iterable[DeviceRows]) -> DeviceRows:
    """All parts as one, in order of their start; the parts are empty afterwards."""
    parts = list(parts)
    table = _Names()
    numbers = [np.array([*(table.number(n) for n in part.names), -1], np.int32) for part in parts]
    out = DeviceRows(table.names, windows=[w for part in parts for w in part.windows])
    order: Any = np.argsort(np.concatenate([_none(), *(part.start for part in parts)]), kind="stable")
    for column, dtype in _COLUMNS.items():
        values: list[Any] = []
        for part, number in zip(parts, numbers, strict=True):
            value = getattr(part, column)
            values.append(number[value] if column in ("name", "op") else value.astype(dtype, copy=False))
            setattr(part, column, _none())
        if values:
            setattr(out, column, np.concatenate(values)[order])
    return out


class _Names:
    def __init__(self) -> None:
        self.names: list[str] = []
        self._known: dict[str, int] = {}

    def number(self, name: str) -> int:
        found = self._known.setdefault(name, len(self.names))
        if found == len(self.names):
            self.names.append(name)
        return found


def rows_of_chunk(
    chunk: Chunk, rows: npt.NDArray[np.intp], name: Ints, names: list[str]
) -> DeviceRows | None:
    """The profiler's events among some rows of a trace; `name` are those rows' indices into `names`."""
    # If most are needed, reading all of them costs less than joining the texts of some.
    most = 2 * rows.size > chunk.rows
    ends, text = chunk.args() if most else chunk.args_of(rows)
    ends, mine = ends.astype(np.int64), rows if most else slice(None)
    raw, types = arg_texts(ends, text, b'"type":"')
    kind = np.array([*(_TYPES.get(t, -1) for t in types), -1], np.int64)[int64s(raw)[mine]]
    module = np.array([n.startswith("nn.Module") for n in names], dtype=bool)[name]
    kind[(kind == MODULE) & ~module] = FUNCTION
    long = chunk.ints("dur")[rows] >= LONG_US
    keep = np.flatnonzero((kind >= 0) & ((kind != FUNCTION) | long))
    if keep.size == 0:
        return None
    columns = {column: int64s(arg_numbers(ends, text, key))[mine] for column, key in _NUMBERS.items()}
    raw, ops = arg_texts(ends, text, b'"op":"')
    op = int64s(raw)[mine]
    table = _Names()
    called = np.array([table.number(n) for n in names] or [0], np.int64)
    operators = np.array([*(table.number(n) for n in ops), -1], np.int64)
    start = chunk.ints("ts")[rows] * 1000
    length = np.where(columns["dur_ns"] >= 0, columns["dur_ns"], chunk.ints("dur")[rows] * 1000)
    out = DeviceRows(
        table.names,
        kind,
        called[name],
        operators[op],
        start,
        start + length,
        (chunk.ints("tid") if chunk.has("tid") else chunk.ints("pid"))[rows],
        columns["device"],
        columns["stream"],
        columns["correlation"],
    )
    return out.take(keep).compact()


@dataclass
class TorchProcess:
    """One process as recorded by the profiler."""

    info: ProcessInfo
    rows: DeviceRows


def read_torch_files(kineto: list[Path], linked: list[Path]) -> list[TorchProcess]:
    """The processes of all files; tables are read only for ranks without a Kineto file."""
    found: dict[tuple[str, int], TorchProcess] = {}
    for path in kineto:
        _add(found, _of_kineto(path))
    ranks = {p.info.rank for p in found.values()}
    for path in linked:
        if int(path.stem.rpartition("_")[2]) not in ranks:
            for process in _of_linked(path):
                _add(found, process)
    return [*found.values()]


def attach(
    processes: list[TorchProcess], infos: list[ProcessInfo]
) -> tuple[dict[int, DeviceRows], list[TorchProcess]]:
    """Which rows belong to which traced process (by its pid), and the processes that left no trace."""
    by_pid = Counter(i.pid for i in infos)
    out: dict[int, DeviceRows] = {}
    alone: list[TorchProcess] = []
    for process in processes:
        pid = process.info.pid
        if by_pid[pid] != 1:
            same = [i.pid for i in infos if i.rank is not None and i.rank == process.info.rank]
            pid = same[0] if same else -1
        if pid < 0:
            alone.append(process)
        else:
            out[pid] = joined([out[pid], process.rows]) if pid in out else process.rows
    return out, alone


def _add(found: dict[tuple[str, int], TorchProcess], more: TorchProcess | None) -> None:
    if more is None:
        return
    known = found.get(more.info.key)
    if known is None:
        found[more.info.key] = more
        return
    known.rows = joined([known.rows, more.rows])
    for key, value in more.info.counts.items():
        known.info.counts[key] = known.info.counts.get(key, 0) + value


def _of_kineto(path: Path) -> TorchProcess | None:
    from dftracer.link.kineto import read_kineto  # noqa: PLC0415 - needs the extra `link`

    table = read_kineto(path)
    if len(table) == 0:
        return None
    rows = _rows_of_activities(table)
    rank = table.rank if table.rank is not None else _rank_in(path.name)
    info = _info(path, table.main_pid if table.main_pid is not None else -1, rank, rows)
    info.world_size = table.world_size
    info.host = table.host
    info.threads = {k: v for k, v in table.threads.items() if k > 4096}
    info.counts["bad_lines"] = len(table.repairs.notes)
    return TorchProcess(info, rows)


def _rows_of_activities(table: ActivityTable) -> DeviceRows:
    """The events of a Kineto file."""
    from dftracer.link import columns as a  # noqa: PLC0415 - only where there are such files

    kinds = np.full(
        max(a.OP, a.ANNOTATION, a.RUNTIME, a.KERNEL, a.MEMCPY, a.MEMSET, a.SYNC) + 1, -1, np.int64
    )
    for theirs, ours in (
        (a.OP, HOST),
        (a.ANNOTATION, HOST),
        (a.RUNTIME, LAUNCH),
        (a.KERNEL, KERNEL),
        (a.MEMCPY, MEMCPY),
        (a.MEMSET, MEMSET),
    ):
        kinds[theirs] = ours
    kind = kinds[table.kind]
    name = table.name.astype(np.int64)
    ops = np.flatnonzero((table.kind == a.OP) & (table.external >= 0))
    op = np.full(len(table), -1, np.int64)
    if ops.size:
        order = ops[np.argsort(table.external[ops], kind="stable")]
        keys = table.external[order]
        at = np.minimum(np.searchsorted(keys, table.external), keys.size - 1)
        hit = (keys[at] == table.external) & (table.external >= 0) & (kind >= LAUNCH)
        op[hit] = name[order[at[hit]]]
    span = table.span
    out = DeviceRows(
        list(table.names),
        kind,
        name,
        op,
        table.start,
        table.end,
        table.tid,
        table.device,
        table.stream,
        table.correlation,
        [span] if len(table) else [],
    )
    return out.take(np.flatnonzero(kind >= 0))


def _rank_in(name: str) -> int | None:
    words = name.split(".", maxsplit=1)[0].split("_")
    numbers = [w for w in words[2:3] if w.isdigit()]
    return int(numbers[0]) if numbers else None


def _of_linked(path: Path) -> list[TorchProcess]:
    polars = need("polars")
    columns = ["rank", "window", "kind", "name", "pid", "tid", "device", "stream", "start_ns", "dur_ns"]
    frame = polars.read_parquet(path, columns=[*columns, "correlation", "external_id"])
    frame = frame.with_columns(polars.col("kind", "name").cast(polars.String))
    frame = frame.filter(polars.col("kind").is_in([*_LINKED_KINDS]) & polars.col("start_ns").is_not_null())
    out: list[TorchProcess] = []
    for (pid, _), part in frame.group_by("pid", "window", maintain_order=True):
        if pid is not None:
            out.append(_linked_process(path, int(pid), part.sort("start_ns")))
    return out


def _linked_process(path: Path, pid: int, part: Any) -> TorchProcess:
    names = part["name"].to_list()
    unique = {n: i for i, n in enumerate(dict.fromkeys(names))}
    column = {
        c: part[c].fill_null(-1).to_numpy().astype(np.int64)
        for c in ("tid", "device", "stream", "correlation")
    }
    start = part["start_ns"].to_numpy().astype(np.int64)
    end = start + part["dur_ns"].fill_null(0).to_numpy().astype(np.int64)
    name = np.array([unique[n] for n in names], np.int64)
    kind = np.array([_LINKED_KINDS[k] for k in part["kind"].to_list()], np.int64)
    external = part["external_id"].fill_null(-1).to_numpy()
    of_op = {
        int(e): int(n) for e, n, k in zip(external, name, part["kind"].to_list(), strict=True) if k == "op"
    }
    op = np.array(
        [of_op.get(int(e), -1) if k >= LAUNCH else -1 for e, k in zip(external, kind, strict=True)], np.int64
    )
    rows = DeviceRows(
        [*unique],
        kind,
        name,
        op,
        start,
        end,
        column["tid"],
        column["device"],
        column["stream"],
        column["correlation"],
        [(int(start.min()), int(end.max()))],
    )
    return TorchProcess(_info(path, pid, int(part["rank"][0]), rows), rows)


def _info(path: Path, pid: int, rank: int | None, rows: DeviceRows) -> ProcessInfo:
    info = ProcessInfo(path, pid=pid, rank=rank)
    info.end = {}  # the file is complete: the profiler writes it in one go
    info.counts = {"events": len(rows), "file_bytes": path.stat().st_size}
    return info


@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> str:
    """One of KERNEL_KINDS."""
    for kind, rule in _COMPILED:
        if rule.search(name):
            return kind
    return "other"
