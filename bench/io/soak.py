"""python -m bench.io.soak --minutes 10: everything at once, traced, with nothing lost or grown at the end.

Eight threads of descriptors and streams, forks, vforks and spawns, a library that comes and goes, a timer
whose handler does I/O. Fails when the program does, when an event is missing, or when memory or descriptors
grow.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bench.io.loop import own_library

HERE = Path(__file__).resolve().parent
# Of the eight threads; the stream under `fread` is not seen a second time.
_CALLS = ("fopen", "fwrite", "fread", "fclose", "open", "pwrite", "read", "close")


def _median(values: list[int]) -> float:
    return statistics.median(values)


class Outcome(NamedTuple):
    """What the program said, and what its traces say."""

    returncode: int
    stderr: str
    resident: list[int]  # KiB, once a second
    descriptors: list[int]
    calls: int
    forks: int
    handled: int
    seen: int  # of `calls`
    seen_handled: int
    whole_children: int  # forked, with a trace that has all they did
    dropped: int
    dropped_in_signal: int
    traces: int
    bytes: int

    def problems(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.returncode != 0:
            found.append(f"it ended with {self.returncode}: {self.stderr[-500:]}")
        if self.stderr:
            found.append(f"it said {self.stderr[:200]!r}")
        if self.seen != self.calls:
            found.append(f"{self.calls - self.seen} of {self.calls} calls are not in the trace")
        if self.dropped != self.dropped_in_signal:
            found.append(f"{self.dropped} events were dropped")
        if self.handled > self.seen_handled + self.dropped_in_signal:
            missing = self.handled - self.seen_handled - self.dropped_in_signal
            found.append(f"{missing} calls in handlers are neither seen nor counted")
        if self.whole_children != self.forks:
            found.append(f"{self.forks - self.whole_children} of {self.forks} children are not whole")
        quarter = len(self.resident) // 4
        if quarter and _median(self.resident[-quarter:]) > 1.05 * _median(
            self.resident[quarter : 2 * quarter]
        ):
            found.append(f"memory grew: {self.resident[quarter]} to {self.resident[-1]} KiB")
        # By the median: a file that a thread has open at the moment of a sample is no growth.
        if quarter and _median(self.descriptors[-quarter:]) > _median(self.descriptors[:quarter]) + 1:
            found.append(f"descriptors grew: {self.descriptors[quarter]} to {self.descriptors[-1]}")
        return found


def _count(traces: Path, data: Path) -> tuple[Counter[str], int, int]:
    """Events by name of the threads' own files, children that are whole, and what was dropped."""
    by_name: Counter[str] = Counter()
    whole = 0
    drops = {"dropped": 0, "dropped_in_signal": 0}
    for file in traces.iterdir():
        paths: dict[str, str] = {}
        child = 0
        with gzip.open(file, "rt") as lines:
            for line in lines:
                if '"name":"FH"' in line:
                    name, value = (line.split(f'"{key}":"')[-1].split('"')[0] for key in ("name", "value"))
                    paths[value] = Path(name).name if name.startswith(f"{data}/") else ""
                elif '"name":"end"' in line:
                    for key in drops:
                        found = line.split(f'"{key}":')
                        drops[key] += int(found[1].split(",")[0]) if len(found) > 1 else 0
                elif '"fhash":"' in line:
                    on = paths.get(line.split('"fhash":"')[1][:16], "")
                    what = line.split('"name":"')[1].split('"')[0]
                    if on[:1] == "f" and on[1:].isdigit():
                        by_name[what] += 1
                    elif on == "side":
                        by_name["side " + what] += 1
                    elif on[:1] == "c" and file.name.endswith("-fork.pfw.gz"):
                        child += 1
        whole += child == 3
    by_name["dropped"], by_name["dropped_in_signal"] = drops["dropped"], drops["dropped_in_signal"]
    return by_name, whole, sum(f.stat().st_size for f in traces.iterdir())


def soak(seconds: float, folder: Path) -> Outcome:
    """One run."""
    data, traces = folder / "data", folder / "traces"
    data.mkdir()
    traces.mkdir()
    program, plugin = folder / "soak", folder / "plugin.so"
    subprocess.run(["cc", "-O2", "-o", program, HERE / "soak.c", "-lpthread", "-ldl"], check=True)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", plugin, HERE / "soak_plugin.c"], check=True)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    ours = {
        "LD_PRELOAD": own_library(),
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_DATA_DIR": str(data),
        "DFTRACER_LOG_FILE": str(traces / "t"),
        # Rings that all threads, the idle ones too, have gone round soon: then their memory is constant.
        "DFTRACER_RING_SIZE": str(1 << 20),
    }
    done = subprocess.run(
        [program, data, str(seconds), plugin],
        env={**clean, **ours},
        capture_output=True,
        text=True,
        check=False,
    )
    words = [line.split() for line in done.stdout.splitlines()]
    samples = [w for w in words if w[0] == "sample"]
    totals = next((dict(zip(w[::2], map(int, w[1::2]), strict=True)) for w in words if w[0] == "calls"), {})
    seen, whole, size = _count(traces, data)
    return Outcome(
        returncode=done.returncode,
        stderr=done.stderr,
        resident=[int(w[1]) for w in samples],
        descriptors=[int(w[2]) for w in samples],
        calls=totals.get("calls", 0),
        forks=totals.get("forks", 0),
        handled=totals.get("handled", 0),
        seen=sum(seen[name] for name in _CALLS),
        seen_handled=seen["side pwrite"],
        whole_children=whole,
        dropped=seen["dropped"],
        dropped_in_signal=seen["dropped_in_signal"],
        traces=sum(1 for _ in traces.iterdir()),
        bytes=size,
    )


def main() -> int:
    """Run, and say how it went."""
    parser = argparse.ArgumentParser(prog="python -m bench.io.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = soak(given.minutes * 60, Path(folder))
    resident = outcome.resident or [0]
    print(
        f"{given.minutes:g} min: {outcome.calls} calls of 8 threads, {outcome.seen} of them in the trace; "
        f"{outcome.forks} forks, vforks and spawns, {outcome.whole_children} whole children's traces; "
        f"{outcome.handled} calls in a handler, {outcome.seen_handled} in the trace and "
        f"{outcome.dropped_in_signal} counted as dropped; "
        f"{outcome.bytes / 1e6:.1f} MB in {outcome.traces} files"
    )
    print(
        f"resident KiB: {resident[0]} at first, {resident[len(resident) // 4]} after a quarter, "
        f"{resident[-1]} at the end, {max(resident)} at most; "
        f"descriptors {min(outcome.descriptors or [0])} to {max(outcome.descriptors or [0])}"
    )
    for problem in outcome.problems():
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
