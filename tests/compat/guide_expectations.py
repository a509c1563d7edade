"""The events each block of the guide must leave in the trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from support.process import Run
from support.trace import Record, Trace
from support.tree import assert_nested, children, parent, path

__all__ = ["EXPECTED"]


def _cats(trace: Trace) -> Counter[tuple[str, str]]:
    return Counter((e.cat, e.name) for e in trace.events)


def _parent_name(trace: Trace, event: Record) -> str | None:
    above = parent(trace, event)
    return None if above is None else above.name


def _counts(trace: Trace, name: str) -> list[str]:
    return [e.args["count"] for e in trace.named(name)]


def setup(run: Run) -> None:
    assert run.written == [], "a program without events leaves no file"


def data_item(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("data", "item"): 1}
    assert trace.events[0].user_args == {}


def dataloader(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {
        ("dataloader", "fetch"): 1,
        ("dataloader", "fetch.iter"): 100,
        ("dataloader", "fetch.block"): 100,
        ("data", "item"): 100,
    }
    hundred = [str(i) for i in range(1, 101)]
    assert _counts(trace, "fetch.iter") == hundred
    assert _counts(trace, "fetch.block") == hundred
    life = trace.one("fetch")
    assert 0 <= life.args["active"] <= life.dur
    for item in trace.named("item"):
        assert _parent_name(trace, item) == "fetch", "the body of a generator runs inside its event"
        assert life.ts <= item.ts
        assert item.end <= life.end


def preprocess(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("data", "preprocess.collate"): 1, ("data", "preprocess.augment"): 1}
    assert trace.one("preprocess.collate").end <= trace.one("preprocess.augment").ts


def device(run: Run) -> None:
    assert _cats(run.trace) == {("device", "transfer"): 1}


def compute(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {
        ("compute", "forward"): 1,
        ("compute", "backward"): 1,
        ("compute", "compute.inside_model"): 1,
        ("compute", "compute.inside_backward"): 1,
    }
    assert path(trace, trace.one("compute.inside_model")) == ["forward", "compute.inside_model"]
    assert path(trace, trace.one("compute.inside_backward")) == ["backward", "compute.inside_backward"]
    assert_nested(trace)


def start_stop(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("compute", "step"): 1}
    assert trace.events[0].level == 1


def comm(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {
        ("compute", "backward"): 1,
        ("comm", "all_reduce"): 1,
        ("compute", "compute.inside_backward"): 1,
    }
    assert [e.name for e in children(trace, trace.one("backward"))] == [
        "compute.inside_backward",
        "all_reduce",
    ]
    assert_nested(trace)


def checkpoint(run: Run) -> None:
    trace = run.trace
    assert [(e.cat, e.name) for e in sorted(trace.events, key=lambda e: e.id)] == [
        ("checkpoint", "checkpoint.init"),
        ("checkpoint", "restart"),
        ("checkpoint", "capture"),
    ]


def training(run: Run) -> None:
    files = [p for p in run.written if "training" in p]
    assert files == ["cwd/training.pfw.gz", "cwd/training.rows"], run.written
    trace = run_in_cwd(run)
    assert _cats(trace) == {
        ("pipeline", "train"): 1,
        ("pipeline", "epoch.iter"): 5,
        ("pipeline", "epoch.block"): 5,
        ("dataloader", "fetch.iter"): 500,
        ("dataloader", "fetch.block"): 500,
        ("device", "transfer"): 500,
        ("compute", "forward"): 500,
        ("compute", "backward"): 500,
    }
    assert_nested(trace)
    train = trace.one("train")
    assert train.level == 1
    assert {e.name for e in children(trace, train)} == {"epoch.iter", "epoch.block"}
    for index, epoch in enumerate(trace.named("epoch.block")):
        inside = children(trace, epoch)
        assert Counter(e.name for e in inside) == {"fetch.iter": 100, "fetch.block": 100}
        assert [e.args["count"] for e in inside if e.name == "fetch.block"] == [str(i) for i in range(1, 101)]
        for step, block in enumerate(e for e in inside if e.name == "fetch.block"):
            work = children(trace, block)
            assert [e.name for e in work] == ["transfer", "forward", "backward"]
            assert {(e.args["epoch"], e.args["step"]) for e in work} == {(index, step)}


def run_in_cwd(run: Run) -> Trace:
    """The trace of a program that named its file itself."""
    return Run(run.returncode, run.stdout, run.stderr, run.cwd, run.cwd).trace


def _epoch_records(trace: Trace, epochs: int) -> None:
    records = [r for r in trace.metadata("CM") if r.args["name"].startswith("epoch.")]
    assert [r.args["name"] for r in records] == ["epoch.start", "epoch.end"] * epochs
    times = [int(r.args["value"]) for r in records]
    assert times == sorted(times)
    for record in records:
        assert re.fullmatch(r"\d{16}", record.args["value"]), "microseconds since the epoch, as a string"
        assert record.cat == "dftracer"
        assert "ts" not in record.raw


def metadata(run: Run) -> None:
    trace = run.trace
    _epoch_records(trace, 2)
    assert trace.one("forward").user_args == {"epoch": 1, "step": 2}


def custom(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("custom_category", "my_operation"): 1}
    assert trace.events[0].user_args == {"epoch": 1, "step": 100}


def nothing(run: Run) -> None:
    assert run.written == [], "what is switched off leaves no trace"


def decorator(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("compute", "forward"): 1, ("compute", "compute.inside_model"): 1}
    assert _parent_name(trace, trace.one("compute.inside_model")) == "forward"
    assert trace.one("forward").user_args == {}


def with_args(run: Run) -> None:
    trace = run.trace
    first, second = trace.named("forward")
    assert first.user_args == {"arg1": "value1", "arg2": "value2"}
    assert list(first.args) == ["hhash", "p_idx", "arg1", "arg2", "level"]
    assert second.user_args == {}, "args of one use stay with it"
    assert trace.one("compute.inside_model").user_args == {}, "and do not reach its children"


def iterable(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("dataloader", "fetch.iter"): 3, ("dataloader", "fetch.block"): 3}
    assert _counts(trace, "fetch.iter") == _counts(trace, "fetch.block") == ["1", "2", "3"]
    for wait, block in zip(trace.named("fetch.iter"), trace.named("fetch.block"), strict=True):
        assert wait.end <= block.ts


def constructor(run: Run) -> None:
    assert _cats(run.trace) == {("data", "item.init"): 1}


def update(run: Run) -> None:
    trace = run.trace
    forwards = trace.named("forward")
    assert [(e.args["epoch"], e.args["step"]) for e in forwards] == [
        (e, s) for e in range(2) for s in range(3)
    ]
    for forward in forwards:
        assert path(trace, forward) == ["epoch.block", "fetch.block", "forward"]
    others = [e for e in trace.events if e.name in ("fetch.block", "epoch.block", "compute.inside_model")]
    assert all("step" not in e.args for e in others), "an update reaches only its own subtree"
    assert_nested(trace)


def force(run: Run) -> None:
    trace = run.trace
    assert _cats(trace)[("compute", "backward")] == 1
    assert trace.named("forward") == []


def hook(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("pipeline", "epoch"): 1, ("compute", "compute"): 1}
    assert path(trace, trace.one("compute")) == ["epoch", "compute"]
    assert trace.one("compute").user_args == {"step": 41}
    assert_nested(trace)


def derive(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("data", "preprocess"): 1, ("data", "preprocess.collate"): 2, ("data", "item"): 1}
    outer, inner = trace.named("preprocess.collate")
    assert _parent_name(trace, inner) == "preprocess.collate"
    assert outer.level == 1
    for event in (outer, inner, trace.one("preprocess")):
        assert event.user_args == {"epoch": 7}
    assert trace.one("item").user_args == {}
    assert_nested(trace)


def streaming(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("pipeline", "epoch.iter"): 2, ("pipeline", "epoch.block"): 2}
    assert _counts(trace, "epoch.block") == ["1", "2"]
    _epoch_records(trace, 2)


def init(run: Run) -> None:
    trace = run.trace
    assert _cats(trace) == {("checkpoint", "checkpoint.init"): 2}


def init_once(run: Run) -> None:
    assert _cats(run.trace) == {("checkpoint", "checkpoint.init"): 1}


EXPECTED: dict[str, Callable[[Run], None]] = {
    "setup": setup,
    "data-item": data_item,
    "dataloader": dataloader,
    "preprocess": preprocess,
    "device": device,
    "compute": compute,
    "start-stop": start_stop,
    "comm": comm,
    "checkpoint": checkpoint,
    "training": training,
    "metadata": metadata,
    "custom": custom,
    "disable": nothing,
    "decorator": decorator,
    "decorator-args": with_args,
    "context": decorator,
    "context-args": with_args,
    "iterable": iterable,
    "constructor": constructor,
    "update": update,
    "force": force,
    "hook": hook,
    "derive": derive,
    "streaming": streaming,
    "init": init,
    "caveat-follows": nothing,
    "caveat-fixed": init_once,
}
