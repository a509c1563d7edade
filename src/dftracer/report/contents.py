"""What every form of the report shows: its first lines, the account, notes, evidence, files, colours; and
all of it as one JSON document.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dftracer._text import bytes_text, count_text, plural, seconds_text, shortened
from dftracer.analyze import STAGES, Analysis, Rank, frames
from dftracer.analyze.device.summary import device_document, uses_device
from dftracer.analyze.ledger import steady_steps, unseen_stages
from dftracer.analyze.map.account import Account
from dftracer.analyze.rules.bound import line_of_part
from dftracer.analyze.say.wording import short, stage_words
from dftracer.analyze.stages import INPUT_STAGES, STAGE_INDEX

# --- What every report begins with: three lines, and notes on what it does not show


_TRAININGS = 12
_COMMAND = 50  # characters of it

# One colour per stage, everywhere: warm for input, blue and green for compute.
COLOURS = {
    "fetch_wait": "#e5484d",
    "read": "#f76b15",
    "preprocess": "#ffb224",
    "collate": "#d9c32e",
    "transfer": "#8e4ec6",
    "forward": "#3e63dd",
    "backward": "#0091ff",
    "optimizer": "#30a46c",
    "comm": "#e93d82",
    "checkpoint": "#ad7f58",
    "sync": "#5ec4b6",
    "own_code": "#7d66d9",
    "other": "#8b8d98",
    "unexplained": "#c9cbd3",
}
PHASE_WORDS = {
    "steady": "steps",
    "startup": "imports, set-up and warm-up",
    "compilation": "compilation",
    "evaluation": "evaluation",
    "outside": "between and after steps",
    "profiled": "added by the profiler",
}
PHASE_COLOURS = {
    "steady": "#3e63dd",
    "startup": "#8b8d98",
    "compilation": "#f76b15",
    "evaluation": "#0e7490",
    "outside": "#c9cbd3",
    "profiled": "#d9c32e",
}
_ROW = {"other": "other", "own_code": "own_code", "unseen": "unexplained", "between_steps": "outside"}
# The lines of the account in words, and a colour for each; a line that is a stage has the stage's.
LINE_WORDS = {
    "input": "waiting for data",
    "transfer": "transfer",
    "device": "GPU busy",
    "host": "compute",
    "comm": "communication",
    "peers": "waiting for other ranks",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    "own_code": "own code",
    "unexplained": "unexplained",
}
LINE_COLOURS = {
    "input": "#e5484d",
    "transfer": "#8e4ec6",
    "device": "#4d7c0f",
    "host": "#3e63dd",
    "comm": "#e93d82",
    "peers": "#f5a3c7",
    "checkpoint": "#ad7f58",
    "evaluation": "#0e7490",
    "own_code": "#7d66d9",
    "unexplained": "#c9cbd3",
}


def head(analysis: Analysis) -> tuple[str, str, str]:
    """The verdict, why, and what to try next."""
    return analysis.head


def culprit(a: Analysis) -> str | None:
    """The row to mark: a stage of the ledger, or a part of the run."""
    if a.bound is None or a.judged is None:
        return None
    part = a.bound.part
    if part.id == "input":
        return max(INPUT_STAGES, key=lambda s: a.judged.stages_s[s] if a.judged is not None else 0.0)
    if part.id in {"startup", "compilation", "evaluation", *_ROW}:
        return _ROW.get(part.id, part.id)
    return part.stage if part.stage in STAGE_INDEX else None


@dataclass(frozen=True)
class AccountRow:
    """A line of the account as it is shown."""

    line: str
    words: str
    seconds: float
    share: float
    culprit: bool


def account_rows(a: Analysis) -> list[AccountRow]:
    """The lines that have time, the largest first; the one that the verdict is about is the culprit."""
    if a.account is None or a.judged is None:
        return []
    blamed = None if a.bound is None or a.bound.part.of_run else line_of_part(a.bound.part.id)
    gpu = uses_device(a.judged.account_rank)
    rows = []
    for line, seconds in sorted(a.account.seconds.items(), key=lambda kv: -round(kv[1], 6)):
        if seconds > 0:
            words = "host launching work" if line == "host" and gpu else LINE_WORDS[line]
            rows.append(AccountRow(line, words, seconds, a.account.share(line), line == blamed))
    return rows


def account_title(a: Analysis) -> str:
    """What the account covers."""
    assert a.account is not None and a.judged is not None  # noqa: PT018 - without steps nothing is shown
    rank = a.judged.account_rank
    n, whole = a.account.steps, plural(len(rank.main.steps), "step")
    # Not "steady": from the first steady step on, first steps of later epochs are among them.
    steps = f"All {whole}" if n == len(rank.main.steps) else f"The last {n} of {whole}"
    return f"{steps} of rank {rank.number} and the time between them"


def without_waiting(rank: Rank) -> tuple[dict[str, float], float]:
    """A rank's seconds by stage without waiting for other ranks, and that waiting."""
    waited = rank.peers.waiting.sum(axis=0)
    out = {stage: float(rank.stage_us(stage).sum()) for stage in STAGES}
    taken = {stage: min(float(us), out[stage]) for stage, us in zip(STAGES, waited, strict=True)}
    return {s: (us - taken[s]) / 1e6 for s, us in out.items()}, sum(taken.values()) / 1e6


def notes(a: Analysis) -> list[str]:
    """What a reader must know besides the verdict: stages not seen, other runs in the directory."""
    out = []
    if a.judged is not None:
        # Whether a run has transfers, communication or checkpoints is seen; how batches are made may not be.
        if "fetch_wait" in unseen_stages(a.judged.rank):
            out.append(
                "How batches are made could not be seen: use a DataLoader, or wrap their iterator, as in"
                " `for batch in ai.dataloader.fetch.iter(batches)`."
            )
        n = a.judged.rank.main.steps.elsewhere
        if n:
            is_are = "1 step of another thread is" if n == 1 else f"{n} steps of other threads are"
            out.append(f"{is_are} not shown: a rank's steps are those of the thread with the most.")
    out += training_words(a)
    tries = a.attempts
    for number, each in enumerate(tries, start=1):
        how = each.words(len(a.job.ranks)) or "It finished normally."
        out.append(f"Attempt {number} of {len(tries)}: {how}")
    others = a.run["others"]
    if others:
        named = "; ".join(_run_words(r) for r in others[:4])
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        is_are = "1 other run is" if len(others) == 1 else f"{len(others)} other runs are"
        out.append(
            f"{is_are} in the same directory and {'was' if len(others) == 1 else 'were'} left out: {named}{more}."
        )
        out.append("Choose one with --run ID, or use --run all to treat all files as one run.")
    return out


def ended_words(a: Analysis) -> str | None:
    """How the run ended, where that is worth a line."""
    return a.ended.words(len(a.job.ranks))


def _command(a: Analysis) -> str:
    """That of the process that trains."""
    process = a.job.ranks[0].main.process
    return str((process.run or {}).get("command") or process.command.replace(";", " "))


def _arguments(command: str) -> str:
    """A command without its interpreter; of a spawned child it says nothing."""
    program, _, rest = command.partition(" ")
    return "" if "multiprocessing" in rest else rest if Path(program).name.startswith("python") else command


def training_words(a: Analysis) -> list[str]:
    """The trainings of a run that has several: in processes of their own, or in turn in one."""
    each = a.trainings
    if each:
        out = [f"{len(each)} training runs in separate processes; this is the longest:"]
        calls = [_arguments(_command(one)) for one in each]
        differ = len({*calls}) > 1
        for one, call in [*zip(each, calls, strict=True)][:_TRAININGS]:
            main = one.job.ranks[0].main
            here = "▸" if main is a.job.ranks[0].main else "-"
            named = f" ({shortened(call, _COMMAND)})" if differ and call else ""
            length = f"{plural(len(main.steps), 'step')}, {seconds_text(one.run_s)}"
            out.append(f"{here} process {main.process.pid}{named}, {length}: {one.verdict}")
        return out + ([f"- and {len(each) - _TRAININGS} more"] if len(each) > _TRAININGS else [])
    rank = a.job.slowest
    if rank is None or not rank.main.steps.training.any():
        return []
    steps = rank.main.steps
    counts = np.bincount(steps.training)
    lengths = []
    for number, n in enumerate(counts.tolist()):
        usual = float(np.median(steps.wall[steps.training == number])) / 1e6
        lengths.append(f"{n} steps of {short(usual)}")
    return [f"{len(counts)} training runs in a row, each with its own optimizer: {', '.join(lengths)}."]


def identity_rows(a: Analysis) -> list[tuple[str, str]]:
    """Which run this is: its command, place, time, versions and id, as far as known."""
    run = a.run
    hosts = a.trace_facts["hosts"]
    more = f" and {hosts - 1} more" if isinstance(hosts, int) and hosts > 1 else ""
    versions = [
        f"{what} {run[key]}"
        for what, key in (("dftracer", "version"), ("Python", "python"))
        if run[key] is not None
    ]
    rows = [
        ("command", run["command"]),
        ("host", f"{run['host']}{more}" if run["host"] else None),
        ("date", _when(run["start"])),
        ("versions", ", ".join(versions)),
        ("run", run["id"]),
        ("launcher", run["launcher"]),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _when(start: object) -> str | None:
    if not isinstance(start, int):
        return None
    try:
        return datetime.fromtimestamp(start / 1e6, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # a damaged record: no calendar goes that far
        return None


def _run_words(run: dict[str, object]) -> str:
    return f"{run['id'] or 'files without a run id'} ({_when(run['start']) or 'unknown time'})"


# --- The numbers behind a finding, with labels and units


_LABELS = {
    "stages_s": "waiting, by what the loader did",
    "files_while_waiting_s": "files read meanwhile",
    "share_of_step_time": "share of the step time",
    "max_speedup": "maximum speed-up",
    "read_s": "reading",
    "loading_in_main_thread_s": "loading in the main thread",
    "exposed_by_rank_s": "exposed, by rank",
    "mean_work_s": "own work per step, by rank",
    "times_slower_per_byte": "slower per byte",
    "first_step_index": "first such step",
    "idle": "device idle",
    "top": "files",
    "p50_s": "median item",
    "p99_s": "99th percentile",
    "max_s": "longest",
    "own_s": "this rank, per step",
    "median_rank_s": "median rank, per step",
    "median_s": "median step",
    "extra_s": "lost",
    "seconds": "time",
    "p": "probability that it is chance",
    "every": "interval in steps",
    "steps_slowest": "steps in which it came last",
}
_SECONDS = ("seconds", "idle")
_TIMES = ("max_speedup", "times_slower_per_byte")
_STAGES = ("stage", "stages_s", "idle")
_NAMES = ("rank", "worker", "pid", "tid", "first_step_index", "change_point_step_index")  # no amounts
_IN_TITLE = ("rank", "stage", "steps", "share_of_step_time", "kind", "path", "event")
_MAX = 8  # entries of a list


def _trimmed(text: str) -> str:
    """7.10 s becomes 7.1 s: a finding is not a measurement log."""
    number, space, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number}{space}{unit}"


def _seconds(value: float) -> str:
    return _trimmed(seconds_text(value)) if value < 120 else seconds_text(value)


def _number(key: str, value: float) -> str:
    if key.endswith(("_s", "_us")) or key in _SECONDS:
        return _seconds(value / 1e6 if key.endswith("_us") else value)
    if "share" in key or key == "change":
        return f"{_trimmed(f'{100 * value:.1f}')} %"
    if "bytes" in key:
        return bytes_text(value)
    if key in _TIMES:
        return f"{value:.3g} times"
    if key in _NAMES or not isinstance(value, int):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return count_text(value)


def _named(key: str, name: str) -> str:
    """The name of an entry: a stage in plain words, a rank by its number, anything else as it is."""
    if key in _STAGES:
        return name.replace("_", " ")
    return f"rank {name}" if name.isdigit() else name


def _text(key: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return _number(key, value)
    if isinstance(value, dict):
        parts = [f"{_named(key, str(k))} {_text(key, v)}" for k, v in value.items()]
        return _listed(parts, ", ")
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], dict):
            return _listed([_record(v) for v in value], "; ")
        return _listed([_text("pid" if "processes" in key else "", v) for v in value], ", ")
    return stage_words(str(value)) if key == "stage" else str(value)


def _record(row: dict[str, Any]) -> str:
    first, *rest = row.items()
    facts = [f"{_label(k)} {_text(k, v)}" for k, v in rest if v is not None]
    return f"{_text(*first)} ({', '.join(facts)})"


def _listed(parts: list[str], between: str) -> str:
    more = f"{between}{len(parts) - _MAX} more" if len(parts) > _MAX else ""
    return between.join(parts[:_MAX]) + more


def _label(key: str) -> str:
    plain = key.removesuffix("_s").removesuffix("_us").removesuffix("_bytes")
    return _LABELS.get(key, plain.replace("_", " "))


def evidence_rows(evidence: dict[str, Any]) -> list[tuple[str, str]]:
    """The label and text of every known fact."""
    return [(_label(k), text) for k, v in evidence.items() if v is not None and (text := _text(k, v))]


def evidence_line(evidence: dict[str, Any], most: int) -> str:
    """The first facts in one line, without those already in the title."""
    rows = evidence_rows({k: v for k, v in evidence.items() if k not in _IN_TITLE})
    return " · ".join(f"{label}: {text}" for label, text in rows[:most])


# --- The files of a report, those apart that nothing was done to but to look them up


_FEW = 2  # so many have a row each


# Shared memory between loader workers, the terminal, our own files, where Python looks for its settings:
# nobody asks about them.
_TRIVIAL = (
    r"^/dev/shm/torch_|^/dev/(pts/|tty|null)|^(pipe|socket|anon_inode):"
    r"|\.pfw(\.gz)?(\.|$)|^<?std(in|out|err)>?$|/dftracer-run-[0-9a-f]+-announced$"
    r"|/(python[0-9.]*\._pth|pybuilddir\.txt|pyvenv\.cfg|pymp-[a-z0-9_]{8})$"
)
_LITTLE_S = 0.1  # what a redirected stdout takes is no news below this


def shown_files(table: pl.DataFrame) -> pl.DataFrame:
    """The table with one row for all paths that were neither opened nor read nor written.

    Importing packages looks up thousands of them (`stat`, `lstat`), and no other file would be seen. What is
    not the program's data is left out.
    """
    little = pl.col("time_s") < _LITTLE_S
    written = (pl.col("writes") > 0) | (pl.col("time_s") == 0)
    # Nobody opened it: it came with the process, as stdout and stderr do.
    handed = (pl.col("opens") == 0) & (pl.col("reads") == 0) & written & little
    # Python tries where temporary files may be (`tempfile`).
    tried = (
        pl.col("path").str.contains(r"/[a-z0-9_]{8}$") & (pl.col("write_bytes") == 4) & (pl.col("ops") < 8)
    )
    table = table.filter(~(pl.col("path").str.contains(_TRIVIAL) | handed | tried))
    used = (pl.col("opens") > 0) | (pl.col("reads") > 0) | (pl.col("writes") > 0)
    rest = table.filter(~used)
    if rest.height <= _FEW:
        return table
    sums = {c: pl.col(c).sum() for c, kind in table.schema.items() if kind.is_numeric()}
    sums |= {c: pl.col(c).max() for c in ("processes", "ranks")}
    sums |= {c: pl.lit(None, table.schema[c]) for c in ("read_mb_s", "write_mb_s")}
    sums["path"] = pl.lit(f"({rest.height} paths only looked up)")
    one = rest.select(**sums).select(table.columns)
    shown: pl.DataFrame = pl.concat([table.filter(used), one])
    return shown.sort("time_s", "path", descending=[True, False])


# --- The report as one JSON document; docs/report.md describes every key

SCHEMA = "dftracer.report/2"
_MAX_FILES = 1000
_PIECES = ("steady", "startup", "compilation", "evaluation", "outside", "profiled")


def _rounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


_IO_SUMS = (
    "ops",
    "opens",
    "reads",
    "writes",
    "read_bytes",
    "write_bytes",
    "time_s",
    "read_s",
    "write_s",
    "small_reads",
)


def _io(analysis: Analysis) -> dict[str, Any] | None:
    """All files together; None if no I/O was traced."""
    files = analysis.file_table
    if files is None:
        return None
    sums = {k: files[k].sum() for k in _IO_SUMS}
    return {"files": files.height, **_rounded([sums])[0]}


def comparable(analysis: Analysis) -> dict[str, Any]:
    """The part of the document used to compare runs."""
    return {
        "schema": SCHEMA,
        "verdict": analysis.verdict,
        "bound": None if analysis.bound is None else analysis.bound.to_json(),
        "account": Account().to_json() if analysis.account is None else analysis.account.to_json(),
        "account_s": 0.0 if analysis.account is None else round(analysis.account.whole_s, 6),
        "run": analysis.run,
        "run_s": round(analysis.run_s, 6),
        "ended": analysis.ended.to_json(),
        **{k: analysis.phases.get(k, {"seconds": 0.0, "share": 0.0}) for k in _PIECES},
        "au": analysis.au,
        "samples_per_s": analysis.samples_per_s,
        "steady_steps": steady_steps(analysis.job),
        "io": _io(analysis),
        "findings": [f.to_json() for f in analysis.findings],
        "model": analysis.model,
        "device": device_document(analysis.job),
        "machine": analysis.machine,
    }


def _training(a: Analysis) -> dict[str, Any]:
    """One of several trainings of a run."""
    main = a.job.ranks[0].main
    return {
        "pid": main.process.pid,
        "command": _command(a) or None,
        "steps": len(main.steps),
        "run_s": round(a.run_s, 6),
        "verdict": a.verdict,
        "bound": None if a.bound is None else a.bound.to_json(),
        "ended": a.ended.to_json(),
    }


def document(analysis: Analysis) -> dict[str, Any]:
    """Everything in the report, for programs; keys are added over time, never renamed."""
    files = analysis.file_table
    rest = comparable(analysis)
    return {
        "schema": SCHEMA,
        "trace": analysis.trace_facts,
        "verdict": rest.pop("verdict"),
        "head": list(analysis.head),
        "bound": rest.pop("bound"),
        "account": rest.pop("account"),
        "account_s": rest.pop("account_s"),
        "run": rest.pop("run"),
        "run_s": rest.pop("run_s"),
        **rest,
        "own_code": analysis.own_code,
        "attempts": [each.to_json() for each in analysis.attempts],
        "trainings": [_training(each) for each in analysis.trainings],
        "ranks": analysis.ranks,
        "ledger": analysis.ledger,
        "overlap": analysis.overlap,
        "names": _rounded(analysis.name_table.to_dicts()),
        "files": [] if files is None else _rounded(files.head(_MAX_FILES).to_dicts()),
        "files_total": 0 if files is None else files.height,
        "workers": _rounded(frames.workers(analysis.job).to_dicts()),
    }
