"""`dftracer.start()` and `stop()`: tracing at run time, also for what was made before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.process import Run, clean_environment, run_program


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Run]:
    return lambda source, **options: run_program(tmp_path, source, enable=False, **options)


def test_what_was_made_before_is_recorded_from_then_on(program: Callable[..., Run]) -> None:
    run = program(
        """
        import asyncio, functools, inspect, os
        import dftracer
        from dftracer.python import ai, dft_fn, DFTracerAI
        outside = 5
        def make():
            cell = 7
            @ai.compute.backward
            def closed(a, b=2, *, c=3):
                return a + b + c + cell
            return closed
        class Base:
            def run(self, x, step=0):
                return x
        class Model(Base):
            @ai.compute.forward
            def run(self, x, step=0):
                return super().run(x) + outside
            @staticmethod
            @ai.data.preprocess
            def still(x):
                return x
            @ai.data.derive("kind")
            @classmethod
            def of_class(cls):
                return cls
            @ai.data.derive("value")
            @property
            def value(self):
                return 1
        @ai.checkpoint.capture
        class Saver:
            def __init__(self, a):
                self.a = a
        fn = dft_fn("mine")
        @fn.log
        def logged(step):
            return step
        @ai.data.item
        def items():
            yield 1
            yield 2
        @ai.comm.gather(args={"kind": "mine"}, epoch=4)
        def with_arguments():
            return None
        @ai.comm.barrier
        async def meet():
            return "met"
        @ai.comm.send
        @ai.comm.receive
        def twice():
            return None
        ai.comm.bcast(len)
        closed = make()
        same = (closed, Model.__dict__["run"], logged, items)
        loader = ai.dataloader.fetch.iter([1, 2, 3])
        mine = fn.iter([1, 2], name="own")
        node = ai.other.derive("node")
        use = ai.other.derive("use")()
        def everything():
            model = Model()
            for i in loader:
                assert model.run(i, step=i) == i + 5
                assert closed(i) == i + 12 and closed(i, c=1) == i + 10
            assert model.still(4) == 4 and model.of_class() is Model and model.value == 1
            assert Saver(3).a == 3 and logged(2) == 2 and list(items()) == [1, 2]
            assert asyncio.run(meet()) == "met" and twice() is None and len([1]) == 1
            assert list(mine) == [1, 2]
            with_arguments()
            with node: pass
            with use: pass
            with ai.pipeline.train: pass
        everything()
        assert dftracer.stop() == []
        path = dftracer.start("first.pfw")
        assert path == os.path.abspath("first.pfw.gz")
        everything()
        assert dftracer.stop() == [path]
        assert (closed, Model.__dict__["run"], logged, items) == same
        assert str(inspect.signature(closed)) == "(a, b=2, *, c=3)"
        everything()  # stopped: nothing is recorded
        second = dftracer.start("second.pfw")
        everything()
        assert dftracer.stop() == [second]
        assert "DFTRACER_ENABLE" not in os.environ
        from collections import Counter
        from dftracer.testing import read
        one, two = (Counter(e.name for e in read(p)) for p in (path, second))
        assert one == two, (one, two)
        args = read(path).one("gather").args
        assert args["kind"] == "mine" and args["epoch"] == 4, args
        print(sorted(one.items()))
        """
    )
    assert run.stderr == ""
    counts = dict(eval(run.stdout))  # noqa: S307 - our own output
    assert counts == {
        "fetch.iter": 3,
        "fetch.block": 3,
        "forward": 3,
        "backward": 6,
        "preprocess": 1,
        "data.kind": 1,
        "data.value": 1,
        "capture": 1,
        "logged": 1,
        "item": 1,
        "barrier": 1,
        "gather": 1,
        "send": 1,
        "receive": 1,
        "own.iter": 2,
        "own.yield": 2,
        "other.node": 1,
        "other.use": 1,
        "train": 1,
    }


def test_children_of_the_session_are_recorded_and_later_ones_are_not(program: Callable[..., Run]) -> None:
    run = program(
        """
        import multiprocessing
        import dftracer
        from dftracer.python import ai
        @ai.data.item
        def work():
            return 1
        if __name__ == "__main__":
            def child(method):
                process = multiprocessing.get_context(method).Process(target=work)
                process.start()
                process.join()
                assert process.exitcode == 0
            dftracer.start("t.pfw")
            child("fork")
            child("spawn")
            files = dftracer.stop()
            child("spawn")
            from dftracer.testing import read
            import os
            print(len(files), sum(len(read(f).named("item")) for f in files))
            print(len([f for f in os.listdir(".") if "pfw" in f]))
        """
    )
    assert run.stdout.split() == ["2", "2", "2"]  # the process itself has recorded nothing
    assert run.stderr == ""


def test_a_second_start_changes_nothing_and_says_so(program: Callable[..., Run]) -> None:
    run = program(
        """
        import dftracer
        first = dftracer.start("a.pfw")
        assert dftracer.start("b.pfw") == first
        assert dftracer.stop() == [] or True
        """
    )
    assert "already recording into" in run.stderr


def test_a_function_that_is_gone_is_forgotten(program: Callable[..., Run]) -> None:
    program(
        """
        import gc
        from dftracer.python import _decorate, ai
        before = len(_decorate._waiting)
        for i in range(10_000):
            @ai.compute.forward
            def f(): pass
        gc.collect()
        assert len(_decorate._waiting) <= before + 1
        """
    )


def test_importing_the_package_stays_cheap() -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = "import sys; a = set(sys.modules); import dftracer; print(sorted(set(sys.modules) - a))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['dftracer']"
