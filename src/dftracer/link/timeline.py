"""All ranks on one time axis, as a Chrome/Perfetto file whose lanes never overlap.

Each rank writes its part as a separate gzip member; the file is the members one after the other.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.link.columns import KIND_NAMES, Ints, coded, distinct, join_rows
from dftracer.link.graph import nesting
from dftracer.link.regions import NOTHING, Labels
from dftracer.link.tables import TablePart
from dftracer.load.perfetto import TrackIds, arrow_phase, assign_lanes, process_names, thread_name

# Temporary lane numbers: streams and extra lanes come after every thread.
_FURTHER = 1 << 40
_STREAMS = 1 << 32
# Ranks write their parts in parallel, so each has its own range of ids.
_PROCESSES, _THREADS = 100, 10_000
_BATCH = 1 << 13


def _process(rank: int, device: int = -1, ours: bool = False) -> int:
    """A number for each group of lanes: the rank's host, each of its devices, our own trace."""
    return rank * _PROCESSES + (99 if ours else device + 2)


class _Tracks:
    """The lane groups of a rank and their lanes: small ids, each named once."""

    def __init__(self, rank: int) -> None:
        self._ids = TrackIds(rank * _THREADS + 1)
        self._named: set[tuple[int, int]] = set()

    def numbers(self, pid: Ints, lane: Ints) -> Ints:
        """The number in the file of each (group, lane)."""
        pairs, at = np.unique(np.stack([pid, lane]), axis=1, return_inverse=True)
        known = [self._ids.get(tuple(pair)) for pair in pairs.T.tolist()]
        found: Ints = np.array(known, dtype=np.int64)[at.reshape(-1)]
        return found

    def name_process(self, out: list[str], pid: int, text: str) -> None:
        if (pid, -1) not in self._named:
            self._named.add((pid, -1))
            out += map(_line, process_names(pid, text, sort_index=pid))

    def name_lane(self, out: list[str], pid: int, lane: int, text: str) -> None:
        if (pid, lane) not in self._named:
            self._named.add((pid, lane))
            out.append(_line(thread_name(pid, self._ids.get((pid, lane)), text)))


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


class _Writer:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._gzip = zlib.compressobj(1, zlib.DEFLATED, 31)

    def write(self, lines: list[str]) -> None:
        if lines:
            self.write_bytes((",\n".join(lines) + ",\n").encode("utf-8", "replace"))

    def write_bytes(self, text: bytes) -> None:
        self._file.write(self._gzip.compress(text))

    def close(self) -> None:
        self._file.write(self._gzip.flush())
        self._file.close()


def write_fragment(
    path: Path, rank: int, parts: list[TablePart], offset_ns: int, base_ns: int, who: str
) -> None:
    """One rank's events as lines of JSON, each with a comma after it."""
    out = _Writer(path)
    tracks = _Tracks(rank)
    for part in parts:
        _nodes(out, tracks, rank, part, offset_ns - base_ns, who)
        _spans(out, tracks, rank, part, offset_ns - base_ns)
    out.close()


def _lanes(lane: Ints, start: Ints, dur: Ints) -> Ints:
    """Lanes without crossing spans: a span that crosses another goes to an extra lane."""
    parent, _ = nesting(lane, start, dur)
    end = start + dur
    crossing = (parent >= 0) & (end > end[np.maximum(parent, 0)])
    lane = lane.copy()
    for bad in distinct(lane[crossing]).tolist():
        rows = np.flatnonzero(lane == bad)
        number = assign_lanes(lane[rows], start[rows], dur[rows]).astype(np.int64)
        lane[rows] = np.where(number > 0, _FURTHER + bad * 64 + number, bad)
    return lane


def _nodes(out: _Writer, tracks: _Tracks, rank: int, part: TablePart, shift: int, who: str) -> None:
    g, act = part.graph, part.activity
    rows = np.flatnonzero(g.timed)
    if not rows.size:
        return
    heads: list[str] = []
    on_device = g.on_device[rows]
    at = g.activity[rows]
    device = np.where(on_device, act.device[at], -1)
    for d in distinct(device).tolist():
        tracks.name_process(heads, _process(rank, d), who if d < 0 else f"rank {rank} GPU {d}")
    first = np.where(on_device, _STREAMS * (device + 2) + act.stream[at], act.tid[at])
    lane = _lanes(first, g.start[rows], g.dur[rows])
    pid = rank * _PROCESSES + device + 2
    for p, original, number in sorted(set(zip(pid.tolist(), first.tolist(), lane.tolist(), strict=True))):
        if original >= _STREAMS:
            text = f"stream {original % _STREAMS}"
        else:
            text = act.threads.get(original, f"thread {original}")
        more = "" if number == original else f" ({number % 64 + 1})"
        tracks.name_lane(heads, p, number, text + more)
    out.write(heads)
    lane = tracks.numbers(pid, lane)
    start, dur = g.start[rows] + shift, g.dur[rows]
    columns = [
        b'{"ph":"X","name":',
        coded(g.name[rows], [json.dumps(n).encode() for n in g.names]),
        b',"cat":"',
        coded(g.kind[rows], [k.encode() for k in KIND_NAMES]),
        b'","pid":',
        ("numbers", np.ascontiguousarray(pid)),
        b',"tid":',
        ("numbers", np.ascontiguousarray(lane)),
        b',"ts":',
        ("numbers", start // 1000),
        b".",
        ("three", start % 1000),
        b',"dur":',
        ("numbers", dur // 1000),
        b".",
        ("three", dur % 1000),
        b',"args":{"node":',
        ("numbers", g.id[rows]),
        coded(part.labels.code[rows], _label_texts(part.labels)),
        b"}},\n",
    ]
    every = np.arange(rows.size)
    for low in range(0, rows.size, _BATCH):
        out.write_bytes(join_rows(columns, every[low : low + _BATCH]).text)
    place = np.full(len(g), -1, dtype=np.int64)
    place[rows] = np.arange(rows.size)
    out.write(_launches(part, place, pid, lane, shift))
    out.write(_meetings(part, place, pid, lane, shift))


def _label_texts(labels: Labels) -> list[bytes]:
    """Step, epoch and phase as the end of an event's arguments, one text for each code."""
    texts = []
    for row in labels.rows:
        text = "" if labels.step[row] == NOTHING else f',"step":{labels.step[row]}'
        text += "" if labels.epoch[row] == NOTHING else f',"epoch":{labels.epoch[row]}'
        if labels.phase[row] >= 0:
            text += f',"phase":{json.dumps(labels.phases[labels.phase[row]])}'
        texts.append(text.encode())
    return texts


def _arrow(ph: str, name: str, number: int, pid: int, tid: int, ts: int) -> str:
    """One end of an arrow; `ts` is in ns, and the arrow belongs to what is open then."""
    more = "" if ph == "s" else ',"bp":"e"'
    return (
        f'{{"ph":"{ph}","id":{number},"name":"{name}","cat":"{name}","pid":{pid},"tid":{tid},'
        f'"ts":{ts // 1000}.{ts % 1000:03d}{more}}}'
    )


def _launches(part: TablePart, place: Ints, pid: Ints, lane: Ints, shift: int) -> list[str]:
    """Arrows from launches to device work."""
    g = part.graph
    lines = []
    for row in np.flatnonzero(g.launch >= 0).tolist():
        for ph, node in (("s", int(g.launch[row])), ("f", row)):
            i = int(place[node])
            lines.append(_arrow(ph, "launch", int(g.id[row]), pid[i], lane[i], int(g.start[node]) + shift))
    return lines


def _meetings(part: TablePart, place: Ints, pid: Ints, lane: Ints, shift: int) -> list[str]:
    """Arrows from the first rank to reach a collective, through the others, to the last."""
    lines = []
    for member, call in zip(part.members, part.collectives, strict=True):
        i = int(place[call.row])
        if member.turn is None or i < 0:
            continue
        ph = arrow_phase(member.turn, member.turns)
        ts = int(part.graph.start[call.row]) + shift
        lines.append(_arrow(ph, "collective", member.meeting, pid[i], lane[i], ts))
    return lines


def _spans(out: _Writer, tracks: _Tracks, rank: int, part: TablePart, shift: int) -> None:
    """Regions and I/O of our own trace, in separate lanes."""
    s = part.spans
    if not len(s):
        return
    heads: list[str] = []
    pid = _process(rank, ours=True)
    tracks.name_process(heads, pid, f"rank {rank} regions and I/O")
    lane = _lanes(s.tid, s.start, s.dur)
    for thread, number in sorted(set(zip(s.tid.tolist(), lane.tolist(), strict=True))):
        more = "" if number == thread else f" ({number % 64 + 1})"
        tracks.name_lane(heads, pid, number, f"thread {thread}{more}")
    lane = tracks.numbers(np.full(lane.size, pid), lane)
    lines = []
    for i in range(len(s)):
        start, dur = int(s.start[i]) + shift, int(s.dur[i])
        args: dict[str, Any] = {}
        for key, values in (("step", s.step), ("epoch", s.epoch), ("ret", s.bytes)):
            if values[i] != NOTHING:
                args[key] = int(values[i])
        if s.path[i] >= 0:
            args["path"] = s.texts[s.path[i]]
        lines.append(
            f'{{"ph":"X","name":{json.dumps(s.texts[s.name[i]])},"cat":{json.dumps(s.texts[s.cat[i]])},"pid":{pid},'
            f'"tid":{lane[i]},"ts":{start / 1000:.3f},"dur":{dur / 1000:.3f},"args":{json.dumps(args)}}}'
        )
    out.write(heads + lines)


def join_fragments(path: Path, fragments: list[Path], base_ns: int, clocks: dict[str, Any]) -> None:
    """The ranks' parts between the head and the tail of the file; the parts are removed."""
    tail = json.dumps({"base_time_ns": base_ns, "clocks": clocks})
    last = '{"name":"end of the trace","ph":"M","pid":0,"tid":0,"args":{}}'
    with path.open("wb") as out:
        out.write(_member('{"displayTimeUnit":"ns","traceEvents":[\n'))
        for fragment in fragments:
            out.write(fragment.read_bytes())
            fragment.unlink()
        out.write(_member(f'{last}\n],"otherData":{tail}}}\n'))


def _member(text: str) -> bytes:
    gzip = zlib.compressobj(1, zlib.DEFLATED, 31)
    return gzip.compress(text.encode()) + gzip.flush()
