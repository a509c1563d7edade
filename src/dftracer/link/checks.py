"""What is wrong with a directory of PyTorch traces, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer._text import plural
from dftracer.link.columns import ActivityTable
from dftracer.link.discover import Found, RankFiles, TorchFile, discover, read_manifest
from dftracer.link.execution_trace import ExecutionTrace, read_execution_trace
from dftracer.link.graph import Join, join
from dftracer.link.kineto import read_kineto
from dftracer.link.nsys import read_nsys

_MIN = 0.99
_ADVICE = {
    "on a thread that the profiler did not watch": (
        "profile with torch._C._profiler._ExperimentalConfig(profile_all_threads=True)"
    ),
    "id repeated: a forked child wrote into the same file": (
        "start loader workers before the window, or record with `dftracer collect`"
    ),
    "no record id: the profiler was off while the observer ran": (
        "start and stop the observer with the profiler"
    ),
}


@dataclass
class Checked:
    """The state of each rank, and the problems of the whole directory."""

    world_size: int
    missing_ranks: list[int]
    ranks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems and not self.missing_ranks and not any(r["problems"] for r in self.ranks)


def check_directory(directory: Path) -> Checked:
    """Read every file in the directory and report what was found."""
    found = discover(directory)
    # Missing ranks have their own field.
    problems = [w for w in found.warnings if "have no trace here" not in w]
    out = Checked(found.world_size, found.missing, problems=problems + _manifest_problems(found))
    for files in found.ranks.values():
        out.ranks.append(_rank(files))
    return out


def _manifest_problems(found: Found) -> list[str]:
    out = []
    for path in sorted(found.directory.glob("manifest_*.json")):
        manifest = read_manifest(path)
        if manifest is None:
            continue
        gone = [n for n in _listed_names(manifest.get("files")) if not _is_there(found.directory / n)]
        if gone:
            out.append(f"{path.name} lists files that are not here: {', '.join(gone[:5])}")
        warnings = manifest.get("warnings")
        out += [f"{path.name}: {w}" for w in warnings] if isinstance(warnings, list) else []
    return out


def _listed_names(listed: Any) -> list[str]:
    """The names in a manifest, which contains names, objects with a name, or objects by name."""
    if not isinstance(listed, list | dict):
        return []
    names = [f.get("name") if isinstance(f, dict) else f for f in listed]
    return [n for n in names if isinstance(n, str) and n]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no file can have such a name
        return False


def _rank(files: RankFiles) -> dict[str, Any]:
    problems: list[str] = []
    nodes = joined = matched = agreeing = 0
    tables = [(s, read_nsys(s.path) if s.kind == "nsys" else read_kineto(s.path)) for s in files.activity]
    traces = [(s, read_execution_trace(s.path)) for s in files.et]
    every: list[tuple[TorchFile, ActivityTable | ExecutionTrace]] = [*tables, *traces]
    for file, table in every:
        problems += [f"{file.path.name}: {text}" for text in table.repairs.sentences()]
        if not len(table) and not table.repairs.sentences():
            problems.append(f"{file.path.name}: it contains no events")
    if not tables:
        problems.append("no profiler trace: the nodes of the execution trace have no times")
    wanted = [s for s, _ in tables if s.window not in files.times_only]
    if not traces and wanted and not any(s.kind == "nsys" for s, _ in tables):
        problems.append("no execution trace: nothing can be joined")
    if traces and len(traces) != len(wanted) and tables:
        problems.append(
            f"{len(traces)} execution traces and {len(wanted)} profiler traces: each window needs one of each"
        )
    for file, et in traces:
        nodes += int(et.real.sum())
        named = [t for s, t in tables if s.window == file.window]
        candidates = [
            join(et, t)
            for t in (named if len(traces) == len(tables) and len(named) == 1 else [t for _, t in tables])
        ]
        if not candidates:
            continue
        best = max(candidates, key=lambda j: (j.joined, -len(j.refused)))
        joined, matched, agreeing = joined + best.joined, matched + best.matched, agreeing + best.agreeing
        problems += _join_problems(file.path.name, best)
    return {
        "rank": files.rank,
        "et_nodes": nodes,
        "joined": joined,
        "coverage": joined / nodes if nodes else None,
        "name_agreement": agreeing / matched if matched else None,
        "files": [s.path.name for s in [*files.et, *files.activity]],
        "problems": problems,
    }


def _join_problems(name: str, found: Join) -> list[str]:
    if found.refused:
        return [f"{name}: {found.coverage:.0%} joined: {found.refused}"]
    if found.coverage >= _MIN:
        return []
    out = []
    for reason, n in found.reasons.items():
        advice = _ADVICE.get(reason)
        out.append(
            f"{name}: {n} of {plural(found.et_nodes, 'node')} not joined: {reason}"
            + (f"; {advice}" if advice else "")
        )
    return out
