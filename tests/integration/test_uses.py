"""`node(epoch=1)` and `node.init(...)`: an object with the methods of a node, with tracing on and off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.process import Run

BOTH = pytest.mark.parametrize("enable", [True, False], ids=["on", "off"])


@BOTH
def test_a_use_has_the_methods_of_a_node(enable: bool, traced: Callable[..., Run]) -> None:
    """Its arguments are on every event it makes."""
    run = traced(
        """
        for node in (ai.compute.forward, ai.compute.forward.init):
            use = node(epoch=1)
            assert (use.name, use.cat) == (node.name, node.cat)
            for method in "update iter derive start stop enable disable reset".split():
                assert callable(getattr(use, method)), method
        with ai.compute.forward(epoch=1) as n:
            assert n.update(step=2, args={"k": 3}) is n
        assert list(ai.dataloader.fetch(epoch=1).iter([5, 6])) == [5, 6]
        use = ai.compute.backward(epoch=1)
        use.start(); use.stop()
        with use.derive(name="loss"): pass
        with use.init: pass
        with use.reset(): pass
        use.disable()
        with use: pass
        use.enable()
        ai.comm.send(epoch=4).start()
        ai.comm.send.stop()
        with ai.checkpoint.init(step=7) as n: n.update(epoch=8)
        with ai.data(epoch=1).item: pass
        assert use.get_time() > 0
        """,
        enable=enable,
    )
    if not enable:
        assert run.written == []
        return
    trace = run.trace
    assert trace.one("forward").user_args == {"epoch": 1, "step": 2, "k": 3}
    for name in ("fetch.iter", "fetch.block"):
        first, second = trace.named(name)
        assert first.user_args == {"epoch": 1, "count": "1"}
        assert second.user_args == {"epoch": 1, "count": "2"}
    assert [e.user_args for e in trace.named("backward")] == [{"epoch": 1}] * 2
    assert trace.one("backward.loss").user_args == {"epoch": 1}
    assert trace.one("backward.init").user_args == {"epoch": 1}
    assert trace.one("send").user_args == {"epoch": 4}
    assert trace.one("checkpoint.init").user_args == {"step": 7, "epoch": 8}


@BOTH
def test_a_use_is_of_the_class_of_its_node(enable: bool, traced: Callable[..., Run]) -> None:
    """`isinstance` says of `node(...)` what it says of the node."""
    traced(
        """
        from dftracer.python import Compute, DataLoader, DFTracerAI
        assert isinstance(ai.init(), DFTracerAI) and isinstance(ai.compute.forward(epoch=1), DFTracerAI)
        assert isinstance(ai.compute(epoch=1), Compute) and not isinstance(ai.compute(epoch=1), DataLoader)
        assert isinstance(ai.compute(epoch=1).derive("loss"), DFTracerAI)
        for other in (dft_fn("c"), DFTracerAI, None, 3, "ai"):
            assert not isinstance(other, DFTracerAI)
        """,
        enable=enable,
    )


def test_flush_writes_the_arguments(traced: Callable[..., Run]) -> None:
    """Of an object that was never entered: those it was made with and those it was given."""
    run = traced(
        """
        fn = dft_fn("C", "n", epoch=1)
        fn.update(step=2, args={"k": 3})
        fn.flush()
        fn.reset()
        fn.flush()
        """
    )
    assert [e.user_args for e in run.trace.named("n")] == [{"epoch": 1, "step": 2, "k": 3}] * 2


@BOTH
def test_empty_names_fall_back(enable: bool, traced: Callable[..., Run]) -> None:
    """To the category, or to the function that made the object."""
    traced(
        """
        from dftracer.python import DFTracerAI
        assert DFTracerAI(cat="x", name="").name == "x"
        def maker(): return dft_fn("c", name="")
        assert maker().name == "maker"
        """,
        enable=enable,
    )
