"""Arguments of events: the program neither fails, nor stops, nor grows because of them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.process import Run, recover

BOTH = pytest.mark.parametrize("enable", [True, False], ids=["on", "off"])


@BOTH
def test_a_wrong_keyword_raises_with_tracing_on_and_off(enable: bool, traced: Callable[..., Run]) -> None:
    """A misspelt argument is found in the first run, traced or not."""
    traced(
        """
        calls = [lambda: ai.update(foo=1), lambda: ai.compute.forward(foo=1),
                 lambda: dft_fn("c").update(foo=1), lambda: ai.compute(epoch=1).update(foo=1),
                 lambda: ai.update(1, 2, 3, 4, {}, 6),
                 lambda: ai.compute.update(enable=True)]
        for i, call in enumerate(calls):
            try: call()
            except TypeError: pass
            else: raise SystemExit(f"call {i} did not raise")
        """,
        enable=enable,
    )


def test_nothing_is_formatted_with_tracing_off(traced: Callable[..., Run]) -> None:
    """No `__str__`, no `__repr__`, no look at attributes."""
    traced(
        """
        class Untouchable:
            def __getattribute__(self, name): raise SystemExit(f"looked at {name}")
            def __str__(self): raise SystemExit("formatted")
            __repr__ = __bool__ = __len__ = __iter__ = __str__
        thing = Untouchable()
        with ai.compute.forward(args={"a": thing, thing: 1}, epoch=thing, step=thing, enable=thing): pass
        ai.update(epoch=thing, args={"a": thing})
        ai.compute.forward(epoch=thing).update(step=thing)
        fn = dft_fn("c", "n", epoch=thing)
        fn.update(args=thing)
        log.log_event("n", "c", 1, 2)
        """,
        enable=False,
    )


def test_an_interrupt_while_an_argument_is_formatted(traced: Callable[..., Run]) -> None:
    """Ctrl-C inside a `__str__` of the program reaches the program; errors in there do not."""
    run = traced(
        """
        class Interrupted:
            def __str__(self): raise KeyboardInterrupt("now")
        class Attribute:
            @property
            def shape(self): raise KeyboardInterrupt("now")
        class Failing:
            def __str__(self): raise ValueError
        fn = dft_fn("c")
        class Model:
            step = Interrupted()
            @fn.log
            def forward(self): raise SystemExit("called")
        @fn.log
        def train(step): raise SystemExit("called")
        def use(thing):
            with ai.compute.forward(args={"a": thing}): raise SystemExit("entered")
        thing = Interrupted()
        calls = [lambda: use(thing), lambda: use(Attribute()), lambda: use([{"k": thing}]),
                 lambda: train(thing), lambda: Model().forward(), lambda: ai.update(epoch=thing),
                 lambda: ai.compute.update(args={thing: 1}),
                 lambda: ai.compute(epoch=1).update(step=thing), lambda: log.log_metadata_event("k", thing),
                 lambda: log.log_event(thing, "c", 1, 2)]
        for i, call in enumerate(calls):
            try: call()
            except KeyboardInterrupt as e: assert e.args == ("now",)
            else: raise SystemExit(f"call {i} swallowed it")
        with ai.compute.forward(args={"a": Failing(), "b": 2}): pass
        """
    )
    (event,) = run.trace.named("forward")
    assert event.args["b"] == 2


# Enough for two such texts, not for a third.
LIMITED = """
import resource
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (used + (700 << 20),) * 2)
"""


@BOTH
def test_arguments_larger_than_the_memory_that_is_left(enable: bool, traced: Callable[..., Run]) -> None:
    """300 MB of text, twice over: recorded as far as the bound goes, counted, and no abort."""
    run = traced(
        LIMITED
        + """
text = "x" * (300 << 20)
class Big:
    def __str__(self): return "y" * (300 << 20)
for value in (text, text.encode(), [text] * 5, {"a": text, "b": text}, Big(), "\\u00e9" * (50 << 20)):
    with ai.compute.forward(args={"first": value, "second": value, "third": 3}): pass
    ai.compute.update(args={"big": value})
    with ai.compute.backward: pass
    ai.compute.update(args={"big": 0})
@dft_fn("c").log
def train(step): pass
train(text)
log.log_event("n", "c", 1, 2, string_args={"s": text})
log.log_metadata_event("k", text)
print("result")
""",
        enable=enable,
    )
    assert run.stdout == "result\n"
    assert run.stderr == ""
    if enable:
        trace = run.trace
        end = trace.files[0].end_record.args
        assert len(trace.events) + end["dropped"] == 14, "12 spans, a call and an event from elsewhere"
        assert end["dropped"] == end.get("dropped_memory", 0)
        first = trace.named("forward")[0]
        assert first.args["first"].startswith("xxx")
        assert first.args["first"].endswith("...")
        assert len(first.line) < 8 << 20
        assert end["values_cut"] >= 6


@pytest.mark.parametrize("left", [0, 100_000, 600_000, 2 << 20])
def test_no_memory_at_all_for_an_argument(left: int, traced: Callable[..., Run]) -> None:
    """The address space is used up: events go on, those without room are counted, the writer tries again."""
    run = traced(
        f"""
        import os, resource
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # the writer begins without memory
        value = ["z" * 1000] * 4000
        for i in range(20):
            with ai.compute.forward: pass
        used = int(next(l for l in open("/proc/self/status") if l.startswith("VmSize")).split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + {left},) * 2)
        for i in range(50):
            with ai.compute.backward(args={{"i": i, "v": value}}): pass
        print("result")
        """
    )
    assert run.stdout == "result\n"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    where = tmp_path / "tiny"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "none", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield where
    for path in where.iterdir():
        path.unlink()
    recover(where)
    subprocess.run(["umount", str(where)], check=True)


def test_large_arguments_while_the_disk_is_full(tiny_disk: Path, traced: Callable[..., Run]) -> None:
    """What waits for the disk is bounded; the rest is dropped and counted."""
    run = traced(
        f"""
        import os, resource
        from dftracer import _core
        with ai.compute.forward: pass
        _core.flush()
        filler = open({str(tiny_disk / "filler")!r}, "wb", buffering=0)
        try:
            while True: filler.write(bytes(4096))
        except OSError: pass
        noise = [os.urandom(1 << 20).hex() for _ in range(4)]
        with ai.compute.backward(args={{"i": -1, "noise": noise[0]}}): pass
        while _core.flush(): pass
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(300):
            with ai.compute.backward(args={{"i": i, "noise": noise[i % 4]}}): pass
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
        print(_core.stats()["dropped_disk"])
        """,
        env={"DFTRACER_LOG_FILE": str(tiny_disk / "t")},
    )
    grown_mb, dropped = map(int, run.stdout.split())
    assert grown_mb < 200, "600 MB of arguments were recorded"
    assert dropped >= 250


def test_derived_names_do_not_make_the_exit_slow(traced: Callable[..., Run]) -> None:
    """The exit with four times the names takes about four times as long, not sixteen."""
    program = """
        import os, resource, sys
        nodes = [ai.compute.derive(f"step {{i}}") for i in range({n})]
        def used():
            use = resource.getrusage(resource.RUSAGE_SELF)
            return use.ru_utime + use.ru_stime
        class AtTheVeryEnd:
            def __init__(self): self.used, self.write = used, os.write
            def __del__(self): self.write(1, f"{{self.used() - self.before:.6f}}\\n".encode())
        end = AtTheVeryEnd()
        end.before = used()
        children = ai.compute._derived
        children.clear(); nodes.clear()
        del end
    """
    few, many = (float(traced(program.format(n=n)).stdout) for n in (30_000, 120_000))
    assert many < 8 * max(few, 0.005), f"{few:.3f} s and {many:.3f} s"
