"""Everything Python can call is decorated rightly and stays what it was."""

from __future__ import annotations

from collections.abc import Callable

from support.process import Run
from support.tree import assert_nested, children, parent


def test_generator_is_one_event_for_its_life(traced: Callable[..., Run]) -> None:
    """The event spans the life of the generator; `active` is the time inside it."""
    run = traced(
        """
        import time
        @ai.dataloader.fetch
        def batches(n):
            for i in range(n):
                with ai.data.item: time.sleep(0.002)
                yield i
        seen = []
        for b in batches(5):
            with ai.compute.step: time.sleep(0.004)
            seen.append(b)
        assert seen == [0, 1, 2, 3, 4]
        """
    )
    trace = run.trace
    life = trace.one("fetch")
    steps, items = trace.named("step"), trace.named("item")
    assert all(life.ts <= e.ts and e.end <= life.end for e in [*steps, *items])
    assert life.dur >= sum(e.dur for e in [*steps, *items])
    inside = sum(e.dur for e in items)
    assert inside - len(items) <= life.args["active"] <= life.dur - sum(e.dur for e in steps) + len(steps)
    assert all(parent(trace, e) == life for e in items), "the body is inside"
    assert all(e.level == 1 for e in steps), "the consumer is not"


def test_generator_protocol_is_kept(traced: Callable[..., Run]) -> None:
    """send, throw, close, return values and `yield from` work as without the decorator."""
    run = traced(
        """
        import inspect
        @ai.compute.forward
        def g(a, b=2):
            "doc"
            got = []
            try:
                while True:
                    try:
                        got.append((yield len(got)))
                    except KeyError as e:
                        got.append(repr(e))
                    if len(got) == 3:
                        return got
            finally:
                closed.append(True)
        closed = []
        assert inspect.isgeneratorfunction(g)
        it = g(1)
        assert inspect.isgenerator(it) or hasattr(it, "send")
        assert next(it) == 0
        assert it.send("x") == 1
        assert it.throw(KeyError("k")) == 2
        try:
            it.send("y")
        except StopIteration as stop:
            assert stop.value == ["x", "KeyError('k')", "y"]
        assert closed == [True]
        def outer():
            return (yield from g(1))
        o = outer()
        next(o); o.send(1); o.send(2)
        try: o.send(3)
        except StopIteration as stop: assert stop.value == [1, 2, 3]
        early = g(1); next(early); early.close()
        assert closed == [True] * 3
        dropped = g(1); next(dropped); del dropped
        assert closed == [True] * 4
        never = g(1); del never
        with ai.data.item: pass
        """
    )
    trace = run.trace
    assert len(trace.named("forward")) >= 4
    assert all("error" not in e.args for e in trace.named("forward"))
    assert trace.one("item").level == 1


def test_generator_that_raises(traced: Callable[..., Run]) -> None:
    """Its event carries the error."""
    run = traced(
        """
        @ai.compute.forward
        def g():
            yield 1
            raise OSError("disk")
        try: list(g())
        except OSError as e: assert e.args == ("disk",)
        with ai.data.item: pass
        """
    )
    assert run.one("forward").args["error"] == "OSError"
    assert run.one("item").level == 1


def test_generators_interleaved(traced: Callable[..., Run]) -> None:
    """Two generators advanced in turn do not become each other's parents."""
    run = traced(
        """
        @ai.data.item
        def a():
            for _ in range(3):
                with ai.comm.send: pass
                yield
        @ai.data.preprocess
        def b():
            for _ in range(3):
                with ai.comm.receive: pass
                yield
        for _ in zip(a(), b()): pass
        """
    )
    trace = run.trace
    assert {p.name for e in trace.named("send") if (p := parent(trace, e))} == {"item"}
    assert {p.name for e in trace.named("receive") if (p := parent(trace, e))} == {"preprocess"}
    assert len(trace.named("send")) == len(trace.named("receive")) == 3


def test_coroutine_is_its_awaited_time(traced: Callable[..., Run]) -> None:
    """The event covers the awaits, children of the same task nest in it."""
    run = traced(
        """
        import asyncio, inspect
        @ai.data.item
        async def load(i):
            "doc"
            with ai.comm.receive:
                await asyncio.sleep(0.01)
            return i * 2
        assert inspect.iscoroutinefunction(load) and asyncio.iscoroutinefunction(load)
        assert load.__doc__ == "doc"
        async def main():
            return await load(21)
        assert asyncio.run(main()) == 42
        """
    )
    trace = run.trace
    item = trace.one("item")
    assert [e.name for e in children(trace, item)] == ["receive"]
    assert_nested(trace)


def test_tasks_nest_for_themselves(traced: Callable[..., Run]) -> None:
    """Many tasks interleaving in one thread: each child hangs below the event of its own task."""
    run = traced(
        """
        import asyncio
        @ai.data.item
        async def load(i):
            await asyncio.sleep(0)
            with ai.data.preprocess(args={"task": i}):
                await asyncio.sleep(0.001 * (i % 3))
                with ai.compute.forward(args={"task": i}):
                    await asyncio.sleep(0)
            return i
        async def one(i):
            with ai.pipeline.epoch(args={"task": i}):
                await asyncio.sleep(0)
                return await load(i)
        async def main():
            with ai.pipeline.train:
                return await asyncio.gather(*(one(i) for i in range(20)))
        assert asyncio.run(main()) == list(range(20))
        with ai.comm.send: pass
        """
    )
    trace = run.trace
    forwards = trace.named("forward")
    assert sorted(e.args["task"] for e in forwards) == list(range(20))
    train = trace.one("train")
    for forward in forwards:
        chain = [forward]
        while (above := parent(trace, chain[-1])) is not None:
            chain.append(above)
        assert [e.name for e in chain] == ["forward", "preprocess", "item", "epoch", "train"]
        assert chain[1].args["task"] == chain[3].args["task"] == forward.args["task"]
        assert chain[4] == train
    assert trace.one("send").level == 1
    assert_nested(trace)


def test_coroutine_cancelled_or_raising(traced: Callable[..., Run]) -> None:
    """Cancellation and errors are recorded and pass through."""
    run = traced(
        """
        import asyncio
        @ai.data.item
        async def forever(): await asyncio.sleep(3600)
        @ai.data.preprocess
        async def fails(): raise LookupError("x")
        async def main():
            task = asyncio.create_task(forever())
            await asyncio.sleep(0)
            task.cancel()
            try: await task
            except asyncio.CancelledError: pass
            try: await fails()
            except LookupError as e: assert e.args == ("x",)
            with ai.compute.forward: pass
        asyncio.run(main())
        forever().close()
        """
    )
    trace = run.trace
    assert trace.named("item")[0].args["error"] == "CancelledError"
    assert trace.one("preprocess").args["error"] == "LookupError"
    assert trace.one("forward").level == 1


def test_async_generator(traced: Callable[..., Run]) -> None:
    """An async generator is one event for its life, like a plain one."""
    run = traced(
        """
        import asyncio, inspect
        @ai.dataloader.fetch
        async def batches(n):
            for i in range(n):
                with ai.data.item:
                    await asyncio.sleep(0)
                got = yield i
        assert inspect.isasyncgenfunction(batches)
        async def main():
            seen = []
            async for b in batches(4):
                with ai.compute.step:
                    await asyncio.sleep(0)
                seen.append(b)
            assert seen == [0, 1, 2, 3]
            early = batches(4)
            assert await early.__anext__() == 0
            assert await early.asend("x") == 1
            await early.aclose()
            try: await early.__anext__()
            except StopAsyncIteration: pass
        asyncio.run(main())
        """
    )
    trace = run.trace
    first = trace.named("fetch")[0]
    assert len(trace.named("fetch")) == 2
    steps = trace.named("step")
    assert all(first.ts <= e.ts and e.end <= first.end and e.level == 1 for e in steps)
    assert 0 <= first.args["active"] <= first.dur
    assert {p.name for e in trace.named("item") if (p := parent(trace, e))} == {"fetch"}


def test_async_with_and_async_for(traced: Callable[..., Run]) -> None:
    """Nodes and uses are async context managers; `iter` takes async iterables."""
    run = traced(
        """
        import asyncio
        async def source():
            for i in range(3):
                await asyncio.sleep(0)
                yield i
        async def main():
            async with ai.pipeline.train:
                async with ai.compute.forward(args={"k": 1}):
                    await asyncio.sleep(0)
                seen = []
                async for i in ai.dataloader.fetch.iter(source()):
                    async with ai.compute.step:
                        await asyncio.sleep(0)
                    seen.append(i)
                assert seen == [0, 1, 2]
        asyncio.run(main())
        """
    )
    trace = run.trace
    assert trace.one("forward").user_args == {"k": 1}
    assert [e.args["count"] for e in trace.named("fetch.block")] == ["1", "2", "3"]
    assert {p.name for e in trace.named("step") if (p := parent(trace, e))} == {"fetch.block"}
    assert_nested(trace)


def test_static_class_property_and_friends(traced: Callable[..., Run]) -> None:
    """Decorators below and above staticmethod, classmethod and property."""
    run = traced(
        """
        import functools
        class A:
            @staticmethod
            @ai.compute.forward
            def s1(x): return ("s1", x)
            @ai.compute.forward
            @staticmethod
            def s2(x): return ("s2", x)
            @classmethod
            @ai.compute.forward
            def c1(cls, x): return (cls.__name__, x)
            @ai.compute.forward
            @classmethod
            def c2(cls, x): return (cls.__name__, x)
            @property
            @ai.compute.forward
            def p1(self): return "p1"
            @ai.compute.forward
            @property
            def p2(self):
                "doc of p2"
                return "p2"
            @ai.compute.forward
            @functools.cached_property
            def p3(self): return "p3"
            @functools.lru_cache
            @ai.compute.forward
            def cached(self): return "cached"
            @ai.compute.forward
            def __call__(self, x): return ("call", x)
            @ai.compute.forward
            def __enter__(self): return "entered"
            @ai.compute.forward
            def __exit__(self, *a): return False
        class B(A):
            @ai.compute.forward
            def s1(self, x): return super().s1(x)
        a = A()
        assert a.s1(1) == A.s1(1) == ("s1", 1)
        assert a.s2(2) == A.s2(2) == ("s2", 2)
        assert a.c1(3) == A.c1(3) == ("A", 3)
        assert a.c2(4) == A.c2(4) == ("A", 4) and B.c2(4) == ("B", 4)
        assert (a.p1, a.p2, a.p3, a.cached(), a(5)) == ("p1", "p2", "p3", "cached", ("call", 5))
        assert A.p2.__doc__ == "doc of p2"
        with a as entered: assert entered == "entered"
        assert B().s1(6) == ("s1", 6)
        """
    )
    assert len(run.trace.named("forward")) == 18


def test_class_partial_object_lambda_builtin(traced: Callable[..., Run]) -> None:
    """A class stays a class; other callables work like functions."""
    run = traced(
        """
        import functools, inspect
        @ai.data.item
        class Dataset:
            "doc"
            size = 3
            def __init__(self, root): self.root = root
            def __len__(self): return self.size
        class Sub(Dataset): pass
        d = Dataset("/x")
        assert isinstance(Dataset, type) and isinstance(d, Dataset) and issubclass(Sub, Dataset)
        assert (d.root, len(d), Dataset.size) == ("/x", 3, 3)
        assert (Dataset.__doc__, Dataset.__name__) == ("doc", "Dataset")
        assert Sub("/y").root == "/y"
        part = ai.compute.forward(functools.partial(lambda a, b: a + b, 1))
        assert part(2) == 3
        class Callable_:
            attribute = 9
            def __call__(self, x): return x + 1
        obj = ai.compute.forward(Callable_())
        assert obj(1) == 2 and obj.attribute == 9
        f = ai.compute.forward(lambda x: x * 2)
        assert f(4) == 8
        assert ai.compute.forward(len)([1, 2]) == 2
        assert ai.compute.forward(print)() is None
        """
    )
    trace = run.trace
    assert len(trace.named("forward")) == 5
    assert len(trace.named("item")) == 2


def test_metadata_of_a_function_is_kept(traced: Callable[..., Run]) -> None:
    """Name, docs, signature, annotations, defaults, attributes: as if undecorated."""
    traced(
        """
        import inspect, typing
        def f(a: int, /, b: "str" = "x", *c, d: float = 1.5, **e) -> list[int]:
            "What f does."
            return [a]
        f.tag = "mine"
        for deco in (ai.compute.forward, ai.compute.forward(args={"k": 1}), dft_fn("c").log, ai.compute.init):
            w = deco(f)
            assert (w.__name__, w.__qualname__, w.__module__) == ("f", "f", "__main__")
            assert w.__doc__ == "What f does."
            assert inspect.signature(w) == inspect.signature(f)
            assert typing.get_type_hints(w) == typing.get_type_hints(f)
            assert w.__annotations__ == f.__annotations__
            assert w.__defaults__ == f.__defaults__ and w.__kwdefaults__ == f.__kwdefaults__
            assert w.tag == "mine" and w.__wrapped__ is f and inspect.unwrap(w) is f
            assert inspect.getsource(w) == inspect.getsource(f)
            assert callable(w) and inspect.isroutine(w) or callable(w)
            assert "f" in repr(w)
            w.other = 3
            assert w.other == 3
        assert not hasattr(f, "other")
        """
    )


def test_pickling(program: Callable[..., Run], tmp_path: object) -> None:
    """Decorated functions, methods, classes and instances pickle by reference, like plain ones."""
    run = program(
        """
        import copy, multiprocessing, pickle, sys
        from dftracer.python import ai, dft_fn, dftracer
        @ai.compute.forward
        def f(x): return x + 1
        @ai.compute.forward(args={"k": 1})
        def g(x): return x + 2
        @dft_fn("c").log
        def h(x): return x + 3
        @ai.data.item
        async def co(): return 1
        @ai.data.item
        def gen(): yield 1
        class A:
            @ai.compute.forward
            def m(self, x): return x + 4
        @ai.data.item
        class D:
            def __init__(self, x): self.x = x
        if __name__ == "__main__":
            log = dftracer.initialize_log(None, None, -1)
            for fn in (f, g, h, co, gen, A, D):
                assert pickle.loads(pickle.dumps(fn)) is fn, fn
                assert copy.deepcopy(fn) is fn
            assert pickle.loads(pickle.dumps(A().m))(1) == 5
            assert pickle.loads(pickle.dumps(D(3))).x == 3
            assert copy.copy(D(3)).x == 3
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                assert pool.map(f, [1, 2]) == [2, 3]
        """
    )
    assert run.stderr == ""


def test_node_objects_survive_pickling_and_copying(traced: Callable[..., Run]) -> None:
    """A dataset that keeps a node as an attribute still travels to its workers."""
    traced(
        """
        import copy, pickle
        node = ai.data.preprocess.derive(name="collate")
        assert pickle.loads(pickle.dumps(ai)) is ai
        assert pickle.loads(pickle.dumps(ai.compute.forward)) is ai.compute.forward
        assert pickle.loads(pickle.dumps(node)) is node
        assert copy.deepcopy(ai.compute.forward) is ai.compute.forward
        assert copy.copy(node) is node
        fn = pickle.loads(pickle.dumps(dft_fn("c", "n", epoch=1)))
        with fn: pass
        """
    )


def test_method_binding(traced: Callable[..., Run]) -> None:
    """Bound methods have `__self__` and `__func__`, and compare equal."""
    traced(
        """
        import inspect, weakref
        class A:
            @ai.compute.forward
            def m(self): return self
            @dft_fn("c").log
            def n(self): return self
        a = A()
        assert a.m() is a and a.n() is a and A.m(a) is a
        assert a.m.__self__ is a and a.m == a.m and a.m.__func__ is A.__dict__["m"]
        assert inspect.ismethod(a.m)
        assert str(inspect.signature(a.m)) == "()" and str(inspect.signature(A.m)) == "(self)"
        ref = weakref.ref(A.__dict__["m"])
        assert ref() is A.__dict__["m"]
        assert weakref.WeakMethod(a.m)() == a.m
        """
    )


def test_decorated_twice(traced: Callable[..., Run]) -> None:
    """Two nodes on one function are two nested events."""
    run = traced(
        """
        @ai.pipeline.train
        @ai.compute.forward
        def f(): return 1
        assert f() == 1
        """
    )
    trace = run.trace
    assert parent(trace, trace.one("forward")) == trace.one("train")


def test_decorating_what_is_no_callable(traced: Callable[..., Run]) -> None:
    """The mistake is the user's, and says so where it is made."""
    run = traced(
        """
        try:
            ai.compute.forward(3)
        except TypeError:
            pass
        with ai.compute.forward: pass
        """
    )
    assert run.trace.names == ["forward"]


def test_wrappers_do_not_leak_references(traced: Callable[..., Run]) -> None:
    """Arguments, results and exceptions are released after the call."""
    traced(
        """
        import gc, sys, weakref
        class Thing: pass
        @ai.compute.forward
        def f(x, fail=False):
            if fail: raise ValueError(x)
            return x
        @dft_fn("c").log
        def g(x, step=0): return x
        @ai.data.item
        def gen(x): yield x
        @ai.compute.forward(args={"k": 1})
        def h(x): return x
        alive = []
        for call in (lambda t: f(t), lambda t: g(t, step=3), lambda t: list(gen(t)), lambda t: h(t),
                     lambda t: list(ai.data.item.iter([t])), lambda t: next(gen(t))):
            t = Thing(); alive.append(weakref.ref(t)); call(t); del t
        t = Thing(); alive.append(weakref.ref(t))
        try: f(t, fail=True)
        except ValueError: pass
        del t
        gc.collect()
        assert [r() for r in alive] == [None] * len(alive)
        def make():
            @ai.compute.forward
            def local(): pass
            local()
            return weakref.ref(local)
        ref = make(); gc.collect()
        assert ref() is None, "a decorated closure is collectable"
        """
    )
