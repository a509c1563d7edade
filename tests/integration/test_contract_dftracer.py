"""The logger object: initialise, log, finalise, in any order, any number of times."""

from __future__ import annotations

from collections.abc import Callable

from support.process import Run
from support.tree import assert_nested, parent


def test_get_time_is_microseconds_since_the_epoch(traced: Callable[..., Run]) -> None:
    """The clock agrees with the wall clock and never runs backwards."""
    traced(
        """
        import time
        before = time.time_ns() // 1000
        now = log.get_time()
        after = time.time_ns() // 1000
        assert isinstance(now, int)
        # Two clocks read one after the other: adjusted wall time may differ by its slew, never by seconds.
        assert before - 1_000_000 <= now <= after + 1_000_000
        times = [log.get_time() for _ in range(1000)]
        assert times == sorted(times)
        """
    )


def test_singleton(traced: Callable[..., Run]) -> None:
    """`get_instance` and a second `initialize_log` give the object of the first."""
    run = traced(
        """
        assert dftracer.get_instance() is log
        assert dftracer.initialize_log("other.pfw", None, 3) is log
        with ai.compute:
            pass
        """
    )
    assert len(run.written) == 1


def test_log_event(traced: Callable[..., Run]) -> None:
    """A complete event with args of three kinds, plain or tagged."""
    run = traced(
        """
        from dftracer.python import TagType
        t = log.get_time()
        log.log_event("op", "MY", t, 17, {"i": 1, "big": 2**40}, {"f": 0.1}, {"s": "text"})
        log.log_event(name="op2", cat="MY", start_time=t, duration=5,
                      int_args={"i": (list(TagType)[0], 4)}, float_args={"f": (list(TagType)[0], 2.5)},
                      string_args={"s": (list(TagType)[0], "x")})
        log.log_event("bare", "MY", t, 0)
        """
    )
    trace = run.trace
    op = trace.one("op")
    assert (op.cat, op.dur) == ("MY", 17)
    assert op.user_args == {"i": 1, "big": 2**40, "f": 0.1, "s": "text"}
    assert trace.one("op2").user_args == {"i": 4, "f": 2.5, "s": "x"}
    assert trace.one("op2").ts == op.ts
    assert trace.one("bare").user_args == {}


def test_enter_and_exit_event_nest_logged_events(traced: Callable[..., Run]) -> None:
    """Events logged between `enter_event` and `exit_event` are children of the one logged after it."""
    run = traced(
        """
        def record(name, inner=None):
            start = log.get_time()
            log.enter_event()
            if inner:
                inner()
            log.exit_event()
            return name, start, log.get_time() - start
        log.enter_event()
        start = log.get_time()
        log.enter_event()
        inner_start = log.get_time()
        with ai.compute.forward:
            pass
        log.log_event("inner", "c", inner_start, log.get_time() - inner_start)
        log.exit_event()
        log.log_event("outer", "c", start, log.get_time() - start)
        log.exit_event()
        with ai.compute.backward:
            pass
        """
    )
    trace = run.trace
    assert trace.one("outer").level == 1
    assert parent(trace, trace.one("inner")) == trace.one("outer")
    assert parent(trace, trace.one("forward")) == trace.one("inner")
    assert trace.one("backward").level == 1
    assert_nested(trace)


def test_exit_without_enter_is_harmless(traced: Callable[..., Run]) -> None:
    """Unbalanced calls leave levels right."""
    run = traced(
        """
        for _ in range(3):
            log.exit_event()
        with ai.compute.forward:
            pass
        """
    )
    assert run.one("forward").level == 1


def test_log_metadata_event(traced: Callable[..., Run]) -> None:
    """A CM record with key and value as strings."""
    run = traced('log.log_metadata_event("model", "resnet \\"50\\"")\nlog.log_metadata_event("n", 7)\n')
    found = {r.args["name"]: r.args["value"] for r in run.trace.metadata("CM")}
    assert found["model"] == 'resnet "50"'
    assert found["n"] == "7"


def test_only_metadata_is_kept(traced: Callable[..., Run]) -> None:
    """A trace of one metadata record is a trace."""
    run = traced('log.log_metadata_event("k", "v")\nlog.finalize()\n')
    assert [r.args["value"] for r in run.trace.metadata("CM") if r.args["name"] == "k"] == ["v"]


def test_everything_before_initialise_is_harmless(program: Callable[..., Run]) -> None:
    """Annotated code may run before the log is opened."""
    run = program(
        """
        from dftracer.python import ai, dft_fn, dftracer
        @ai.compute.forward
        def f(): return 1
        @dft_fn("c").log
        def g(): return 2
        assert (f(), g()) == (1, 2)
        with ai.data.item: pass
        assert list(ai.dataloader.fetch.iter(range(3))) == [0, 1, 2]
        ai.update(epoch=1)
        ai.compute.step.start(); ai.compute.step.stop()
        ai.pipeline.epoch.start(metadata=True); ai.pipeline.epoch.stop(metadata=True)
        d = dftracer.get_instance()
        d.enter_event(); d.exit_event()
        d.log_event("x", "y", d.get_time(), 1)
        d.log_metadata_event("k", "v")
        d.finalize()
        d.finalize()
        """
    )
    assert run.stderr == ""


def test_finalise_twice_and_events_after_it(traced: Callable[..., Run]) -> None:
    """After `finalize` annotations do nothing; the file is complete and stays as it is."""
    run = traced(
        """
        import os, glob, hashlib
        with ai.compute.forward: pass
        log.finalize()
        path, = glob.glob(os.environ["DFTRACER_LOG_FILE"] + "*")
        before = open(path, "rb").read()
        with ai.compute.backward: pass
        log.log_event("late", "c", log.get_time(), 1)
        log.log_metadata_event("late", "v")
        log.finalize()
        assert open(path, "rb").read() == before
        """
    )
    trace = run.trace
    assert trace.names == ["forward"]
    assert trace.files[0].closed


def test_an_event_open_across_initialise_and_finalise(program: Callable[..., Run]) -> None:
    """An event that began before the log opened, or ends after it closed, breaks nothing."""
    run = program(
        """
        from dftracer.python import ai, dftracer
        with ai.pipeline.train:
            log = dftracer.initialize_log(None, None, -1)
            with ai.compute.forward: pass
        with ai.compute.backward: pass
        with ai.pipeline.epoch:
            with ai.compute.step: pass
            log.finalize()
        """
    )
    trace = run.trace
    assert {"forward", "backward", "step"} <= set(trace.names)
    assert trace.one("backward").level == 1


def test_initialise_again_after_finalise(traced: Callable[..., Run]) -> None:
    """A second session after `finalize` gives a second, complete trace."""
    run = traced(
        """
        with ai.compute.forward: pass
        log.finalize()
        again = dftracer.initialize_log(None, None, -1)
        with ai.compute.backward: pass
        again.finalize()
        """
    )
    trace = run.trace
    assert sorted(trace.names) == ["backward", "forward"]
    assert all(f.closed for f in trace)


def test_a_trace_without_finalise_is_closed_at_exit(traced: Callable[..., Run]) -> None:
    """`finalize` is optional."""
    run = traced("with ai.compute.forward: pass")
    (file,) = run.trace.files
    assert file.closed
    assert [e.name for e in file.events] == ["forward"]


def test_small_trace_is_kept(traced: Callable[..., Run]) -> None:
    """One event is a trace."""
    run = traced("with ai.compute.forward: pass\nlog.finalize()")
    assert run.trace.names == ["forward"]


def test_data_dir_and_process_id_of_any_kind(program: Callable[..., Run]) -> None:
    """The three parameters are optional and forgiving."""
    for call in (
        "initialize_log()",
        "initialize_log(None)",
        'initialize_log(logfile=None, data_dir="/tmp:/var", process_id=3)',
        'initialize_log(None, ["/a", "/b"], "7")',
        "initialize_log(None, None, None)",
    ):
        run = program(
            f"""
            from dftracer.python import ai, dftracer
            log = dftracer.{call}
            with ai.compute.forward: pass
            """
        )
        assert "Traceback" not in run.stderr
    assert run.trace.names == ["forward"] * 5
