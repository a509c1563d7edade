"""Search by name, path or arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dftracer.load._scan import Scanner
from dftracer.load.chunk import INT_COLUMNS, Chunk, Ints, uint8s
from dftracer.view.details import brief
from dftracer.view.ledger_rows import LEDGER
from dftracer.view.part import Part
from dftracer.view.run import Run

__all__ = ["search", "search_args"]

_NUMBER = re.compile(r"^\s*([a-z_]+)\s*[=:]\s*(-?\d+)\s*$")
_MOST = 500


def search(run: Run, text: str, most: int = _MOST) -> dict[str, Any]:
    """Events whose name, category or path contains the text, in chronological order."""
    wanted = text.casefold()
    hits: list[tuple[int, int, int]] = []
    total = 0
    for i, part in enumerate(run.parts):
        if part.info["source"] == LEDGER or not len(part) or not wanted:
            continue
        names = [wanted in n.casefold() or wanted in c.casefold() for c, n, _ in part.pairs]
        paths = [wanted in p.casefold() for p in part.paths]
        if not any(names) and not any(paths):
            continue
        found = np.array(names, bool)[part.pair] if any(names) else np.zeros(len(part), bool)
        if any(paths):
            found |= np.array([*paths, False], bool)[part.path]
        at = np.flatnonzero(found)
        total += int(at.size)
        hits += _first(part, i, at, most)
    hits.sort()
    return {"total": total, "hits": [brief(run, p, s) for _, p, s in hits[:most]]}


def _first(part: Part, number: int, at: Ints, most: int) -> list[tuple[int, int, int]]:
    if at.size > most:
        at = at[np.argpartition(part.start[at], most)[:most]]
    return [(int(part.start[s]), number, int(s)) for s in at.tolist()]


def search_args(run: Run, text: str, threads: int, most: int = _MOST) -> dict[str, Any]:
    """Events whose arguments contain the text (or `key=number`): this reads the files once more."""
    hits: list[tuple[int, int, int]] = []
    total = 0
    by_file: dict[str, list[int]] = {}
    for i, part in enumerate(run.parts):
        if part.info["source"] == "trace" and len(part):
            by_file.setdefault(part.info["file"], []).append(i)
    for file, parts in by_file.items():
        if not Path(file).is_file():
            continue
        of_pid = {run.parts[i].info["pid"]: i for i in parts}
        scanner = Scanner(file, threads, 8 << 20)
        for raw in scanner:
            chunk = Chunk(raw)
            if chunk.rows == 0:
                continue
            rows = _rows_with(chunk, text)
            rows = rows[chunk.ph()[rows] == ord("X")]
            names, cats = scanner.dictionary("name"), scanner.dictionary("cat")
            total += int(rows.size)
            for row in rows[:most].tolist():
                number = of_pid.get(int(chunk.ints("pid")[row]))
                cat = cats[int(chunk.codes("cat")[row])] if chunk.codes("cat")[row] >= 0 else ""
                place = None
                if number is not None:
                    place = _find(run.parts[number], chunk, row, (cat, names[int(chunk.codes("name")[row])]))
                if number is None or place is None:
                    total -= 1
                else:
                    hits.append((int(run.parts[number].start[place]), number, place))
    hits.sort()
    return {"total": total, "hits": [brief(run, p, s) for _, p, s in hits[:most]]}


def _rows_with(chunk: Chunk, text: str) -> npt.NDArray[np.intp]:
    """The rows whose arguments contain the text."""
    match = _NUMBER.match(text)
    if match is not None and match.group(1) in INT_COLUMNS:
        result: npt.NDArray[np.intp] = np.flatnonzero(chunk.ints(match.group(1)) == int(match.group(2)))
        return result
    pattern = re.compile(_as_json(text), re.IGNORECASE)
    ends = np.frombuffer(chunk.raw("args_end"), np.int32)
    blob = uint8s(chunk.raw("args_text")).tobytes()
    found = [m.start() for m in pattern.finditer(blob)]
    return np.unique(np.searchsorted(ends, found, side="right")) if found else np.empty(0, np.intp)


def _as_json(text: str) -> bytes:
    """What to look for in the text of arguments: `key=value` as it is written there."""
    key, sign, value = text.partition("=")
    if sign and re.fullmatch(r"\w+", key.strip()):
        return rb'"%s": ?"?%s' % (re.escape(key.strip()).encode(), re.escape(value.strip()).encode())
    return re.escape(text).encode("utf-8", "replace")


def _find(part: Part, chunk: Chunk, row: int, key: tuple[str, str]) -> int | None:
    """The span of a row of the file."""
    start = int(chunk.ints("ts")[row]) * 1000
    tid = int(chunk.ints("tid")[row]) if chunk.has("tid") else part.info["pid"]
    for each in np.flatnonzero(part.row_tid == tid).tolist():
        low, high = part.row_span(each)
        first, last = np.searchsorted(part.start[low:high], (start, start + 1))
        for span in range(low + int(first), low + int(last)):
            if part.pairs[int(part.pair[span])][:2] == key:
                return span
    return None
