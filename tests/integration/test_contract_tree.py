"""The tree: uses of a node, derived nodes, init, start/stop, iter, update, switches."""

from __future__ import annotations

from collections.abc import Callable

from support.process import Run
from support.tree import assert_nested, children, parent, path


def test_args_belong_to_one_use(traced: Callable[..., Run]) -> None:
    """`node(args=...)` labels this event only, as context manager and as decorator."""
    run = traced(
        """
        with ai.compute.forward(args={"k": 1}): pass
        with ai.compute.forward: pass
        @ai.compute.backward(args={"layer": "fc"}, epoch=2, step=3, image_idx=4, image_size=5)
        def f(): pass
        f(); f()
        with ai.compute.backward: pass
        """
    )
    trace = run.trace
    assert [e.user_args for e in trace.named("forward")] == [{"k": 1}, {}]
    full = {"layer": "fc", "epoch": 2, "step": 3, "image_idx": 4, "image_size": 5}
    assert [e.user_args for e in trace.named("backward")] == [full, full, {}]


def test_args_of_a_use_win_over_current_args(traced: Callable[..., Run]) -> None:
    """A key set by `update` and by the use appears once, with the value of the use."""
    run = traced(
        """
        ai.compute.update(step=1, args={"k": "node"})
        with ai.compute.forward(step=9, args={"k": "use"}): pass
        with ai.compute.forward: pass
        """
    )
    first, second = run.trace.named("forward")
    assert first.user_args == {"step": 9, "k": "use"}
    assert second.user_args == {"step": 1, "k": "node"}


def test_args_are_a_snapshot(traced: Callable[..., Run]) -> None:
    """A mutable value is recorded as it was when the event began its use."""
    run = traced(
        """
        value = {"k": [1]}
        with ai.compute.forward(args=value):
            value["k"].append(2)
            value["other"] = 1
        """
    )
    assert run.one("forward").user_args == {"k": [1]}


def test_one_use_object_entered_often(traced: Callable[..., Run]) -> None:
    """A use kept in a variable is re-entrant and reusable."""
    run = traced(
        """
        use = ai.compute.forward(args={"k": 1})
        with use:
            with use: pass
        with use: pass
        """
    )
    trace = run.trace
    assert sorted(e.level for e in trace.events) == [1, 1, 2]
    assert all(e.user_args == {"k": 1} for e in trace.events)
    assert_nested(trace)


def test_derive(traced: Callable[..., Run]) -> None:
    """The same object each time, child of its node, with the category of the branch."""
    run = traced(
        """
        a = ai.data.preprocess.derive(name="collate")
        assert ai.data.preprocess.derive(name="collate") is a
        assert ai.data.preprocess.derive("collate") is a
        assert ai.data.preprocess.derive(name="augment") is not a
        with a: pass
        with a.derive(name="pad"): pass
        ai.data.preprocess.disable()
        with a: pass
        ai.data.preprocess.enable()
        ai.data.preprocess.update(epoch=4)
        with a: pass
        """
    )
    trace = run.trace
    first, second = trace.named("preprocess.collate")
    assert (first.cat, first.user_args, second.user_args) == ("data", {}, {"epoch": 4})
    assert trace.one("preprocess.collate.pad").cat == "data"


def test_init_forms(traced: Callable[..., Run]) -> None:
    """Decorator with and without parentheses, and as a block."""
    run = traced(
        """
        class A:
            @ai.checkpoint.init
            def __init__(self, x): self.x = x
        class B:
            @ai.checkpoint.init()
            def __init__(self, x): self.x = x
        class C:
            @ai.data.item.init(args={"root": "/d"})
            def __init__(self): pass
        assert (A(1).x, B(x=2).x) == (1, 2)
        C()
        with ai.checkpoint.init: pass
        with ai.checkpoint.init(args={"k": 1}): pass
        """
    )
    trace = run.trace
    assert [e.user_args for e in trace.named("checkpoint.init")] == [{}, {}, {}, {"k": 1}]
    assert trace.one("item.init").user_args == {"root": "/d"}


def test_start_stop_pairs_nest(traced: Callable[..., Run]) -> None:
    """Pairs of different nodes nest; a block inside them is their child."""
    run = traced(
        """
        ai.pipeline.epoch.start()
        ai.compute.step.start()
        with ai.compute.forward: pass
        ai.compute.step.stop()
        ai.pipeline.epoch.stop()
        with ai.compute.backward: pass
        """
    )
    trace = run.trace
    assert path(trace, trace.one("forward")) == ["epoch", "step", "forward"]
    assert trace.one("backward").level == 1
    assert_nested(trace)


def test_stop_without_start_writes_nothing(traced: Callable[..., Run]) -> None:
    """An extra `stop` is harmless."""
    run = traced(
        """
        ai.compute.step.stop()
        with ai.compute.forward:
            ai.compute.step.stop()
        """
    )
    trace = run.trace
    assert trace.names == ["forward"]
    assert trace.one("forward").level == 1


def test_start_without_stop_is_restarted(traced: Callable[..., Run]) -> None:
    """A second `start` of the same node begins its event anew."""
    run = traced(
        """
        ai.compute.step.start()
        mark = log.get_time()
        ai.compute.step.start()
        ai.compute.step.stop()
        ai.compute.step.stop()
        with ai.compute.forward: pass
        log.log_metadata_event("mark", str(mark))
        """
    )
    trace = run.trace
    mark = next(int(r.args["value"]) for r in trace.metadata("CM") if r.args["name"] == "mark")
    assert trace.one("step").ts >= mark
    assert trace.one("forward").level == 1


def test_pairs_left_open_do_not_leak_into_other_code(traced: Callable[..., Run]) -> None:
    """Pairs that overlap instead of nesting still give one event each."""
    run = traced(
        """
        ai.compute.forward.start()
        ai.compute.backward.start()
        ai.compute.forward.stop()
        ai.compute.backward.stop()
        with ai.compute.step: pass
        """
    )
    trace = run.trace
    assert sorted(trace.names) == ["backward", "forward", "step"]
    assert trace.one("step").level == 1


def test_start_stop_are_per_thread(traced: Callable[..., Run]) -> None:
    """Each thread has pairs of its own."""
    run = traced(
        """
        import threading
        barrier = threading.Barrier(4)
        def work():
            for _ in range(5):
                barrier.wait()
                ai.compute.step.start()
                barrier.wait()
                with ai.compute.forward: pass
                ai.compute.step.stop()
        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        """
    )
    trace = run.trace
    steps = trace.named("step")
    assert len(steps) == 20
    assert len({e.tid for e in steps}) == 4
    for step in steps:
        assert [e.name for e in children(trace, step)] == ["forward"]
    assert_nested(trace)


def test_start_stop_are_per_task(traced: Callable[..., Run]) -> None:
    """Tasks of one thread do not restart each other's pairs."""
    run = traced(
        """
        import asyncio
        async def work(i):
            ai.compute.step.start()
            await asyncio.sleep(0.001)
            with ai.compute.forward: pass
            ai.compute.step.stop()
        async def main():
            await asyncio.gather(*(work(i) for i in range(5)))
        asyncio.run(main())
        """
    )
    trace = run.trace
    steps = trace.named("step")
    assert len(steps) == 5
    for step in steps:
        assert [e.name for e in children(trace, step)] == ["forward"]
    assert_nested(trace)


def test_metadata_mode(traced: Callable[..., Run]) -> None:
    """`metadata=True` writes CM records named `<name>.start` and `<name>.end`, and no event."""
    run = traced(
        """
        before = log.get_time()
        ai.pipeline.epoch.start(metadata=True)
        with ai.compute.forward: pass
        ai.pipeline.epoch.stop(metadata=True)
        assert before > 0
        """
    )
    trace = run.trace
    records = [r for r in trace.metadata("CM") if r.args["name"].startswith("epoch")]
    assert [r.args["name"] for r in records] == ["epoch.start", "epoch.end"]
    forward = trace.one("forward")
    assert forward.level == 1, "a metadata pair is no event and encloses nothing"
    assert int(records[0].args["value"]) <= forward.ts
    assert forward.end <= int(records[1].args["value"])
    assert trace.names == ["forward"]


def test_metadata_is_on_disk_at_once(traced: Callable[..., Run]) -> None:
    """A monitor sees the record while the job runs, with no help from `finalize`."""
    traced(
        """
        import glob, gzip, os, time
        ai.pipeline.epoch.start(metadata=True)
        deadline = time.monotonic() + 60
        def seen():
            for path in glob.glob(os.environ["DFTRACER_LOG_FILE"] + "*.pfw.gz"):
                if b"epoch.start" in gzip.decompress(open(path, "rb").read()):
                    return True
        while not seen():
            assert time.monotonic() < deadline, "the record never reached the file"
            time.sleep(0.01)
        """
    )


def test_iter_counts_and_options(traced: Callable[..., Run]) -> None:
    """Names and parts of the two events can be chosen."""
    run = traced(
        """
        assert list(ai.dataloader.fetch.iter(range(2), include_block=False)) == [0, 1]
        assert list(ai.data.item.iter(range(2), include_iter=False)) == [0, 1]
        assert list(ai.pipeline.epoch.iter(range(2), iter_name="wait", block_name="work")) == [0, 1]
        assert list(ai.compute.iter([])) == []
        assert list(ai.comm.send.iter(iter("ab"))) == ["a", "b"]
        """
    )
    trace = run.trace
    fetch = [n for n in trace.names if n.startswith("fetch")]
    assert fetch == ["fetch.iter", "fetch.iter"]
    assert [n for n in trace.names if n.startswith("item")] == ["item.block", "item.block"]
    pipeline = sorted({e.name for e in trace.events if e.cat == "pipeline"})
    assert len(pipeline) == 2
    assert [n.rpartition(".")[2] for n in pipeline] == ["wait", "work"]
    assert [e.args["count"] for e in trace.named("send.block")] == ["1", "2"]


def test_break_writes_neither_event_of_its_item(traced: Callable[..., Run]) -> None:
    """An item on which the loop breaks leaves nothing, and later events are at the top again."""
    run = traced(
        """
        for i in ai.dataloader.fetch.iter(range(10)):
            if i == 3:
                break
        import gc; gc.collect()
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert [e.args["count"] for e in trace.named("fetch.iter")] == ["1", "2", "3"]
    assert [e.args["count"] for e in trace.named("fetch.block")] == ["1", "2", "3"]
    assert trace.one("forward").level == 1


def test_break_with_the_iterator_kept(traced: Callable[..., Run]) -> None:
    """An iterator kept in a variable may go on later; once it is gone, nothing hangs below it."""
    run = traced(
        """
        it = ai.dataloader.fetch.iter(iter(range(10)))
        for i in it:
            if i == 1:
                break
        assert next(it) == 2
        del it
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert trace.one("forward").level == 1
    assert [e.args["count"] for e in trace.named("fetch.block")] == ["1", "2"]


def test_iter_body_raises(traced: Callable[..., Run]) -> None:
    """An exception in the body is the loop's end; what comes later is at the top."""
    run = traced(
        """
        try:
            for i in ai.dataloader.fetch.iter(range(10)):
                if i == 2:
                    raise KeyError("x")
        except KeyError as e:
            assert e.args == ("x",)
        import sys
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert len([e for e in trace.named("fetch.block") if "error" not in e.args]) == 2
    assert trace.one("forward").level == 1


def test_iter_source_raises(traced: Callable[..., Run]) -> None:
    """The exception of the source comes through untouched."""
    run = traced(
        """
        def source():
            yield 1
            raise ValueError("broken file")
        seen = []
        try:
            for i in ai.dataloader.fetch.iter(source()):
                seen.append(i)
        except ValueError as e:
            assert str(e) == "broken file"
            assert e.__context__ is None
        else:
            raise SystemExit("swallowed")
        assert seen == [1]
        with ai.compute.forward: pass
        """
    )
    trace = run.trace
    assert trace.one("forward").level == 1
    assert len(trace.named("fetch.block")) == 1


def test_nested_iter_of_one_node(traced: Callable[..., Run]) -> None:
    """Loops over the same node count for themselves and nest."""
    run = traced(
        """
        for a in ai.data.item.iter(range(2)):
            for b in ai.data.item.iter(range(3)):
                pass
        """
    )
    trace = run.trace
    assert len(trace.named("item.block")) == 8
    outer = [e for e in trace.named("item.block") if e.level == 1]
    assert [e.args["count"] for e in outer] == ["1", "2"]
    for block in outer:
        inner = [e.args["count"] for e in children(trace, block) if e.name == "item.block"]
        assert inner == ["1", "2", "3"]
    assert_nested(trace)


def test_loops_advanced_by_hand_interleave(traced: Callable[..., Run]) -> None:
    """Two iterators advanced in turn (zip) give complete pairs each."""
    run = traced("assert list(zip(ai.data.item.iter(range(3)), ai.compute.step.iter(range(3))))")
    trace = run.trace
    assert [e.args["count"] for e in trace.named("item.block")][:2] == ["1", "2"]
    assert [e.args["count"] for e in trace.named("step.block")][:2] == ["1", "2"]


def test_update_reaches_the_subtree(traced: Callable[..., Run]) -> None:
    """Current args of the node and all below it; the four documented names and free args."""
    run = traced(
        """
        ai.update(epoch=1, step=2)
        with ai.data.item: pass
        ai.compute.update(step=3, args={"phase": "warm"})
        with ai.compute.forward: pass
        with ai.data.preprocess: pass
        with ai.compute.derive(name="late"): pass
        ai.compute.forward.update(epoch=9, image_idx=5, image_size=(2, 3))
        with ai.compute.forward: pass
        with ai.compute.backward: pass
        ai.update(step=4)
        with ai.compute.backward: pass
        """
    )
    trace = run.trace
    assert trace.one("item").user_args == {"epoch": 1, "step": 2}
    first, second = trace.named("forward")
    assert first.user_args == {"epoch": 1, "step": 3, "phase": "warm"}
    assert trace.one("preprocess").user_args == {"epoch": 1, "step": 2}
    assert trace.one("compute.late").user_args == {"epoch": 1, "step": 3, "phase": "warm"}
    assert second.args["epoch"] == 9
    assert second.args["image_idx"] == 5
    back = trace.named("backward")
    assert back[0].user_args == {"epoch": 1, "step": 3, "phase": "warm"}
    assert back[1].args["step"] == 4


def test_update_of_init_and_iter_names(traced: Callable[..., Run]) -> None:
    """`<name>.init`, `<name>.iter` and `<name>.block` lie below their node."""
    run = traced(
        """
        ai.update(epoch=1)
        with ai.checkpoint.init: pass
        for _ in ai.dataloader.fetch.iter([0]): pass
        """
    )
    for name in ("checkpoint.init", "fetch.iter", "fetch.block"):
        assert run.one(name).args["epoch"] == 1


def test_disable_and_enable_a_subtree(traced: Callable[..., Run]) -> None:
    """A switch acts on the node and all below it, and back."""
    run = traced(
        """
        def round(tag):
            for node in (ai.compute, ai.compute.forward, ai.data.item, ai.compute.derive(name="d")):
                with node(args={"tag": tag}) if False else node: pass
        round("on")
        ai.compute.disable(); round("compute off"); ai.compute.enable()
        ai.disable(); round("all off"); ai.enable()
        round("on again")
        """
    )
    names = run.trace.names
    assert names.count("compute") == 2
    assert names.count("forward") == 2
    assert names.count("compute.d") == 2
    assert names.count("item") == 3


def test_disable_within_an_open_event(traced: Callable[..., Run]) -> None:
    """Switching while an event is open keeps levels right."""
    run = traced(
        """
        with ai.compute:
            ai.compute.disable()
            with ai.compute.forward: pass
        with ai.data.item: pass
        ai.compute.enable()
        ai.compute.disable()
        with ai.compute:
            ai.compute.enable()
            with ai.compute.backward: pass
        with ai.data.preprocess: pass
        """
    )
    trace = run.trace
    assert trace.one("item").level == 1
    assert trace.one("backward").level == 1
    assert trace.one("preprocess").level == 1


def test_disabled_events_are_transparent(traced: Callable[..., Run]) -> None:
    """A child of a disabled event hangs below the next enabled one."""
    run = traced(
        """
        ai.compute.disable()
        with ai.pipeline.train:
            with ai.compute.step:
                with ai.data.item: pass
        """
    )
    trace = run.trace
    assert path(trace, trace.one("item")) == ["train", "item"]


def test_enable_on_one_use(traced: Callable[..., Run]) -> None:
    """`enable=` on a use wins over the tree."""
    run = traced(
        """
        ai.compute.disable()
        @ai.compute.forward(enable=True)
        def f(): pass
        f()
        with ai.compute.backward(enable=True): pass
        ai.compute.enable()
        @ai.compute.step(enable=False)
        def g(): pass
        g()
        with ai.compute.forward(enable=False): pass
        """
    )
    assert sorted(run.trace.names) == ["backward", "forward"]


def test_order_of_switch_and_decoration(traced: Callable[..., Run]) -> None:
    """`@node` and `@node.init` follow later switches; parentheses fix the state when made."""
    run = traced(
        """
        @ai.compute.forward
        def follows(): pass
        @ai.compute.backward()
        def fixed_on(): pass
        class A:
            @ai.compute.init
            def __init__(self): pass
        class B:
            @ai.compute.step.init()
            def __init__(self): pass
        ai.compute.disable()
        @ai.compute.step
        def follows_too(): pass
        @ai.compute.step(args={"k": 1})
        def fixed_off(): pass
        follows(); fixed_on(); A(); B(); follows_too(); fixed_off()
        ai.compute.enable()
        follows(); fixed_on(); A(); B(); follows_too(); fixed_off()
        """
    )
    names = run.trace.names
    assert names.count("forward") == 1
    assert names.count("backward") == 2
    assert names.count("compute.init") == 1
    assert names.count("step.init") == 2
    assert names.count("step") == 1


def test_custom_tracer(traced: Callable[..., Run]) -> None:
    """A `DFTracerAI` of one's own has everything a node has."""
    run = traced(
        """
        from dftracer.python import DFTracerAI
        mine = DFTracerAI(cat="my", name="op", epoch=1, step=2, image_idx=3, image_size=4)
        with mine: pass
        @mine
        def f(): return 1
        assert f() == 1
        with mine.derive(name="sub"): pass
        assert list(mine.iter([5])) == [5]
        mine.start(); mine.stop()
        mine.update(step=8)
        with mine(args={"k": "v"}): pass
        off = DFTracerAI(cat="my", name="off", enable=False)
        with off: pass
        """
    )
    trace = run.trace
    assert {e.cat for e in trace.events} == {"my"}
    assert sorted(trace.names) == ["op", "op", "op", "op", "op.block", "op.iter", "op.sub"]
    first, *_, last = trace.named("op")
    assert first.user_args == {"epoch": 1, "step": 2, "image_idx": 3, "image_size": 4}
    assert last.args["k"] == "v"
    assert last.args["step"] == 8


def test_nodes_in_an_exit_stack(traced: Callable[..., Run]) -> None:
    """`contextlib` takes nodes and uses like any context manager."""
    run = traced(
        """
        import contextlib
        with contextlib.ExitStack() as stack:
            stack.enter_context(ai.pipeline.train)
            stack.enter_context(ai.compute.step(args={"k": 1}))
            with ai.compute.forward: pass
        with ai.compute.forward as node:
            assert node is ai.compute.forward
        """
    )
    trace = run.trace
    assert path(trace, trace.named("forward")[0]) == ["train", "step", "forward"]
    assert parent(trace, trace.named("forward")[1]) is None
    assert_nested(trace)
