"""How long `dftracer postmortem` takes for a job of many ranks that hangs: python -m bench.postmortem [RANKS]

The traces are made up: of each rank a head, some steps and a hang file; one rank never came to the last
all-reduce. The real thing is in tests/postmortem.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dftracer.format.members import gzip_member
from dftracer.format.records import event_line, metadata_line

STEPS = 400
MEMBERS = 20
START_US = 1_790_000_000_000_000
CULPRIT = 3


def make_job(directory: Path, ranks: int) -> None:
    """The files of a job in which rank 3 hangs."""
    for rank in range(ranks):
        _trace(directory, rank, ranks)
        _hang_file(directory, rank, ranks)


def _trace(directory: Path, rank: int, ranks: int) -> None:
    pid = 1_000_000 + rank
    host = "6882804a826580cd"
    head = [
        metadata_line(1, "HH", pid, host, "node", host, {}),
        metadata_line(2, "run", pid, host, "run", "job", {"attempt": 0}),
        metadata_line(3, "PR", pid, host, "rank", str(rank), {}),
        metadata_line(4, "PR", pid, host, "world_size", str(ranks), {}),
        event_line(5, "start", "dftracer", pid, pid, START_US, 0, {"ppid": 1}),
    ]
    members = [gzip_member("".join(head).encode(), len(head), START_US, START_US)]
    for part in range(MEMBERS):
        lines = []
        for step in range(part * STEPS // MEMBERS, (part + 1) * STEPS // MEMBERS):
            for i, (cat, name) in enumerate(
                [
                    ("dataloader", "fetch.iter"),
                    ("compute", "forward"),
                    ("compute", "backward"),
                    ("compute", "step"),
                ]
            ):
                at = START_US + step * 100_000 + i * 25_000
                lines.append(event_line(step * 4 + i + 6, name, cat, pid, pid, at, 24_000, {"step": step}))
        members.append(gzip_member("".join(lines).encode(), len(lines), START_US, START_US + 1))
    (directory / f"trace-{rank:016x}-app.pfw.gz").write_bytes(b"".join(members))


def _hang_file(directory: Path, rank: int, ranks: int) -> None:
    late = rank == CULPRIT
    place = "/job/data.py:57 load_shard" if late else "/job/train.py:88 main"
    waits = {"group": "0", "seq": 1841, "op": "all_reduce", "bytes": 25 << 20}
    moved = START_US + STEPS * 100_000
    report = {
        "rank": rank,
        "run": "job",
        "attempt": 0,
        "pid": 1_000_000 + rank,
        "host": "node",
        "world_size": ranks,
        "state": "blocked" if late else "waiting",
        "step": STEPS - 1,
        "stage": "own_code" if late else "backward",
        "where": place.rpartition("/")[2],
        "since_s": 61.0,
        "collective": None if late else waits,
        "open_file": "/data/shard-17.tar" if late else None,
        "moved_us": moved,
        "written_us": moved + 61_000_000,
        "went_on_after_s": None,
        "groups": [{"group": "0", "enqueued": 1840 + (not late), "completed": 1840}],
        "threads": [
            {
                "tid": 1_000_000 + rank,
                "name": "python",
                "state": "S",
                "call": "read" if late else "futex",
                "path": "/data/shard-17.tar" if late else "",
                "frames": [
                    place,
                    *(f"/job/layer{n}.py:{rank % 7 + n} call" for n in range(20)),
                    "/job/train.py:9 <module>",
                ],
            }
        ],
        "workers": [],
        "events": [],
    }
    (directory / f"hang_{rank}.json").write_text(json.dumps(report))


def main() -> int:
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as place:
        make_job(Path(place), ranks)
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "dftracer.cli", "postmortem", place, "--json"],
            capture_output=True,
            check=False,
        )
        took = time.perf_counter() - begun
        verdict = json.loads(done.stdout)
        assert (verdict["class"], verdict["rank"]) == ("missing_rank", CULPRIT), verdict["sentence"]
        print(f"{ranks} ranks: {took:.2f} s; {verdict['sentence']}")
        lines = subprocess.run(
            [sys.executable, "-m", "dftracer.cli", "postmortem", place],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.splitlines()
        print(f"{len(lines)} lines on the terminal")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
