"""Tracing off: the program is as if the tracer were not there."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.process import Run, clean_environment

HEAVY = [
    "torch",
    "numpy",
    "inspect",
    "asyncio",
    "multiprocessing",
    "subprocess",
    "logging",
    "json",
    "yaml",
    "tomllib",
    "socket",
    "dataclasses",
    "ctypes",
]


def test_decorators_return_the_function_itself(program: Callable[..., Run]) -> None:
    """Off is not a wrapper that does little: it is the same object."""
    run = program(
        """
        from dftracer.python import ai, dft_fn, dftracer, DFTracerAI
        log = dftracer.initialize_log("x.pfw", "/tmp", -1)
        def f(a, b=1): return a + b
        def g(): yield 1
        async def co(): return 1
        class C: pass
        fn = dft_fn("c")
        decorators = [ai, ai.compute, ai.compute.forward, ai.compute.forward(),
                      ai.data.item(args={"k": 1}, epoch=1), ai.checkpoint.init,
                      ai.checkpoint.init(), ai.data.preprocess.derive(name="x"),
                      ai.compute.forward(enable=True), fn.log, fn.log(name="x"), fn.log_init, fn.log_static,
                      DFTracerAI(cat="c", name="n")]
        for d in decorators:
            for target in (f, g, co, C, len, staticmethod(f), property(f)):
                assert d(target) is target, (d, target)
        log.finalize()
        """,
        enable=False,
    )
    assert run.written == []


def test_every_call_works(program: Callable[..., Run]) -> None:
    """The whole API is there and does nothing."""
    run = program(
        """
        import asyncio
        from dftracer.python import ai, dft_fn, dftracer, DFTracerAI
        log = dftracer.initialize_log()
        assert dftracer.get_instance() is log
        assert isinstance(log.get_time(), int)
        log.enter_event(); log.log_event("a", "b", 1, 2, {}, {}, {}); log.exit_event()
        log.log_metadata_event("k", "v")
        with ai: pass
        with ai.compute.forward as n: pass
        with ai.compute.forward(args={"k": 1}, enable=True): pass
        with ai.checkpoint.init: pass
        assert ai.data.preprocess.derive(name="x") is ai.data.preprocess.derive(name="x")
        assert list(ai.dataloader.fetch.iter(range(3), include_block=False)) == [0, 1, 2]
        ai.update(epoch=1, step=2, image_idx=3, image_size=4, args={"k": object()})
        ai.compute.step.start(); ai.compute.step.stop()
        ai.compute.step.start(metadata=True); ai.compute.step.stop(metadata=True)
        ai.disable(); ai.enable(); ai.compute.disable(); ai.compute.enable()
        fn = dft_fn("c", "n", epoch=1)
        with fn: pass
        assert list(fn.iter([1, 2], name="l", iter_name="s")) == [1, 2]
        fn.update(step=3); fn.log_metadata("a", "b"); fn.flush(); fn.reset()
        async def main():
            async with ai.compute: pass
            async with ai.compute(args={}): pass
            async def source():
                yield 1
            assert [i async for i in ai.data.item.iter(source())] == [1]
        asyncio.run(main())
        try:
            with ai.compute.forward: raise KeyError("x")
        except KeyError as e: assert e.args == ("x",)
        log.finalize()
        """,
        enable=False,
    )
    assert run.written == []
    assert run.stderr == ""


@pytest.mark.parametrize("value", ["0", "false", "off", "no", "", "FALSE"])
def test_spellings_of_off(value: str, program: Callable[..., Run]) -> None:
    """The usual words for no."""
    run = program(
        """
        from dftracer.python import DFTRACER_ENABLE, ai, dftracer
        assert not DFTRACER_ENABLE
        dftracer.initialize_log("x.pfw", None, -1)
        with ai.compute: pass
        """,
        env={"DFTRACER_ENABLE": value},
    )
    assert run.written == []
    assert run.stderr == ""


@pytest.mark.parametrize("value", ["1", "true", "on", "yes", "True", "ON"])
def test_spellings_of_on(value: str, program: Callable[..., Run]) -> None:
    """The usual words for yes."""
    run = program(
        """
        from dftracer.python import DFTRACER_ENABLE, ai, dftracer
        assert DFTRACER_ENABLE
        dftracer.initialize_log(None, None, -1)
        with ai.compute: pass
        """,
        env={"DFTRACER_ENABLE": value},
    )
    assert run.trace.names == ["compute"]


@pytest.mark.parametrize("enable", [False, True])
def test_importing_imports_nothing_heavy(enable: bool, program: Callable[..., Run]) -> None:
    """With tracing off none of the expensive modules is loaded; with tracing on neither torch nor numpy."""
    run = program(
        """
        import sys
        before = set(sys.modules)
        from dftracer.python import ai, dft_fn, dftracer
        log = dftracer.initialize_log(None, None, -1)
        with ai.compute: pass
        @ai.compute.forward
        def f(x, step=0): return x
        f(1)
        print(" ".join(sorted({m.split(".")[0] for m in set(sys.modules) - before})))
        """,
        enable=enable,
    )
    loaded = set(run.stdout.split())
    forbidden = ["torch", "numpy"] if enable else HEAVY
    assert loaded & set(forbidden) == set()


def test_nothing_is_started_or_opened(program: Callable[..., Run]) -> None:
    """No thread, no descriptor, no mapping, no environment variable, no atexit callback."""
    program(
        """
        import atexit, os
        def state():
            return (os.listdir("/proc/self/task"), sorted(os.listdir("/proc/self/fd")), atexit._ncallbacks(),
                    dict(os.environ))
        before = state()
        from dftracer.python import ai, dft_fn, dftracer
        log = dftracer.initialize_log("x.pfw", "/tmp", -1)
        with ai.compute: pass
        log.finalize()
        assert state() == before
        """,
        enable=False,
    )


OFF_PROGRAM = """
import multiprocessing
from dftracer.python import ai, dftracer
def work():
    dftracer.initialize_log()
if __name__ == "__main__":
    dftracer.initialize_log()
    with ai.compute: pass
    dftracer.initialize_log("x.pfw")
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=work)
        child.start()
        child.join()
"""


def _on_a_terminal(path: Path, **settings: str) -> list[str]:
    """What the program says to somebody who looks."""
    (path / "off.py").write_text(OFF_PROGRAM)
    ours, theirs = pty.openpty()
    env = clean_environment(**settings)
    done = subprocess.run([sys.executable, "off.py"], cwd=path, env=env, stderr=theirs, check=True)
    assert done.returncode == 0
    os.close(theirs)
    result = b""
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65536):
            result += piece
    os.close(ours)
    assert not list(path.glob("*.pfw*"))
    return result.decode().splitlines()


def test_off_is_said_once_to_whoever_looks(tmp_path: Path) -> None:
    """Nobody has said no: a program that wants to record is told that it does not, and how it would."""
    (line,) = _on_a_terminal(tmp_path)
    assert "tracing is off" in line
    assert "DFTRACER_ENABLE=1" in line
    assert "dftracer.start()" in line
    assert _on_a_terminal(tmp_path, DFTRACER_ENABLE="0") == []
    assert _on_a_terminal(tmp_path, RANK="1", LOCAL_RANK="1") == []
