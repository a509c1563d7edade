"""Recovery of damaged rings: each is believed, refused or kept, and the reader goes on.

Rings are given to the recovery itself, not to `dftracer repair --rings`, which would also look after those of
other processes of this user.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from dftracer import _core
from dftracer.format.reader import read_trace
from fuzz.mutate import mutated
from support.process import clean_environment

__all__ = ["damaged_ring", "killed", "recover"]

_KILLED = """
import os, signal
from dftracer.python import ai, dftracer
from dftracer import _core
log = dftracer.initialize_log(None, None, -1)
for i in range(300):
    if i == 100: assert _core.flush()
    with ai.compute.forward(args={"i": i}): pass
os.kill(os.getpid(), signal.SIGKILL)
"""
_HEAD = 8192  # what describes the ring; its records follow
_WORDS = (0, 1, 7, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@functools.cache
def killed() -> tuple[str, bytes, str, bytes]:
    """The name and bytes of the ring that a killed process left, and those of its trace."""
    with tempfile.TemporaryDirectory(prefix="dftracer-fuzz-") as folder:
        settings = {
            "DFTRACER_ENABLE": "1",
            "DFTRACER_LOG_FILE": f"{folder}/t",
            "DFTRACER_DISABLE_IO": "1",
            "DFTRACER_RING_DIR": folder,
            "DFTRACER_RING_SIZE": "65536",
            "DFTRACER_FLUSH_MS": "60000",
        }
        done = subprocess.run(
            [sys.executable, "-c", _KILLED],
            env=clean_environment(**settings),
            capture_output=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        (ring,) = Path(folder).rglob("*.ring")
        (trace,) = Path(folder).glob("*.pfw*")
        return ring.name, ring.read_bytes(), trace.name, trace.read_bytes()


def _hurt(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        return mutated(data, rng)
    hurt = bytearray(data)
    filled = len(data.rstrip(b"\0"))
    for _ in range(rng.choice((1, 2, 8, 40))):
        # Most of a ring is empty: aim at what describes it and at what is in it.
        at = rng.randrange(min(filled, _HEAD) if rng.random() < 0.5 else filled) & ~7
        word = rng.choice((*_WORDS, rng.getrandbits(64), rng.getrandbits(12)))
        hurt[at : at + 8] = struct.pack("<Q", word)
    return bytes(hurt)


def recover(folder: Path, ring: bytes, trace: bytes, fresh: bool) -> tuple[str, int, Path]:
    """What became of a ring beside a trace, how many events it gave, and where they are."""
    ring_name, _, trace_name, _ = killed()
    place, target = folder / ring_name, folder / "traces" / trace_name
    target.parent.mkdir()
    place.write_bytes(ring)
    place.chmod(0o600)
    if not fresh:
        target.write_bytes(trace)
        _core.ring_belongs_to(str(place), str(target))
    outcome, _, events = _core.recover_ring(str(place), str(target), fresh, True)
    return outcome, events, target


def damaged_ring(rng: random.Random) -> str | None:
    """What went wrong when a damaged ring was recovered; None if nothing did."""
    _, ring, _, trace = killed()
    with tempfile.TemporaryDirectory(prefix="dftracer-fuzz-") as name:
        folder = Path(name)
        if rng.random() < 0.2:
            trace = mutated(trace, rng)
        before = {"traces"} | {killed()[0]}
        try:
            _, _, target = recover(folder, _hurt(ring, rng), trace, rng.random() < 0.5)
            if target.exists():
                read_trace([target])
        except Exception:
            return traceback.format_exc()
        stray = [f for f in os.listdir(folder) if f not in before]
        return f"written where nobody asked: {stray}" if stray else None
