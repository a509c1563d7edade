"""The commands over damaged traces and collected directories: a sentence and an exit code, never more."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from dftracer.cli.main import main
from dftracer.load import Trace
from fuzz.mutate import mutated

__all__ = [
    "COLLECTED_VERBS",
    "CORPUS",
    "TRACE_VERBS",
    "damaged_collection",
    "damaged_sidecar",
    "damaged_trace",
]

CORPUS = Path(__file__).parent / "corpus"

# The words of a verb; IN is the damaged trace or directory, OUT a folder to write to.
TRACE_VERBS: dict[str, list[str]] = {
    "info": ["info", "IN"],
    "info --json": ["info", "--json", "IN"],
    "validate": ["validate", "IN"],
    "validate --json": ["validate", "--json", "IN"],
    "report": ["report", "IN"],
    "report --json": ["report", "--json", "IN", "--html", "OUT/page.html"],
    "report --md": ["report", "--md", "IN"],
    "merge": ["merge", "IN", "-o", "OUT/merged.pfw.gz"],
    "repair": ["repair", "IN", "-o", "OUT/repaired"],
    "repair --in-place": ["repair", "IN", "--in-place"],
    "slice": ["slice", "IN", "-o", "OUT/sliced", "--time", "0:1"],
    "slice --steps": ["slice", "IN", "-o", "OUT/steps", "--steps", "1:2"],
    "slice --epochs": ["slice", "IN", "-o", "OUT/epochs", "--epochs", "1", "--ranks", "0"],
    "query": ["query", "select name, cat, path, sum(dur), max(args) from events group by all", "IN"],
    "query --no-cache": ["query", "select count(*) from events", "IN", "--no-cache", "--ranks", "0"],
    "export chrome": ["export", "IN", "-o", "OUT/trace.json.gz"],
    "export parquet": ["export", "IN", "-o", "OUT/trace.parquet"],
    "export csv": ["export", "IN", "-o", "OUT/trace.csv"],
    "export arrow": ["export", "IN", "-o", "OUT/trace.arrow"],
}
COLLECTED_VERBS: dict[str, list[str]] = {
    "validate": ["validate", "IN"],
    "validate --json": ["validate", "--json", "IN"],
    "link": ["link", "IN", "-o", "OUT/linked", "--workers", "1"],
    "link --json": ["link", "--json", "IN", "-o", "OUT/linked", "--workers", "1"],
}
_GOOD_CODES = range(5)


def damaged_trace(rng: random.Random, words: list[str]) -> str | None:
    """What went wrong when a verb met a damaged trace beside a whole one; None if nothing did."""
    seeds = sorted((CORPUS / "traces").iterdir())

    def place(folder: Path) -> None:
        seed = rng.choice(seeds)
        (folder / seed.name).write_bytes(mutated(seed.read_bytes(), rng))
        other = rng.choice(seeds)
        if other != seed and rng.random() < 0.3:
            shutil.copy(other, folder)

    return _outcome(words, place)


def damaged_collection(rng: random.Random, words: list[str]) -> str | None:
    """The same with one file, or several, of a collected directory."""
    seeds = sorted((CORPUS / "collected").iterdir())

    def place(folder: Path) -> None:
        chosen = rng.sample(seeds, rng.choice((1, 1, 1, 2, 4)))
        for seed in seeds:
            if seed not in chosen:
                shutil.copy(seed, folder)
            elif rng.random() < 0.95:
                (folder / seed.name).write_bytes(mutated(seed.read_bytes(), rng))

    return _outcome(words, place)


def _outcome(words: list[str], place: Callable[[Path], None]) -> str | None:
    with tempfile.TemporaryDirectory(prefix="dftracer-fuzz-") as base:
        given, out = Path(base, "given"), Path(base, "out")
        given.mkdir()
        out.mkdir()
        place(given)
        argv = [str(given) if w == "IN" else w.replace("OUT", str(out)) for w in words]
        output, errors = io.StringIO(), io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                code = main([*argv, "-v"])  # where something is wrong, say where
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1
        except BaseException:
            return traceback.format_exc()
        if code not in _GOOD_CODES:
            return f"exit code {code}: {errors.getvalue()}"
        if code > 1 and errors.getvalue().count("\n") != 1:
            return f"not one line: {errors.getvalue()!r}"
        left = [p.name for p in out.rglob("*") if "tmp" in p.name or p.name.startswith(".")]
        return f"left behind: {left}" if left else None


def damaged_sidecar(rng: random.Random) -> str | None:
    """The same of a query over a whole trace whose Parquet sidecar has damage."""
    seeds = sorted((CORPUS / "traces").iterdir())

    def place(folder: Path) -> None:
        trace = shutil.copy(rng.choice(seeds), folder)
        Trace(trace).lazy()
        (made,) = (folder / ".dftracer-cache").iterdir()
        made.write_bytes(mutated(made.read_bytes(), rng))

    return _outcome(["query", "select count(*), sum(dur), max(name), max(args) from events", "IN"], place)
