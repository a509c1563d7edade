"""Bytes per event of a run that reads files, beside the same text as one stream by other compressors.

python -m bench.subjects.files        # prints them
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.results import Goal, Row
from bench.rounds import ROOT, Bench

__all__ = ["Sizes", "measure", "rows"]

_FILES, _EPOCHS, _BATCH = 400, 4, 8
_OVER_GZIP = 1.15


class Sizes(NamedTuple):
    """Bytes for an event."""

    events: int
    ours: float
    text: float
    others: dict[str, float]


def _program(folder: str) -> None:
    """Runs traced: every epoch reads every file once, in another order."""
    from dftracer.python import ai, dftracer  # noqa: PLC0415

    log = dftracer.initialize_log()
    paths = sorted(Path(folder).iterdir())
    for epoch in ai.pipeline.epoch.iter(range(_EPOCHS)):
        order = [paths[(i * 37 + epoch * 11) % _FILES] for i in range(_FILES)]
        for step in range(_FILES // _BATCH):
            ai.update(epoch=epoch, step=step)
            with ai.dataloader.fetch:
                for path in order[step * _BATCH : (step + 1) * _BATCH]:
                    with ai.data.item:
                        path.read_bytes()
            for stage in (ai.compute.forward, ai.compute.backward, ai.compute.step):
                with stage:
                    pass
    log.finalize()


def measure(python: Path) -> Sizes:
    """One run of the program, and what its text takes."""
    with tempfile.TemporaryDirectory(prefix="files-") as name:
        data, traces = Path(name) / "data", Path(name) / "traces"
        data.mkdir()
        traces.mkdir()
        for index in range(_FILES):
            (data / f"part-{index:04d}.bin").write_bytes(bytes(4096))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
        traced = {"DFTRACER_ENABLE": "1", "DFTRACER_DATA_DIR": str(data), "DFTRACER_LOG_FILE": f"{traces}/t"}
        subprocess.run(
            [python, "-m", "bench.subjects.files", str(data)],
            env=clean | traced | {"PYTHONPATH": str(ROOT)},
            cwd=name,
            check=True,
        )
        files = sorted(traces.glob("*.pfw.gz"))
        text = b"".join(gzip.decompress(file.read_bytes()) for file in files)
        events = text.count(b'"ph":"X"')
        size = sum(file.stat().st_size for file in files)
    compressors: dict[str, Callable[[bytes], bytes]] = {
        "gzip -9": lambda t: gzip.compress(t, 9),
        "xz -9": lambda t: lzma.compress(t, preset=9),
    }
    if zstd := shutil.which("zstd"):
        compressors["zstd -19"] = lambda t: (
            subprocess.run([zstd, "-19", "-q"], input=t, capture_output=True, check=True).stdout
        )
    others = {how: len(compress(text)) / events for how, compress in compressors.items()}
    return Sizes(events, size / events, len(text) / events, others)


def rows(bench: Bench) -> list[Row]:
    found = measure(bench.ours)
    others = found.others
    row = Row(
        "files", "bytes per event, a run that reads files", "bytes/event", found.ours, detail=found._asdict()
    )
    listed = ", ".join(f"`{how}` {size:.1f}" for how, size in others.items())
    row.notes.append(f"the text is {found.text:.0f} bytes per event; as one stream: {listed}")
    row.goals.append(
        Goal(f"at most {_OVER_GZIP:g} times `gzip -9`", found.ours / others["gzip -9"], _OVER_GZIP)
    )
    return [row]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _program(sys.argv[1])
    else:
        sys.stdout.write(json.dumps(measure(Path(sys.executable))._asdict(), indent=1) + "\n")
