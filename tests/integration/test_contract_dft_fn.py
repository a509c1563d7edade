"""`dft_fn`: the building block under the tree."""

from __future__ import annotations

from collections.abc import Callable

from support.process import Run
from support.tree import assert_nested, parent


def test_context_manager(traced: Callable[..., Run]) -> None:
    """cat and name as given; the arguments of the constructor are args of the event."""
    run = traced(
        """
        with dft_fn("IO", "read_all", epoch=1, step=2, image_idx=3, image_size=(224, 224)):
            pass
        with dft_fn(cat="IO", name="plain"):
            pass
        """
    )
    trace = run.trace
    event = trace.one("read_all")
    assert event.cat == "IO"
    assert event.user_args["epoch"] == 1
    assert event.user_args["step"] == 2
    assert event.user_args["image_idx"] == 3
    assert event.user_args["image_size"] in ([224, 224], "(224, 224)", "[224, 224]")
    assert trace.one("plain").user_args == {}


def test_log_uses_the_qualified_name(traced: Callable[..., Run]) -> None:
    """`.log` names the event after the function, `.log(name=...)` as told."""
    run = traced(
        """
        fn = dft_fn("COMPUTE")
        class A:
            @fn.log
            def method(self): return "m"
            @fn.log_init
            def __init__(self): self.x = 1
            @staticmethod
            @fn.log_static
            def static(v): return v
        @fn.log
        def plain(): return "p"
        @fn.log(name="renamed")
        def other(): return "o"
        a = A()
        assert (a.x, a.method(), A.static(4), a.static(5), plain(), other()) == (1, "m", 4, 5, "p", "o")
        """
    )
    names = run.trace.names
    assert sorted(names) == sorted(["A.__init__", "A.method", "A.static", "A.static", "plain", "renamed"]), (
        names
    )
    assert {e.cat for e in run.trace.events} == {"COMPUTE"}


def test_actual_arguments(traced: Callable[..., Run]) -> None:
    """epoch, step, image_idx and image_size come from the call: keyword, position or default."""
    run = traced(
        """
        fn = dft_fn("C")
        @fn.log
        def f(x, step=0, *, epoch=5):
            return step
        assert f(1, step=7) == 7
        assert f(1, 8, epoch=6) == 8
        assert f(1) == 0
        @fn.log
        def g(image_idx, image_size, **kw):
            return kw
        assert g(3, 64.5) == {}
        assert g(3, image_size=(1, 2), step=9) == {"step": 9}
        """
    )
    trace = run.trace
    assert [(e.args["step"], e.args["epoch"]) for e in trace.named("f")] == [(7, 5), (8, 6), (0, 5)]
    first, second = trace.named("g")
    assert first.user_args == {"image_idx": 3, "image_size": 64.5}
    assert second.args["image_idx"] == 3
    assert second.args["step"] == 9


def test_attributes_of_self(traced: Callable[..., Run]) -> None:
    """Without such an argument the attribute of `self` counts; a method of that name does no harm."""
    run = traced(
        """
        fn = dft_fn("C")
        class Loader:
            def __init__(self): self.epoch, self.step, self.image_idx = 3, 4, None
            @fn.log
            def load(self, step=None): return "loaded"
            @fn.log
            def next(self): return "next"
        class Optimizer:
            def step(self): return 1
            @property
            def epoch(self): raise RuntimeError("not yet")
            @fn.log
            def run(self): return "ran"
        l = Loader()
        assert l.load(step=11) == "loaded"
        assert l.next() == "next"
        assert Optimizer().run() == "ran"
        """
    )
    trace = run.trace
    assert trace.one("Loader.load").args["step"] == 11
    assert trace.one("Loader.next").args["step"] == 4
    assert trace.one("Loader.next").args["epoch"] == 3
    assert trace.one("Optimizer.run").dur >= 0


def test_wrong_kinds_never_raise(traced: Callable[..., Run]) -> None:
    """An argument of an unexpected kind is recorded as it is."""
    run = traced(
        """
        class Bad:
            def __repr__(self): raise ValueError("no repr")
            __str__ = __repr__
        fn = dft_fn("C")
        @fn.log
        def f(epoch=None, step="abc", image_size=None, image_idx=0): return epoch
        bad = Bad()
        assert f(epoch=bad) is bad
        assert f() is None
        assert f([1, {"a": 2}], step=None) == [1, {"a": 2}]
        with dft_fn("C", "ctx", epoch="one", step=[1, 2]): pass
        ai.update(epoch=bad, step={1, 2}, image_size=(3, 4.5))
        with ai.compute: pass
        ai.compute.forward.update(args={"bad": bad, 3: 4, None: 1})
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert trace.named("f")[1].args["step"] == "abc"
    assert trace.one("ctx").args["epoch"] == "one"
    assert len(trace.events) == 6
    assert run.stderr == ""


def test_iter(traced: Callable[..., Run]) -> None:
    """`loop.iter` is the wait and `loop.yield` the body, with the number of the iteration."""
    run = traced(
        """
        fn = dft_fn("LOAD")
        seen = []
        for item in fn.iter("abc"):
            with ai.compute.forward:
                seen.append(item)
        assert seen == list("abc")
        assert list(fn.iter([1, 2], name="train", iter_name="batch")) == [1, 2]
        """
    )
    trace = run.trace
    assert [int(e.args["step"]) for e in trace.named("loop.iter")] == [1, 2, 3]
    assert [int(e.args["step"]) for e in trace.named("loop.yield")] == [1, 2, 3]
    assert [int(e.args["batch"]) for e in trace.named("train.yield")] == [1, 2]
    assert {e.cat for e in trace.named("loop.iter")} == {"LOAD"}
    for forward in trace.named("forward"):
        above = parent(trace, forward)
        assert above is not None
        assert above.name == "loop.yield"
    assert_nested(trace)


def test_update_and_reset(traced: Callable[..., Run]) -> None:
    """`update` adds args to later events of this object; they stay after `reset`."""
    run = traced(
        """
        fn = dft_fn("C", "n", epoch=1)
        fn.update(step=2, args={"loss": 0.5, "phase": "warm"})
        with fn: pass
        fn.update(step=3)
        with fn: pass
        fn.reset()
        with fn: pass
        """
    )
    first, second, third = run.trace.named("n")
    assert first.user_args == {"epoch": 1, "step": 2, "loss": 0.5, "phase": "warm"}
    assert second.user_args["step"] == 3
    assert third.user_args == {"epoch": 1, "step": 3, "loss": 0.5, "phase": "warm"}


def test_flush_writes_the_event_at_once(traced: Callable[..., Run]) -> None:
    """`flush` ends the event of a running block early; the rest of the block is harmless."""
    run = traced(
        """
        fn = dft_fn("C", "n")
        fn.flush()
        with fn as same:
            assert same is fn
            fn.flush()
        with fn: pass
        """
    )
    assert 1 <= len(run.trace.named("n")) <= 3


def test_log_metadata(traced: Callable[..., Run]) -> None:
    """`log_metadata` writes a CM record."""
    run = traced('dft_fn("C").log_metadata("dataset", "imagenet")\ndft_fn("C").log_metadata("n", 3)')
    found = {r.args["name"]: r.args["value"] for r in run.trace.metadata("CM")}
    assert found["dataset"] == "imagenet"
    assert found["n"] == "3"


def test_enable_false(traced: Callable[..., Run]) -> None:
    """A disabled object records nothing and changes nothing."""
    run = traced(
        """
        fn = dft_fn("C", enable=False)
        @fn.log
        def f(): return 4
        with fn: pass
        assert f() == 4
        assert list(fn.iter(range(3))) == [0, 1, 2]
        """
    )
    assert run.written == []


def test_one_object_used_recursively_and_nested(traced: Callable[..., Run]) -> None:
    """Each entry is an event of its own."""
    run = traced(
        """
        fn = dft_fn("C", "n")
        @fn.log
        def fact(k): return 1 if k == 0 else k * fact(k - 1)
        assert fact(5) == 120
        with fn:
            with fn:
                with fn: pass
        """
    )
    trace = run.trace
    assert sorted(e.level for e in trace.named("n")) == [1, 2, 3]
    assert sorted(e.level for e in trace.named("fact")) == [1, 2, 3, 4, 5, 6]
    assert_nested(trace)
