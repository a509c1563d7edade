"""The program's own profilers and observers, as the original guide writes them, beside a collection."""

from __future__ import annotations

from .conftest import Runner, read_json

# The three snippets of the guide, with a loop in the place of their dots.
SNIPPETS = """
from torch.profiler import ExecutionTraceObserver, profile

def work():
    train_step()

def et_alone():
    et = ExecutionTraceObserver()
    et.register_callback("pytorch_et.json")
    et.start()
    work()
    et.stop()
    et.unregister_callback()

def kineto_alone():
    def trace_handler(prof):
        prof.export_chrome_trace("./kineto_trace.json")
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=0, active=1),
        record_shapes=True,
        on_trace_ready=trace_handler,
    ) as prof:
        work()
        prof.step()

def both():
    def trace_handler(prof):
        prof.export_chrome_trace("both_kineto_trace.json")
    et = ExecutionTraceObserver()
    et.register_callback("both_pytorch_et.json")
    et.start()
    with profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=5, active=1),
        on_trace_ready=trace_handler,
    ) as prof:
        for epoch in range(7):
            work()
            if epoch == 6:
                et.stop()
            if epoch == 5:
                et.start()
            prof.step()
    et.stop()
    et.unregister_callback()
"""


def test_the_guides_snippets_inside_a_window(run: Runner) -> None:
    """They get what they ask for; our window ends where they begin, is whole, and the report says so."""
    done = run(
        SNIPPETS
        + """
import json
from dftracer.python import ai
et_alone()
both()
json.load(open("both_pytorch_et.json"))  # alone, with tracing on, they work as ever
with collect("out", wait=0, warmup=0, active=1, repeat=8) as c:
    train_step()
    et_alone()
    c.step()
    train_step()
    kineto_alone()
    c.step()
    train_step()
    both()
    c.step()
    train_step()
    c.step()
    foreign = ExecutionTraceObserver()
    foreign.register_callback("held.json")
    foreign.start()
    c.step()
    train_step()
    c.step()
    foreign.unregister_callback()
    c.step()
    train_step()
    c.step()
"""
    )
    folder = done.directory.parent
    for name in ("pytorch_et.json", "both_pytorch_et.json", "held.json"):
        assert read_json(folder / name)["nodes"]
    both = read_json(folder / "both_kineto_trace.json")["traceEvents"]
    assert [e for e in both if e.get("name") == "aten::linear"]
    # Without repeat=1 its second, empty cycle overwrites the first one's file: so it is without us, too.
    assert read_json(folder / "kineto_trace.json")["traceEvents"]
    manifest = done.manifest()
    text = "\n".join(manifest["warnings"])
    assert "window 0 ended early: the program started an execution trace of its own" in text
    assert "window 1 ended early: the program started a profiler of its own" in text
    assert "is skipped: the program records an execution trace of its own" in text
    joined = [w for w in manifest["windows"] if w["et_nodes"]]
    assert len(joined) >= 5
    assert all(w["coverage"] == 1.0 for w in joined)


def test_a_profiler_that_warms_up_is_left_alone(run: Runner) -> None:
    """A window that began beside it crashed the program; one begins after it has ended."""
    done = run(
        """
        with collect("out", wait=1, warmup=0, active=1, repeat=0) as c:
            schedule = torch.profiler.schedule(wait=1, warmup=2, active=1, repeat=1)
            with torch.profiler.profile(schedule=schedule) as own:
                for _ in range(5):
                    train_step()
                    own.step()
                    c.step()
            print("aten::addmm" in {e.key for e in own.key_averages()})
            for _ in range(3):
                train_step()
                c.step()
        """
    )
    assert done.stdout.splitlines()[-1] == "True"
    manifest = done.manifest()
    text = " ".join(manifest["warnings"])
    for window in (0, 1):
        assert f"window {window} is skipped: the program runs a profiler of its own" in text
    assert [w["index"] for w in manifest["windows"]] == [2, 3]
