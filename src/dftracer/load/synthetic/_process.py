"""A synthetic process: it writes exactly the spans it is given."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dftracer.format.records import arguments, counter_line, event_line, string_hash
from dftracer.load.synthetic._lines import EPOCH_US, MadeFile

__all__ = ["Process"]


@dataclass
class _Span:
    name: str
    cat: str
    start: int
    dur: int
    tid: int
    args: dict[str, Any]

    @property
    def end(self) -> int:
        return self.start + self.dur


@dataclass
class Process:
    """One process of a synthetic job. Times are microseconds from the start of the job."""

    pid: int
    ppid: int = 1
    rank: int | None = None
    world_size: int | None = None
    host: str = "node0"
    start: int = 0
    end: dict[str, Any] | None = field(default_factory=dict)  # None: the process never ended
    spans: list[_Span] = field(default_factory=list)
    metadata: list[tuple[str, str, str]] = field(default_factory=list)
    run: dict[str, Any] | None = None  # the args of its `run` record: `value` is the id of the run
    samples: list[tuple[int, str, dict[str, float]]] = field(default_factory=list)

    def span(self, cat: str, name: str, start: int, dur: int, tid: int | None = None, **args: Any) -> None:
        """Record a span; nesting follows from the times."""
        self.spans.append(_Span(name, cat, start, dur, self.pid if tid is None else tid, args))

    def counter(self, name: str, at: int, **values: float) -> None:
        """Record a sample of the machine."""
        self.samples.append((at, name, values))

    def step(self, count: int, start: int, wait: int, body: int, **args: Any) -> int:
        """One item of `ai.dataloader.fetch.iter`: waiting, then the body. Returns its end."""
        self.span("dataloader", "fetch.iter", start, wait, count=str(count), **args)
        self.span("dataloader", "fetch.block", start + wait, body, count=str(count), **args)
        return start + wait + body

    def io(self, name: str, start: int, dur: int, path: str, cat: str = "POSIX", **args: Any) -> None:
        """Record an I/O call on `path`."""
        self.span(cat, name, start, dur, fhash=path, **args)

    def write(
        self, directory: Path, name: str | None = None, gz: bool = True, member_text: int = 1 << 20
    ) -> Path:
        """Write the trace file of this process and return its path."""
        stem = name or f"trace-{self.pid:016x}-app"
        path = Path(directory) / f"{stem}.pfw{'.gz' if gz else ''}"
        out = MadeFile(path, self.pid, self.host, member_text)
        self._write_facts(out)
        out.own_event("start", EPOCH_US + self.start, version="synthetic", ppid=self.ppid)
        self._write_spans(out)
        if self.end is not None:
            out.end(EPOCH_US + max((s.end for s in self.spans), default=self.start), **self.end)
        out.close()
        return path

    def _write_facts(self, out: MadeFile) -> None:
        if self.rank is not None:
            out.meta("PR", "rank", str(self.rank))
        if self.world_size is not None:
            out.meta("PR", "world_size", str(self.world_size))
        if self.run is not None:
            out.meta("run", "run", **self.run)
        for kind, key, value in self.metadata:
            out.meta(kind, key, value)

    def _write_spans(self, out: MadeFile) -> None:
        """Numbered as they begin and written as they end, like a recorder's."""
        stacks: dict[int, list[tuple[int, int]]] = {}  # of each thread: end and id of what is open
        ended: list[tuple[int, int, str, int]] = []
        named: set[str] = set()
        for s in sorted(self.spans, key=lambda s: (s.start, -s.dur)):
            stack = stacks.setdefault(s.tid, [])
            while stack and stack[-1][0] <= s.start and not (s.dur == 0 and stack[-1][0] == s.start):
                stack.pop()
            out.ids += 1
            args = dict(s.args)
            if "fhash" in args:
                file = args["fhash"]
                args["fhash"] = string_hash(file)
                if file not in named:
                    named.add(file)
                    out.meta("FH", file, args["fhash"])
                    out.ids += 1
            above = stack[-1][1] if stack else -1
            full = arguments(out.hhash, above, args, len(stack) + 1)
            line = event_line(out.ids, s.name, s.cat, out.pid, s.tid, EPOCH_US + s.start, s.dur, full)
            stack.append((s.end, out.ids))
            ended.append((s.end, -out.ids, line, s.start))
        for at, name, values in self.samples:
            out.ids += 1
            line = counter_line(out.ids, name, out.pid, EPOCH_US + at, values)
            ended.append((at, -out.ids, line, at))
        for _, _, line, begin in sorted(ended):
            out.add(line, EPOCH_US + begin)
