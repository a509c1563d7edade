"""Where programs can notice a difference, it is the one that docs/compat.md states."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from support.process import Run

PAGE = Path(__file__).parents[2] / "docs" / "compat.md"


def test_the_clock_goes_on_with_tracing_off(program: Callable[..., Run]) -> None:
    program(
        """
        import time
        from dftracer.python import ai, dftracer
        assert abs(dftracer.get_instance().get_time() / 1e6 - time.time()) < 5
        """,
        enable=False,
    )


def test_operations_of_training_have_gradients(program: Callable[..., Run]) -> None:
    run = program(
        """
        import torch
        from dftracer.python import dftracer, dynamo
        log = dftracer.initialize_log(None, None, -1)
        w = torch.ones(3, requires_grad=True)
        dynamo.compile(lambda x: (x * w).sum())(torch.ones(3)).backward()
        log.finalize()
        """
    )
    forward = [e.args for e in run.trace.events if e.args.get("phase") == "forward"]
    assert forward
    assert {a["grad_enabled"] for a in forward} == {1}


def test_one_session(program: Callable[..., Run]) -> None:
    run = program(
        """
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        assert dftracer.initialize_log("elsewhere.pfw", None, -1) is log
        with ai.compute:
            pass
        log.finalize()
        """
    )
    assert run.one("compute").cat == "compute"
    assert not [w for w in run.written if "elsewhere" in w]


def test_tags_raise_late(program: Callable[..., Run]) -> None:
    program(
        """
        from dftracer.python import TagDType, TagValue
        tag = TagValue("x", TagDType.INT)
        try:
            tag.value()
        except ValueError:
            pass
        else:
            raise SystemExit("no error")
        """
    )


def test_records(program: Callable[..., Run]) -> None:
    """The dialect, the reserved names, JSON in args, args that hold when an event ends."""
    run = program(
        """
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log(None, None, -1)
        for _ in ai.pipeline.epoch.iter(range(1)):
            pass
        with ai.compute.forward(args={"level": 9, "flag": True, "shape": [1, 2], "more": {"a": 1}}):
            ai.update(args={"loss": 0.5})
        log.finalize()
        """
    )
    loop = run.one("epoch.block").args
    assert loop["count"] == "1"
    event = run.one("forward")
    assert event.raw["ph"] == "X"
    assert {"id", "pid", "tid", "ts", "dur"} <= set(event.raw)
    assert {"hhash", "p_idx", "level"} <= set(event.args)
    assert event.args["level_"] == 9
    assert (event.args["flag"], event.args["shape"], event.args["more"]) == (True, [1, 2], {"a": 1})
    assert event.args["loss"] == 0.5
    before = [r.name for r in run.trace.records[: run.trace.records.index(event)]]
    assert before[: before.index("start") + 1] == ["HH", "thread_name", "FH", "SH", "SH", "start"]
    assert run.trace.metadata("HH")[0].args["run"]


def test_handlers_and_private_attributes(program: Callable[..., Run]) -> None:
    program(
        """
        import signal
        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)]
        from dftracer.python import compute, dft_fn
        from dftracer.python.common import capture_signal
        assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT)] == before
        assert not hasattr(dft_fn("c"), "_arguments_int") and not hasattr(compute, "profiler")
        """
    )


def test_every_row_names_a_test_that_exists() -> None:
    """The tests that the page names are there."""
    root = PAGE.parents[1] / "tests"
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE.read_text()))
    assert named
    assert not [name for name in named if not list(root.rglob(name))]
