"""Windows are written beside the program's own work: whatever that does, and also when it ends suddenly."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dftracer import _core

WINDOW = """
    import json, os, signal, time
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    from dftracer.python import dftracer
    from dftracer.python import torch as _handler
    from dftracer.python.torch import trace_handler

    log = dftracer.initialize_log("beside.pfw", None, -1)

    def window(name, steps=1):
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler, record_shapes=True):
            for _ in range(steps):
                with record_function(name):
                    torch.ones(4) + 1

    def waits():
        return _handler._writer._windows.unfinished_tasks > 0
"""


def names(run: Any) -> Counter[str]:
    return Counter(e["name"] for e in run.of("PP") if e["args"]["type"] == "user_annotation")


def test_a_program_that_never_lets_go_of_the_interpreter_lock(run_program: Any) -> None:
    run = run_program(
        WINDOW
        + """
    window("busy", 200)
    until = time.monotonic() + 120
    count = 0
    while waits() and time.monotonic() < until:
        count += 1
    print(json.dumps(waits()))
    log.finalize()
    """
    )
    assert run.result is False
    assert names(run) == {"busy": 200}


def test_windows_that_come_faster_than_they_are_written(run_program: Any) -> None:
    run = run_program(
        WINDOW
        + """
    for index in range(8):
        window(f"window {index}", 50)
    log.finalize()
    """
    )
    assert names(run) == {f"window {index}": 50 for index in range(8)}


def test_a_killed_program_keeps_the_windows_it_had_written(run_program: Any) -> None:
    run = run_program(
        WINDOW
        + """
    window("written", 20)
    while waits():
        time.sleep(0.01)
    window("cut", 2000)
    os.kill(os.getpid(), signal.SIGKILL)
    """,
        check=False,
    )
    _core.recover(str(run.directory))
    found = names(run)
    assert found["written"] == 20
    # Of the window that was being written, what is there is whole: its first events, none of them twice.
    cut = [e for e in run.of("PP") if e["name"] == "cut"]
    assert found["cut"] == len(cut) <= 2000
    assert len({e["id"] for e in cut}) == len({e["ts"] for e in cut}) == len(cut)
    assert set(found) <= {"written", "cut"}


def test_what_libraries_do_at_the_end_is_no_code_of_the_program(run_program: Any) -> None:
    run = run_program(
        """
    import atexit, time
    from dftracer import auto
    auto.install()
    import torch

    # Not below the program's own folder, as the code of a library.
    library = {}
    source = "import time\\ndef tidy_up():\\n    time.sleep(0.3)\\n"
    exec(compile(source, "/opt/site-packages/library.py", "exec"), library)
    atexit.register(library["tidy_up"])

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.ones(4)).backward()
        optimizer.step()
        time.sleep(0.06)
    library["tidy_up"]()  # what the program calls is its own
    """
    )
    where = {e["args"]["where"] for e in run.of("sample")}
    assert any(w.startswith("<module> program.py:") for w in where)
    assert not any(w.startswith("tidy_up ") for w in where)


def test_the_first_optimizer_says_how_long_it_imported(run_program: Any) -> None:
    run = run_program(
        """
    import sys
    from dftracer import auto
    auto.install()
    import torch, torch._dynamo

    def parameters(model):
        sys.modules.setdefault("torch._dynamo", torch._dynamo)  # where torch itself would import it
        yield from model.parameters()

    model = torch.nn.Linear(4, 1)
    del sys.modules["torch._dynamo"]
    for _ in range(2):
        optimizer = torch.optim.SGD(parameters(model), 0.1)
    """
    )
    first, second = (e["args"] for e in run.of("dftracer") if e["name"] == "optimizer")
    assert first["importing_us"] > 0
    assert "importing_us" not in second
