"""From what is known of the ranks to one verdict: what happened, to whom first, and what the others did."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dftracer._text import bytes_text, plural, seconds_text, times_text
from dftracer.postmortem.evidence import Evidence, LostWorker, RankEvidence
from dftracer.postmortem.stacks import Process, Tree, rank_set, shown_frames

FINE = ("running", "ended")

_MOVING_S = 30.0  # without a hang file, a rank that is silent for longer counts as hanging
_AFTERWARDS = ("SIGTERM", "SIGINT", "SIGHUP")  # what a launcher or a person sends to the others
_CRASHES = ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
_MEMORY = re.compile(r"MemoryError|OutOfMemory|out of memory|allocate memory|bad_alloc", re.IGNORECASE)
_WORKER = re.compile(r"worker \(pid")  # it died; what one raises is passed on with another text
# What a rank says when another one has gone.
_PEER = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Connection refused|remote (?:rank|process) |ncclRemoteError|"
    r"ncclSystemError|Timed out waiting|[Tt]imeout|heartbeat|TCPStore|Socket|peer|gloo|NCCL|c10d|"
    r"process group"
)
_PEER_NAMES = ("DistBackendError", "DistNetworkError", "DistStoreError")
# What a rank says when the process has gone that makes its batches: they are fetched through its sockets.
_CUT_OFF = (
    "ConnectionRefusedError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "BrokenPipeError",
    "EOFError",
)


@dataclass
class Verdict:
    """One verdict, and the evidence behind it."""

    kind: str
    rank: int | None
    sentence: str
    evidence: Evidence
    first: dict[str, Any] | None = None
    more: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        return self.kind in FINE

    def to_json(self) -> dict[str, Any]:
        return {
            "class": self.kind,
            "rank": self.rank,
            "ranks": [_row(r, self.evidence) for r in self.evidence.ranks],
            "first": self.first,
            "missing_ranks": self.evidence.missing,
            "sentence": self.sentence,
            "more": self.more,
            "run": self.evidence.run,
            "world_size": self.evidence.world_size,
            "restarts": self.evidence.attempt,
            "stacks": [
                {"ranks": ranks, "depth": d, "frames": f} for d, ranks, f in tree_of(self.evidence).lines()
            ],
        }


def tree_of(evidence: Evidence) -> Tree:
    """The stacks of the ranks' main threads."""
    tree = Tree()
    for rank in evidence.ranks:
        main = rank.process.main if rank.process is not None else None
        if main is not None and main.frames:
            tree.add(rank.rank, shown_frames(main.frames))
    return tree


def judge(evidence: Evidence) -> Verdict:
    """What happened."""
    verdict = (
        _stopped(evidence)
        or (_hung(evidence) if _is_hang(evidence) else None)
        or _judge_end(evidence)
        or _silent_job(evidence)
        or _progress_or_end(evidence)
    )
    verdict.first = verdict.first or _first(evidence, verdict.rank)
    if evidence.missing:
        verdict.more.append(
            f"Nothing is known about {_ranks_text(evidence.missing)}: "
            f"no file of {_pronoun(evidence.missing)} was found."
        )
    if evidence.attempt:
        verdict.more.append(f"The launcher had restarted the job {times_text(evidence.attempt)}.")
    return verdict


# --- Ranks


def _row(r: RankEvidence, evidence: Evidence) -> dict[str, Any]:
    collective = r.collective
    return {
        "rank": r.rank,
        "state": _state(r, evidence),
        "step": r.step,
        "stage": r.stage,
        "where": r.where,
        "since_s": round(max(0, evidence.now_us - r.moved_us) / 1e6, 1) if r.moved_us else None,
        "collective": None
        if collective is None
        else {k: collective.get(k) for k in ("group", "seq", "op", "bytes")},
        "open_file": r.open_file,
        "exit_code": r.exit_code,
        "signal": r.signal,
        "exception": _exception(r),
        "pid": r.pid if r.pid > 0 else None,
        "host": r.host,
    }


def _exception(r: RankEvidence) -> str | None:
    if r.exception is None:
        return None
    return f"{r.exception}: {r.exception_text}" if r.exception_text else r.exception


def _state(r: RankEvidence, evidence: Evidence) -> str:
    if not r.alive:
        if _ended_well(r):
            return "ended"
        return "dead" if r.pid > 0 and (r.ended_us or r.signal or r.exit_code) else "unknown"
    if r.process is not None and r.process.state in ("T", "t"):
        return "stopped"
    if r.collective is not None:
        return "waiting"
    if r.hang is None and evidence.now_us - r.moved_us < _MOVING_S * 1e6:
        return "running"
    main = r.process.main if r.process is not None else None
    return "running" if main is not None and main.state == "R" else "blocked"


def _is_silent(r: RankEvidence, evidence: Evidence) -> bool:
    return r.hang is not None or evidence.now_us - r.moved_us > _MOVING_S * 1e6


def _first(evidence: Evidence, rank: int | None) -> dict[str, Any] | None:
    who = next((r for r in evidence.ranks if r.rank == rank), None)
    if who is None:
        gone = [r for r in evidence.ranks if r.moved_us]
        who = min(gone, key=lambda r: r.moved_us) if gone else None
    if who is None:
        return None
    at = who.ended_us if not who.alive and who.hang is None and who.ended_us else who.moved_us
    return {"rank": who.rank, "time": None if not at else round(at / 1e6, 6)}


# --- It hangs


def _stopped(evidence: Evidence) -> Verdict | None:
    stopped = [r for r in evidence.alive if r.process is not None and r.process.state in ("T", "t")]
    if not stopped:
        return None
    if len(stopped) == len(evidence.alive) and len(stopped) > 1:
        return Verdict(
            "stopped",
            None,
            f"All {len(stopped)} ranks are stopped (SIGSTOP); they have not moved since "
            f"{_clock(max(r.moved_us for r in stopped))}.",
            evidence,
        )
    who = min(stopped, key=lambda r: r.moved_us)
    others = _waiting_words(evidence, {r.rank for r in stopped})
    words = (
        " and ".join(f"rank {r.rank}" for r in stopped)
        if len(stopped) < 4
        else _ranks_text([r.rank for r in stopped])
    )
    verb = "is" if len(stopped) == 1 else "are"
    text = f"{words[0].upper()}{words[1:]} {verb} stopped (SIGSTOP){_at(who)}{_step(who)}"
    return Verdict("stopped", who.rank, f"{text}; {others}." if others else f"{text}.", evidence)


def _is_hang(evidence: Evidence) -> bool:
    """Whether it stood still first: what ended it afterwards, if anything, is no cause."""
    hung = [r for r in evidence.ranks if r.hang is not None]
    if not hung:
        return False
    since = min(r.hang["moved_us"] or 0 for r in hung if r.hang is not None)
    for r in evidence.ranks:
        if r.alive or r.ended_us is None:
            continue
        if _ended_well(r) and all(x.collective is None for x in hung):  # nobody waits for it
            continue
        ended = r.exit_code is not None or r.signal or r.exception
        noticed = max(x.hang["written_us"] or 0 for x in hung if x.hang is not None)
        # It had failed, and takes its time to leave.
        if r.exception_us is not None and not _is_consequence(r) and r.exception_us <= noticed:
            return False
        # It went before the others noticed: they wait for a rank that is no more.
        if r.hang is None and ended and not _is_consequence(r) and r.ended_us <= noticed:
            return False
        if r.ended_us < since:
            return False
    return True


def _hung(evidence: Evidence) -> Verdict:
    ranks = [r for r in evidence.ranks if r.alive or r.hang is not None]
    waiting = [r for r in ranks if r.collective is not None]
    elsewhere = [r for r in ranks if r.collective is None]
    if _in_startup(evidence):
        return _startup(evidence, ranks)
    if not elsewhere:
        return _all_waiting(evidence, waiting)
    dead = [r for r in evidence.ranks if not r.alive and r.hang is None and r.pid > 0]
    if dead and waiting:
        verdict = _judge_end(evidence)
        if verdict is not None:
            return verdict
    who = min(elsewhere, key=lambda r: (_severity(r), r.moved_us))
    return _elsewhere(evidence, who, waiting)


def _in_startup(evidence: Evidence) -> bool:
    return all(not r.steps and (r.stage in (None, "startup")) for r in evidence.ranks)


def _startup(evidence: Evidence, ranks: list[RankEvidence]) -> Verdict:
    joining = [
        r for r in ranks if r.collective is not None or (r.process is not None and r.process.operation)
    ]
    absent = [r for r in ranks if r not in joining]
    if absent and joining:
        who = min(absent, key=lambda r: r.moved_us)
        return Verdict(
            "startup",
            who.rank,
            f"Rank {who.rank} hangs in start-up, before the first step: it has {_doing(who)}"
            f" since {_clock(who.moved_us)}; {_wait_words(joining)}.",
            evidence,
        )
    if absent:
        who = min(absent, key=lambda r: r.moved_us)
        seen = _place(who) + _file(who)
        return Verdict(
            "startup",
            who.rank if len(evidence.ranks) == 1 or len(absent) == 1 else None,
            f"{_ranks_text([r.rank for r in absent]).capitalize()} "
            f"{'hangs' if len(absent) == 1 else 'hang'} in start-up, before the first step"
            f"{f':{seen}' if seen else ','} since {_clock(who.moved_us)}.",
            evidence,
        )
    missing = _ranks_text(evidence.missing).capitalize() if evidence.missing else ""
    unknown = f" {missing} may not have arrived." if missing else ""
    return Verdict(
        "startup",
        None,
        f"All {len(ranks)} ranks wait in start-up, before the first step: {_wait_words(joining)}.{unknown}",
        evidence,
    )


def _severity(r: RankEvidence) -> int:
    """Of several ranks that are elsewhere, the one with a visible reason is more likely the cause."""
    order = ("stopped", "gil", "worker", "lock")
    kind = _kind_elsewhere(r)
    return order.index(kind) if kind in order else len(order) - (r.open_file is not None)


def _kind_elsewhere(r: RankEvidence) -> str:
    main = r.process.main if r.process is not None else None
    if _keeps_lock(r) and not (main is not None and r.open_file == main.path):  # the file is the reason
        return "gil"
    if _stuck_worker(r) is not None:
        return "worker"
    if main is not None and main.call == "lock":  # of a file
        return "lock"
    if r.open_file is not None or main is None:
        return "missing_rank"
    if main.call == "futex" and main.state != "R" and r.stage not in ("checkpoint", "backward", "forward"):
        return "lock"
    return "missing_rank"


def _keeps_lock(r: RankEvidence) -> bool:
    """One call of one of its threads keeps the interpreter lock."""
    return r.hang is not None and r.hang.get("lock_held_by") is not None


def _stuck_worker(r: RankEvidence) -> Process | None:
    """A loader worker that is dead, stopped, or busy with one item, while its rank waits for a batch."""
    if r.stage != "fetch_wait":
        return None
    workers = [
        w for w in r.workers if w.name.startswith(("pt_data_worker", "python", "pt_main")) or w.threads
    ]
    for w in workers:
        if w.state in ("Z", "X", "T", "t"):
            return w
    busy = [w for w in workers if w.main is not None and w.main.where is not None]
    blocked = [w for w in busy if w.open_file is not None] or busy
    return blocked[0] if blocked else None


def _elsewhere(evidence: Evidence, who: RankEvidence, waiting: list[RankEvidence]) -> Verdict:
    kind = _kind_elsewhere(who)
    came = _never_entered(who, waiting) if waiting else ""
    since = f" since {_clock(who.moved_us)}"
    alone = len(evidence.ranks) == 1 and not evidence.missing
    name = "The program" if alone else f"Rank {who.rank}"
    if kind == "gil":
        text = f"{name} has held the interpreter lock in one call{_at(who)}{since}{_step(who)}"
        text += ": none of its other threads runs"
    elif kind == "worker":
        worker = _stuck_worker(who)
        assert worker is not None
        who.where = worker.where or who.where
        who.open_file = worker.open_file or who.open_file
        gone = {"Z": "is dead", "X": "is dead", "T": "is stopped", "t": "is stopped"}.get(worker.state)
        at = f" at {_code(worker.where)}" if worker.where else ""
        reading = f", waiting for `{worker.open_file}`" if worker.open_file else ""
        text = (
            f"{name} has been waiting for a batch{since}{_step(who)}; its loader worker (pid {worker.pid}) "
        )
        text += gone or f"is stuck{at}{reading}"
    elif kind == "lock":
        leaving = who.process is not None and who.process.leaving
        what = (
            "is exiting and has been waiting for one of its threads"
            if leaving
            else f"has been waiting for the lock of `{who.open_file}`"
            if who.open_file
            else "has been waiting for a lock or another thread"
        )
        text = f"{name} {what}{_at(who)}{since}{_step(who)}"
    else:
        text = f"{name} has {_doing(who)}{since}{_step(who)}"
        text += "; it has held the interpreter lock all that time" if _keeps_lock(who) else ""
    sentence = f"{came} {text}." if came else f"{text}."
    if who.hang is not None and who.hang["handling"]:
        sentence += f" It is cleaning up after {who.hang['handling'].rstrip('.')}."
    also = [
        r for r in evidence.ranks if r.collective is None and r is not who and (r.alive or r.hang is not None)
    ]
    more = []
    if also and waiting:
        seen = ((r, f"{_stage(r)}{_place(r)}{_file(r)}") for r in also[:3])
        more = [f"Rank {r.rank} is not in it either{f':{words}' if words else ''}." for r, words in seen]
    return Verdict(kind, who.rank, sentence, evidence, more=more)


def _never_entered(who: RankEvidence, waiting: list[RankEvidence]) -> str:
    calls = Counter(_collective_words(r.collective) for r in waiting if r.collective is not None)
    name = calls.most_common(1)[0][0]
    mine = [r for r in waiting if r.collective is not None and _collective_words(r.collective) == name]
    since = min(r.moved_us for r in mine)
    return (
        f"Rank {who.rank} never entered {name}; {_ranks_text([r.rank for r in mine])} "
        f"{_have(mine)} been waiting in it since {_clock(since)}."
    )


def _all_waiting(evidence: Evidence, waiting: list[RankEvidence]) -> Verdict:
    keys: dict[tuple[Any, ...], list[RankEvidence]] = {}
    for r in waiting:
        c = r.collective or {}
        keys.setdefault((c.get("group"), c.get("seq"), c.get("op")), []).append(r)
    if len(keys) == 1 and not _different_sizes(waiting):
        gone = [r for r in evidence.ranks if not r.alive and r.hang is None]
        if gone or evidence.missing:
            verdict = _judge_end(evidence) if gone else None
            if verdict is not None:
                return verdict
            (name,) = {_collective_words(r.collective) for r in waiting}
            return Verdict(
                "missing_rank" if len(evidence.missing) == 1 else "same_collective",
                evidence.missing[0] if len(evidence.missing) == 1 else None,
                f"All ranks for which files were found have been waiting in {name} since "
                f"{_clock(min(r.moved_us for r in waiting))}; "
                f"{_ranks_text(evidence.missing)} may not have arrived: nothing is known about "
                f"{_pronoun(evidence.missing)}.",
                evidence,
            )
        return Verdict(
            "same_collective",
            None,
            f"All {len(waiting)} ranks have been in {_collective_words(waiting[0].collective)} since "
            f"{_clock(max(r.moved_us for r in waiting))}: the network, or a peer that is not seen here, "
            "holds it up.",
            evidence,
        )
    by_call = sorted(keys.values(), key=lambda rs: (-len(rs), rs[0].rank))
    if len(keys) == 1:
        by_call = _by_size(waiting)
    fewest = by_call[-1]
    odd = fewest[0] if len(fewest) == 1 and len(by_call[0]) > 1 else None
    parts = [
        f"{_ranks_text([r.rank for r in rs])} {'is' if len(rs) == 1 else 'are'} in "
        f"{_collective_words(rs[0].collective)}{_at(rs[0])}"
        for rs in by_call
    ]
    text = "; ".join(parts)
    return Verdict(
        "order_mismatch",
        None if odd is None else odd.rank,
        f"The ranks are in different collectives: {text}. They call them in a different order, or one was "
        "skipped.",
        evidence,
    )


def _different_sizes(waiting: list[RankEvidence]) -> bool:
    ops = {(r.collective or {}).get("op") for r in waiting}
    sizes = {(r.collective or {}).get("bytes") for r in waiting} - {None}
    return len(sizes) > 1 and ops <= {"all_reduce", "broadcast", "barrier", "all_gather", "reduce_scatter"}


def _by_size(waiting: list[RankEvidence]) -> list[list[RankEvidence]]:
    sizes: dict[Any, list[RankEvidence]] = {}
    for r in waiting:
        sizes.setdefault((r.collective or {}).get("bytes"), []).append(r)
    return sorted(sizes.values(), key=lambda rs: (-len(rs), rs[0].rank))


# --- It died


def _lost_worker(r: RankEvidence) -> LostWorker | None:
    """The child whose death explains the exception."""
    if r.exception is None or not r.lost:
        return None
    cut_off = r.exception.partition(" ")[0] in _CUT_OFF
    if not cut_off and not _WORKER.search(r.exception_text):
        return None
    named = [w for w in r.lost if re.search(rf"\b{w.pid}\b", r.exception_text)]
    return (named or r.lost)[0]


def _is_consequence(r: RankEvidence) -> bool:
    """Whether it ended because another rank had."""
    if r.signal in _AFTERWARDS:
        return True
    if r.exception is None or _lost_worker(r) is not None:
        return False
    named = r.exception.partition(" ")[0] in _PEER_NAMES
    return named or bool(
        r.exception_text and _PEER.search(r.exception_text) and not _WORKER.search(r.exception_text)
    )


def _judge_end(evidence: Evidence) -> Verdict | None:
    gone = [r for r in evidence.ranks if not r.alive and r.pid > 0]
    bad = [r for r in gone if not _ended_well(r)]
    early = _early_exit(evidence, gone, bad)
    if evidence.ended_by and bad and all(r.signal in _AFTERWARDS or _is_consequence(r) for r in bad):
        return _killed_from_outside(evidence, bad)
    causes = [r for r in bad if r is not early and not _is_consequence(r)] or ([] if early else bad)
    if not causes and early is None:
        return None
    first = min(causes, key=lambda r: (r.ended_us or r.last_us or 0, r.rank)) if causes else None
    if early is not None and (first is None or first is early or _is_consequence(first)):
        first = early
    assert first is not None
    kind = "early_exit" if first is early else _kind_of_end(first, evidence)
    return Verdict(kind, first.rank, _end_sentence(first, kind, evidence), evidence)


def _killed_from_outside(evidence: Evidence, ranks: list[RankEvidence]) -> Verdict:
    """A user or a scheduler ended the launcher, which ended the ranks: none of them is to blame."""
    first = min(ranks, key=lambda r: (r.ended_us or r.last_us or 0, r.rank))
    text = f"The job was ended from outside at {_clock(first.ended_us)}{_step(first)}: its launcher got "
    return Verdict("killed", None, f"{text}{evidence.ended_by}.{_others_sentence(evidence.ranks)}", evidence)


def _crashed_at_exit(r: RankEvidence) -> bool:
    """Its program had come to an end; tearing down a process group that others still use may abort."""
    return r.program_done and r.signal in _CRASHES and r.exception is None


def _ended_well(r: RankEvidence) -> bool:
    """`finalize()` closes a trace before there is an exit code."""
    return r.exit_code == 0 or (r.exit_code is None and r.closed and not r.signal and not r.exception)


def _early_exit(evidence: Evidence, gone: list[RankEvidence], bad: list[RankEvidence]) -> RankEvidence | None:
    """A rank that exited normally while the others still waited for it."""
    well = [r for r in gone if _ended_well(r) or _crashed_at_exit(r)]
    wanting = [r for r in evidence.ranks if r not in well and (r in bad or r.collective is not None)]
    if not well or not wanting:
        return None
    # Its connections close while it leaves: the others fail before it is gone.
    first = min(well, key=lambda r: r.moved_us)
    return first if all(first.moved_us <= (r.ended_us or evidence.now_us) for r in wanting) else None


def _kind_of_end(r: RankEvidence, evidence: Evidence) -> str:
    text = f"{r.exception or ''} {r.exception_text}"
    if r.exception is not None and r.signal is None:
        if _MEMORY.search(text):
            return "memory"
        return "worker" if _WORKER.search(text) or _lost_worker(r) is not None else "exception"
    if r.signal is not None:
        if r.signal == "SIGKILL" and evidence.out_of_memory:
            return "memory"
        return "signal" if r.signal in _CRASHES else "killed"
    if r.exit_code is not None:
        return "early_exit"
    return "killed"  # without a message, and nobody saw how


def _end_sentence(r: RankEvidence, kind: str, evidence: Evidence) -> str:
    alone = len(evidence.ranks) == 1 and not evidence.missing
    name = "The program" if alone else f"Rank {r.rank}"
    when = f" at {_clock(r.ended_us)}" if r.ended_us else ""
    if r.exception is not None and r.signal is None:
        what, _, at = r.exception.partition(" at ")
        text = f"{name} failed{when}{_step(r)}{f' at {_code(at)}' if at else ''}: {what}"
        text += f": {r.exception_text}" if r.exception_text else ""
        if kind == "memory":
            text = text.replace(" failed", " ran out of memory", 1)
        worker = _lost_worker(r) if kind == "worker" else None
        if worker is not None:
            how = "ended without a message, as if killed"
            if worker.signal:
                how = f"was killed ({worker.signal})"
            if worker.exit_code is not None:
                how = f"exited with code {worker.exit_code}"
            text = f"{text.rstrip('.')}. Its loader worker (pid {worker.pid}) {how} before"
    elif kind == "early_exit" and r.signal is not None:
        text = f"{name} finished{_step(r)} while the others were still working, and crashed"
        text += f" while exiting{when}: {r.signal}"
    elif kind == "memory":
        text = f"{name} was killed by the kernel{when}{_step(r)}: its cgroup was out of memory"
    elif r.signal is not None:
        by = "crashed" if kind == "signal" else "was killed from outside"
        text = f"{name} {by}{when}{_step(r)}: {r.signal}{_at(r)}"
    elif r.exit_code is not None:
        text = f"{name} exited{when}{_step(r)} with code {r.exit_code} while the others were still working"
        if alone:
            text = f"{name} exited{when}{_step(r)} with code {r.exit_code}"
    else:
        text = f"{name} ended{when}{_step(r)} without a message, as if killed (SIGKILL){_at(r)}"
    after = [x for x in evidence.ranks if x is not r]
    return f"{text.rstrip('.')}.{_others_sentence(after)}"


def _others_sentence(others: list[RankEvidence]) -> str:
    kinds: dict[str, list[int]] = {}
    for r in others:
        if r.alive:
            c = r.collective
            kinds.setdefault(f"in {_collective_words(c)}" if c is not None else "still running", []).append(
                r.rank
            )
        elif r.signal in _AFTERWARDS:
            kinds.setdefault(f"ended by {r.signal} afterwards", []).append(r.rank)
        elif r.exception is not None:
            kinds.setdefault(f"failed afterwards ({r.exception.partition(' at ')[0]})", []).append(r.rank)
        elif r.exit_code == 0:
            kinds.setdefault("finished normally", []).append(r.rank)
    parts = []
    for what, who in sorted(kinds.items(), key=lambda item: item[1][0]):
        verb = "" if what.startswith(("failed", "finished normally")) else "is " if len(who) == 1 else "are "
        if what.startswith("ended by"):
            verb = "was " if len(who) == 1 else "were "
        parts.append(f"{_ranks_text(who)} {verb}{what}")
    if not parts:
        return ""
    text = "; ".join(parts)
    return f" {text[0].upper()}{text[1:]}."


# --- It moves, or ended well


def _silent_job(evidence: Evidence) -> Verdict | None:
    """Ranks that have been silent for long, without a watch that would have reported it."""
    still = [r for r in evidence.alive if _is_silent(r, evidence)]
    if not still or len(still) < len(evidence.alive):
        return None
    return _hung(evidence)


def _progress_or_end(evidence: Evidence) -> Verdict:
    if evidence.alive:
        steps = [r.step for r in evidence.alive if r.step is not None]
        at = f", at step {max(steps)}" if steps else ""
        text = f"The job is making progress: {plural(len(evidence.alive), 'rank')} alive{at}."
        return Verdict("running", None, text, evidence)
    noted = evidence.noted
    if noted is not None and (noted.get("exit_code") or noted.get("signal")):
        how = noted.get("signal") or f"exit code {noted.get('exit_code')}"
        kind = "killed" if noted.get("signal") else "early_exit"
        return Verdict(kind, None, f"The program ended with {how}; no rank says why.", evidence)
    steps = [r.step for r in evidence.ranks if r.step is not None]
    at = f" after {plural(max(steps) + 1, 'step')}" if steps else ""
    return Verdict("ended", None, f"The job finished normally{at}.", evidence)


# --- Words


def _clock(us: int | None) -> str:
    return time.strftime("%H:%M:%S", time.localtime((us or 0) / 1e6)) if us else "an unknown time"


def _code(where: str | None) -> str:
    """`data.py:57 load_shard` as "`load_shard`, data.py:57"."""
    at, _, function = (where or "").partition(" ")
    return f"`{function}`, {at}" if function and function != "<module>" else at


def _at(r: RankEvidence) -> str:
    return f" in {_code(r.where)}" if r.where else ""


def _place(r: RankEvidence) -> str:
    return f" in {_code(r.where)}," if r.where and r.open_file else f" in {_code(r.where)}" if r.where else ""


def _file(r: RankEvidence) -> str:
    if not r.open_file:
        return ""
    main = r.process.main if r.process is not None else None
    verb = {"read": "reading", "write": "writing", "open": "opening", "fsync": "syncing", "lock": "locking"}
    return f" {verb.get(main.call if main is not None else '', 'waiting for')} `{r.open_file}`"


def _stage(r: RankEvidence) -> str:
    words = {
        "fetch_wait": " waiting for a batch",
        "checkpoint": " writing or reading a checkpoint",
        "evaluation": " evaluating",
        "compilation": " compiling",
    }
    return words.get(r.stage or "", "") + ("," if r.stage in words and r.where else "")


def _doing(r: RankEvidence) -> str:
    """What follows "it has" and comes before "since"."""
    seen = f"{_stage(r)}{_place(r)}{_file(r)}"
    return f"been{seen}" if seen else "made no progress"


def _step(r: RankEvidence) -> str:
    return "" if r.step is None else f" (step {r.step})"


def _collective_words(c: dict[str, Any] | None) -> str:
    if c is None:
        return "a collective"
    number = "" if c.get("seq") is None else f" #{c['seq']}"
    facts = []
    if c.get("group") is not None:
        facts.append(f"group {c['group']}")
    if c.get("bytes"):
        facts.append(bytes_text(c["bytes"]))
    return f"{c.get('op') or 'a collective'}{number}" + (f" ({', '.join(facts)})" if facts else "")


def _have(ranks: list[RankEvidence]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _wait_words(ranks: list[RankEvidence]) -> str:
    calls: dict[str, list[RankEvidence]] = {}
    for r in ranks:
        op = r.process.operation if r.process is not None and r.collective is None else None
        calls.setdefault(op or _collective_words(r.collective), []).append(r)
    return "; ".join(
        f"{_ranks_text([r.rank for r in rs])} {_have(rs)} been waiting in {name} since "
        f"{_clock(min(r.moved_us for r in rs))}"
        for name, rs in calls.items()
    )


def _waiting_words(evidence: Evidence, except_for: set[int]) -> str:
    return _wait_words([r for r in evidence.ranks if r.rank not in except_for and r.collective is not None])


def _ranks_text(numbers: list[int]) -> str:
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {rank_set(numbers)}"


def _pronoun(numbers: list[int]) -> str:
    return "it" if len(numbers) == 1 else "them"


def since_text(r: RankEvidence, evidence: Evidence) -> str:
    """How long ago it last moved."""
    return seconds_text(max(0, evidence.now_us - r.moved_us) / 1e6) if r.moved_us else ""
