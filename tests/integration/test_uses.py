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


@BOTH
def test_a_node_is_called_as_any_callable(enable: bool, traced: Callable[..., Run]) -> None:
    """With keywords one by one or as a dictionary, and through `__call__`; mistakes are told as before."""
    run = traced(
        """
        import functools
        node, given = ai.compute.forward, {"args": {"k": 1}, "epoch": None}
        for use in (node(args={"k": 1}), node(**given), node.__call__(**given), node(None, **given),
                    functools.partial(node, **given)()):
            with use: pass
        for wrong in (lambda: node(nothing=1), lambda: node(1, 2), lambda: node(len, 1, epoch=2)):
            try: wrong()
            except TypeError: pass
            else: raise AssertionError("no TypeError")

        class Counted(dft_fn): pass
        calls = []
        counted = Counted("c", "n")
        with counted(step=1): pass
        def counting(self, *args, **kwargs):
            calls.append((args, kwargs))
            return dft_fn.__call__(self, **kwargs)
        Counted.__call__ = counting
        with counted(step=2): pass
        assert calls == [((), {"step": 2})]
        """,
        enable=enable,
    )
    if enable:
        assert [e.user_args for e in run.trace.named("forward")] == [{"k": 1}] * 5
        assert [e.user_args for e in run.trace.named("n")] == [{"step": 1}, {"step": 2}]


def test_a_key_is_known_by_what_it_is_not_by_where_it_was(traced: Callable[..., Run]) -> None:
    """Keys, the same again, new objects with the text of old ones, renamed ones, those of other types."""
    run = traced(
        """
        import sys
        class Text(str): pass
        class Number(int):
            def __str__(self): return "changed"
        def record(args):
            with ai.compute.forward(args=args): pass
        for i in range(500):
            record({sys.intern(f"key{i % 300}"): i, "same": i, "".join(["sa", "me", str(i)]): -i})
        record({"level": 1, "p_idx": 2, "a": 3})
        record({"a": 1, Text("b"): 2, 1: 3, "1": 4, "n": Number(5), "t": True, "none": None, "f": 0.5})
        record({f"k{i}": i for i in range(40)})
        changing = {}
        class Grows:
            def __str__(self):
                changing.update({f"more{i}": i for i in range(100)})
                return "grown"
        changing.update(first=Grows(), second=2)
        record(changing)
        """
    )
    *many, renamed, mixed, wide, changed = [e.user_args for e in run.trace.named("forward")]
    assert many == [{f"key{i % 300}": i, "same": i, f"same{i}": -i} for i in range(500)]
    assert renamed == {"level_": 1, "p_idx_": 2, "a": 3}
    assert mixed == {"a": 1, "b": 2, "1": 4, "n": 5, "t": True, "none": None, "f": 0.5}
    assert wide == {f"k{i}": i for i in range(40)}
    assert changed["first"] == "grown"


def test_a_few_numbers_become_anything_else(traced: Callable[..., Run]) -> None:
    """Numbers of every size, then texts, the same keys again, keys of the node, more than has room."""
    run = traced(
        """
        node = ai.compute.forward
        ai.update(epoch=7, step=8)
        def record(use):
            with use: pass
        small = (0, 9, -1, 10, 99, 100, 2**30 - 1, 2**30, -2**30, 2**62, 2**63 - 1, -2**63)
        for number in (*small, 2**63, -10**30):
            record(node(args={"k": number}))
        record(node(args={"a": 1, "b": "x", "c": 2}))
        record(node(args={"step": 1, "pets": 2}))
        record(node(args={"k" * 60: 1, "l" * 60: 2, "m": 3}))
        record(node(args={"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}))
        again = node(args={"a": 1, "b": 2})
        again.update(args={"a": "text"})
        again.update(args={"b": 5, "c": 6})
        record(again)
        record(node(args={}))
        """
    )
    *numbers, mixed, own, long, five, again, none = [
        list(e.user_args.items()) for e in run.trace.named("forward")
    ]
    both = [("epoch", 7), ("step", 8)]
    small = (0, 9, -1, 10, 99, 100, 2**30 - 1, 2**30, -(2**30), 2**62, 2**63 - 1, -(2**63))
    assert numbers == [[*both, ("k", n)] for n in (*small, str(2**63), str(-(10**30)))]
    assert mixed == [*both, ("a", 1), ("b", "x"), ("c", 2)]
    assert own == [("epoch", 7), ("step", 1), ("pets", 2)]
    assert long == [*both, ("k" * 60, 1), ("l" * 60, 2), ("m", 3)]
    assert five == [*both, *zip("abcde", range(1, 6), strict=True)]
    assert again == [*both, ("a", "text"), ("b", 5), ("c", 6)]
    assert none == both
