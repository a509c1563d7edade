"""The contents of a directory: each rank's files, by their names or, if names say nothing, by content."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.format.records import MAX_RANKS
from dftracer.format.torch_files import EXPORTED, is_set_aside
from dftracer.link._json_stream import Repairs, read_blocks

_NAMED = re.compile(r"(torch_et|kineto_trace|nsys)_(\d{1,9})(?:_w(\d{1,9}))?\.")
_RANK = re.compile(r"(?:rank|tp)[-_ ]?(\d{1,9})", re.IGNORECASE)
_HOST_PID = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|user_annotation|Operator)"[^{}]*?"pid"\s*:\s*(\d{1,18})(?!\d)'
)
_SKIP = re.compile(r"manifest(_\d+)?\.json|timeline\.json\.gz|.*\.part$")
_HEAD = 1 << 18
_SIGNED = 256  # bytes
_LARGEST_MANIFEST = 64 << 20
_LONGEST_ERROR_NS = 1 << 62


class NothingToLink(FileNotFoundError):
    """There is no PyTorch trace under the given directory."""


@dataclass
class TorchFile:
    """One file of torch's profiler, of its execution trace observer or of nsys: what its name and head say."""

    path: Path
    kind: str  # "et", "kineto" or "nsys"
    rank: int | None = None
    window: int | None = None
    named_rank: int | None = None
    pid: int | None = None
    world_size: int | None = None
    started: float = 0.0  # to bring windows without a number into order


@dataclass
class RankFiles:
    """The files of one rank, in the order of their windows."""

    rank: int
    et: list[TorchFile] = field(default_factory=list)
    activity: list[TorchFile] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)  # our own
    comms: list[Path] = field(default_factory=list)
    world_size: int | None = None
    host: str = ""
    clock_error_ns: int | None = None
    times_only: set[int] = field(
        default_factory=set
    )  # windows recorded without an execution trace on purpose


@dataclass
class Found:
    """All ranks of a directory."""

    directory: Path
    ranks: dict[int, RankFiles]
    world_size: int
    warnings: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """Ranks of the job without any file."""
        if self.world_size > MAX_RANKS:  # a damaged number
            return []
        return sorted(set(range(self.world_size)) - set(self.ranks))


def discover(directory: Path) -> Found:
    """Look at the names and heads of all files."""
    if not directory.is_dir():
        raise NothingToLink(f"{directory} is not a directory")
    warnings: list[str] = []
    torch_files: list[TorchFile] = []
    reports: list[Path] = []
    for path in _files(directory):
        if path.name.endswith((".json", ".json.gz")) and not _SKIP.fullmatch(path.name):
            file = _look(path)
            if file is not None:
                torch_files.append(file)
        elif path.suffix in (".sqlite", ".db"):
            found = _NAMED.match(path.name)
            if found or _is_nsys(path):
                torch_files.append(_name_facts(TorchFile(path, "nsys")))
        elif path.suffix == ".nsys-rep":
            reports.append(path)
    for report in reports:
        if not report.with_suffix(".sqlite").exists():
            warnings.append(f"{report.name} is not exported: run `nsys export --type sqlite {report.name}`")
    if not torch_files:
        raise NothingToLink(
            f"no execution trace, profiler trace or nsys export under {directory}."
            " Record with `dftracer collect`, or with torch.profiler and ExecutionTraceObserver"
        )
    traces = _our_traces(directory)
    _assign_ranks(torch_files, traces, warnings)
    ranks = _by_rank(torch_files)
    _add_traces(ranks, traces, torch_files)
    _add_manifests(directory, ranks, warnings)
    world = max(
        [len(ranks), *(s.world_size or 0 for s in torch_files), *(r.world_size or 0 for r in ranks.values())]
    )
    found_all = Found(directory, ranks, world, warnings)
    if found_all.missing:
        listed = ", ".join(map(str, found_all.missing[:20]))
        warnings.append(f"{len(found_all.missing)} of {plural(world, 'rank')} have no trace here: {listed}")
    return found_all


def holds_torch_traces(directory: Path) -> bool:
    """Whether a directory has files that look like PyTorch or nsys traces, from names and heads alone."""
    if not directory.is_dir():
        return False
    for path in _files(directory):
        if path.suffix in (".nsys-rep", ".sqlite"):
            return True
        if (
            path.name.endswith((".json", ".json.gz"))
            and not _SKIP.fullmatch(path.name)
            and _look(path) is not None
        ):
            return True
    return False


def _files(directory: Path) -> Iterable[Path]:
    for root, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and not is_set_aside(Path(root, f)))
        if any(n.startswith("chakra_") and n.endswith(".et") for n in names):
            folders[:] = []
            if Path(root) != directory:
                continue  # what an earlier run has written
        for name in sorted(names):
            path = Path(root, name)
            # Opening a pipe of that name would wait forever.
            if not name.startswith(".") and path.is_file():
                yield path


def _is_nsys(path: Path) -> bool:
    from dftracer.link.nsys import is_nsys  # noqa: PLC0415 - numpy is not needed to look at names

    return is_nsys(path)


def _name_facts(file: TorchFile) -> TorchFile:
    named = _NAMED.match(file.path.name)
    if named:
        file.named_rank = int(named.group(2))
        file.window = int(named.group(3) or 0)
    else:
        loose = _RANK.search(file.path.name)
        file.named_rank = int(loose.group(1)) if loose else None
        window = re.search(r"_w(\d{1,9})\.", file.path.name)
        file.window = int(window.group(1)) if window else None
    file.rank = file.named_rank
    return file


def _look(path: Path) -> TorchFile | None:
    """What kind of file this is, from its first bytes."""
    try:
        head = next(read_blocks(path, Repairs(), _HEAD), b"")[:_HEAD]
    except OSError:
        return None
    if EXPORTED.encode() in head[:_SIGNED]:
        return None
    file = _name_facts(TorchFile(path, "et"))
    file.started = path.stat().st_mtime
    events = head.find(b'"traceEvents"')
    nodes = re.search(rb'"nodes"\s*:\s*\[', head)
    if events >= 0 and (nodes is None or events < nodes.start()):
        file.kind = "kineto"
        _kineto_head(file, head, events)
    elif nodes is not None and (b'"schema"' in head or b'"rf_id"' in head):
        pid = re.search(rb'"pid"\s*:\s*(\d{1,18})(?!\d)', head[: nodes.start()])
        file.pid = int(pid.group(1)) if pid else None
    elif not _NAMED.match(path.name):
        return None
    elif path.name.startswith("kineto"):
        file.kind = "kineto"  # empty or damaged: the reader says so
    return file


def _kineto_head(file: TorchFile, head: bytes, events: int) -> None:
    info = re.search(rb'"distributedInfo"\s*:\s*\{', head[:events])
    if info is not None:
        text = head[info.end() - 1 : info.end() + 4096]
        rank = re.search(rb'"rank"\s*:\s*(\d{1,18})(?!\d)', text)
        world = re.search(rb'"world_size"\s*:\s*(\d{1,18})(?!\d)', text)
        # A process that was never part of a group says rank 0 of 1: its file name is more reliable.
        size = int(world.group(1)) if world else 0
        number = int(rank.group(1)) if rank else MAX_RANKS
        if number < MAX_RANKS and (file.rank is None or size > 1):
            file.rank = number
        file.world_size = size if 0 < size <= MAX_RANKS else None
    pid = _HOST_PID.search(head)
    pid = pid or re.search(rb'"pid"\s*:\s*(\d{1,18})(?!\d)', head[events:])
    file.pid = int(pid.group(1)) if pid else None


def _our_traces(directory: Path) -> list[Any]:
    from dftracer.format.trace_names import NoTraces  # noqa: PLC0415
    from dftracer.load.find import find_files, recover  # noqa: PLC0415
    from dftracer.load.process import assign_ranks, peek  # noqa: PLC0415

    try:
        recover(directory)
        files = find_files(directory)
    except NoTraces:
        return []
    processes = [peek(f) for f in files]
    assign_ranks(processes)
    return processes


def _assign_ranks(torch_files: list[TorchFile], traces: list[Any], warnings: list[str]) -> None:
    """Names, then the process: a file without a rank belongs to the rank whose other files have its pid."""
    warnings += [
        f"{s.path.name}: the file says it belongs to rank {s.rank}; its name is ignored"
        for s in torch_files
        if _NAMED.match(s.path.name) and s.named_rank != s.rank
    ]
    by_pid = {p.pid: p.rank for p in traces if p.rank is not None}
    by_pid.update({s.pid: s.rank for s in torch_files if s.rank is not None and s.pid is not None})
    homeless: dict[int | None, list[TorchFile]] = {}
    for s in torch_files:
        if s.rank is None and s.pid in by_pid:
            s.rank = by_pid[s.pid]
        if s.rank is None:
            homeless.setdefault(s.pid, []).append(s)
    taken = {s.rank for s in torch_files if s.rank is not None}
    free = (n for n in range(1 << 30) if n not in taken)
    for pid in sorted(homeless, key=lambda p: (p is None, p or 0)):
        number = next(iter(taken)) if pid is None and len(taken) == 1 else next(free)
        if number not in taken and (len(homeless) > 1 or taken):
            names = ", ".join(s.path.name for s in homeless[pid][:3])
            warnings.append(f"the rank of {names} is unknown: counted as rank {number}")
        for s in homeless[pid]:
            s.rank = number


def _by_rank(torch_files: list[TorchFile]) -> dict[int, RankFiles]:
    ranks: dict[int, RankFiles] = {}
    for s in torch_files:
        assert s.rank is not None
        files = ranks.setdefault(s.rank, RankFiles(s.rank))
        (files.et if s.kind == "et" else files.activity).append(s)
        files.world_size = max(files.world_size or 0, s.world_size or 0) or None
    for files in ranks.values():
        for listed in (files.et, files.activity):
            listed.sort(key=lambda s: (s.window is None, s.window or 0, s.started, s.path.name))
    return dict(sorted(ranks.items()))


def _add_traces(ranks: dict[int, RankFiles], traces: list[Any], torch_files: list[TorchFile]) -> None:
    pids = {s.pid: s.rank for s in torch_files if s.pid is not None}
    for p in traces:
        rank = pids.get(p.pid, p.rank)
        if rank is None:
            rank = pids.get(p.ppid)
        if rank is None and len(ranks) == 1:
            rank = next(iter(ranks))
        if rank in ranks:
            files = ranks[rank]
            files.traces.append(p.file)
            files.host = files.host or p.host
            files.world_size = files.world_size or p.world_size


def _add_manifests(directory: Path, ranks: dict[int, RankFiles], warnings: list[str]) -> None:
    for rank, files in ranks.items():
        comms = [directory / f"comms_{rank}.jsonl.gz", directory / f"comms_{rank}.jsonl"]
        files.comms = [c for c in comms if c.is_file()]
        path = directory / f"manifest_{rank}.json"
        if not path.is_file():
            continue
        manifest = read_manifest(path)
        if manifest is None:
            warnings.append(f"{path.name} cannot be read")
            continue
        files.host = str(manifest.get("host") or files.host)
        world = manifest.get("world_size")
        files.world_size = world if isinstance(world, int) and 0 < world <= MAX_RANKS else files.world_size
        files.clock_error_ns = _clock_error(manifest.get("clock"))
        windows = manifest.get("windows")
        for window in windows if isinstance(windows, list) else []:
            if isinstance(window, dict) and window.get("kind") == "kineto":
                index = window.get("index")
                files.times_only.add(index if isinstance(index, int) else 0)


def read_manifest(path: Path) -> dict[str, Any] | None:
    """What a rank's manifest says about its files; None if it cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_MANIFEST:
            return None
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _clock_error(clock: Any) -> int | None:
    """The error of the process's own clock anchors, if the manifest has it."""
    if not isinstance(clock, dict):
        return None
    anchors = [a for a in (clock, clock.get("start"), clock.get("end")) if isinstance(a, dict)]
    errors = [a["error_ns"] for a in anchors if isinstance(a.get("error_ns"), int | float)]
    errors = [e for e in errors if abs(e) < _LONGEST_ERROR_NS]
    return int(max(errors)) if errors else None
