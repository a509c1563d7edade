"""A part that fails is off, named once and reported; training goes on."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dftracer.collect import _auto
from dftracer.collect._options import Options
from dftracer.torch import boundaries

from .conftest import Runner


def test_failing_parts(run: Runner) -> None:
    """An observer, a plug-in, a directory, a profiler: each fails alone."""
    done = run(
        """
        from dftracer.collect import Plugin

        class Mine(Plugin):
            name = "mine"
            def start(self, context):
                self.seen = []
            def window_start(self, index, step):
                self.seen.append(["start", index, step])
            def step(self, step):
                self.seen.append(["step", step])
            def window_end(self, index, step):
                self.seen.append(["end", index, step])
            def finish(self):
                return {"seen": self.seen}

        class Lines(Plugin):
            name = "lines"
            def finish(self):
                return ({"n": n} for n in range(3))

        class Bad(Plugin):
            name = "bad"
            def step(self, step):
                raise RuntimeError("of its own")

        observer = torch.profiler.ExecutionTraceObserver
        register = observer.register_callback

        def no_observer(*_):
            raise OSError("no observer today")

        observer.register_callback = no_observer
        plugins = [Mine(), Lines(), Bad(), "none"]
        with collect("out", wait=0, warmup=0, active=2, repeat=2, plugins=plugins) as c:
            for _ in range(5):
                train_step()
                c.step()
        observer.register_callback = register

        prepare = torch.profiler.profile.prepare_trace
        def no_profiler(self):
            raise RuntimeError("no profiler today")
        torch.profiler.profile.prepare_trace = no_profiler
        with collect("et_only", wait=0, warmup=0, active=1) as c:
            train_step()
            c.step()
        torch.profiler.profile.prepare_trace = prepare
        print(sorted(p for p in __import__("os").listdir("et_only") if "et_0" in p or "kineto" in p))

        open("file", "w").close()
        with collect("file/below", wait=0, warmup=0, active=1) as c:
            train_step()
            c.step()
        assert c.report.warnings and not c.report.windows

        with collect("broken", wait=0, warmup=0, active=1) as c:
            c._entries._finisher = None
            train_step()
            c.step()
        print(c.report.warnings[-1])
        # What a missing directory breaks in torch is not broken for those who come after us.
        with collect("new/folder", wait=0, warmup=0, active=1, card=False) as c:
            train_step()
            c.step()
        print(c.report.coverage)
        """
    )
    ets, broken, coverage = done.stdout.splitlines()
    assert (ets, coverage) == ("['torch_et_0.json.gz']", "1.0")
    assert broken.startswith(("finishing is disabled", "collection is disabled"))
    warnings = done.manifest()["warnings"]
    off = [w for w in warnings if w.startswith("et is disabled")]
    assert off == ["et is disabled: OSError: no observer today"]
    assert len([w for w in warnings if "plug-in bad" in w]) == 1
    assert any("unknown plug-in 'none'" in w for w in warnings)
    assert done.stderr.count("no observer today") == 1
    assert "collection is disabled" in done.stderr
    assert {"kineto_trace_0.json.gz", "kineto_trace_0_w1.json.gz", "mine_0.json.gz"} <= done.names
    assert done["mine_0.json.gz"]["seen"][:4] == [["start", 0, 0], ["step", 0], ["step", 1], ["end", 0, 1]]
    assert done.lines("lines_0.jsonl.gz") == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_wrong_arguments_are_told_at_once() -> None:
    """Before anything is collected."""
    from dftracer.collect._options import Options, as_environment, from_environment  # noqa: PLC0415

    with pytest.raises(ValueError, match="at least one step"):
        Options("out", active=0)
    with pytest.raises(ValueError, match="nsys and Kineto exclude each other"):
        Options("out", traces=("nsys", "kineto"))
    with pytest.raises(ValueError, match="'ET'"):
        Options("out", traces=("ET",))
    with pytest.raises(ValueError, match="DFTRACER_COLLECT_WAIT='x'"):
        from_environment({"DFTRACER_COLLECT": "out", "DFTRACER_COLLECT_WAIT": "x"})
    with pytest.raises(ValueError, match="DFTRACER_COLLECT_CARD='maybe': is not a switch"):
        from_environment({"DFTRACER_COLLECT": "out", "DFTRACER_COLLECT_CARD": "maybe"})
    for text, wanted in (("y", True), ("N", False), ("on", True), ("0", False)):
        switched = from_environment({"DFTRACER_COLLECT": "out", "DFTRACER_COLLECT_CARD": text})
        assert switched is not None
        assert switched.card is wanted
    assert from_environment({}) is None
    env = as_environment("out", {"wait": 3, "traces": ("et", "kineto"), "compress": False, "plugins": None})
    found = from_environment(env)
    assert found == Options("out", wait=3, traces=("et", "kineto"), compress=False)


def test_nsys_absent_and_present(run: Runner, tmp_path: Path) -> None:
    """One clear warning without nsys; with it, the command that records windows only."""
    cli = [sys.executable, "-m", "dftracer.cli", "collect", "-o", "out"]
    words = [*cli, "--traces", "pfw,nsys", "program.py"]
    absent = run(prelude="print(1)", command=words)
    assert absent.stderr.count("nsys is not on the PATH") == 1
    assert "--capture-range cudaProfilerApi" in absent.stderr

    tools = tmp_path / "bin"
    tools.mkdir()
    nsys = tools / "nsys"
    nsys.write_text(
        '#!/bin/sh\necho "$@" > nsys_was_called\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    )
    nsys.chmod(nsys.stat().st_mode | stat.S_IXUSR)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(prelude="print(1)", command=words, env={"PATH": path, "RANK": "3", "NSYS_PROFILING_SESSION_ID": "1"})
    text = (tmp_path / "nsys_was_called").read_text()
    assert f"--output {tmp_path / 'out' / 'nsys_3'} " in text
    assert "--capture-range cudaProfilerApi --capture-range-end stop -- " in text


@pytest.mark.parametrize("steps", ["auto", "optimizer", "loader"])
def test_who_no_longer_collects_hears_of_no_more_steps(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    def fails(options: Options) -> None:
        raise RuntimeError("no room")

    before = dict(boundaries._subscribers)
    monkeypatch.setattr("dftracer.collect._collector.Collector", fails)
    _auto._Driver(Options("out", steps=steps))
    boundaries.notify("loader", True)
    assert boundaries._subscribers == before
    driver = _auto._Driver(Options("out", steps=steps))
    driver.collector = SimpleNamespace(_running=True, _step_is_over=lambda _: None)
    driver._step()
    assert boundaries._subscribers != before
    driver.collector._running = False  # it failed, was ended by a signal, or this is a forked child
    driver._step()
    assert boundaries._subscribers == before
