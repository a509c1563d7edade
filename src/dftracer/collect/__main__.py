"""`python -m dftracer.collect` prints the folder that, on PYTHONPATH, makes DFTRACER_COLLECT work."""

from __future__ import annotations

from pathlib import Path

print(Path(__file__).resolve().parents[1] / "cli" / "startup")
