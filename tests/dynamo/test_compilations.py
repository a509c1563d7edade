"""Compilations, recompilations and graph breaks: why the first step was slow."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from dftracer.torch import compilations


@pytest.fixture(scope="module")
def compiled(run_program: Any) -> Any:
    return run_program("""
        import time, torch
        from dftracer.python import ai, dftracer, dynamo
        log = dftracer.initialize_log("compilations.pfw", None, -1)

        @dynamo.compile
        def breaks(x):
            y = x * 2
            print("here")
            return y + 1

        @dynamo.compile(dynamic=False)
        def grows(x):
            return x.sin()

        with ai.compute.forward:
            breaks(torch.ones(3))
        for n in (3, 4):
            grows(torch.ones(n))
        log.finalize()
    """)


def test_a_graph_break_tells_its_reason_and_line(compiled: Any) -> None:
    (found,) = [e["args"] for e in compiled.of("dynamo") if e["name"] == "graph_break"]
    assert found["source"].endswith("program.py:9")
    assert found["code"] == 'print("here")'
    assert found["function"] == "breaks"
    assert found["reason"]


def test_compilations_are_events_with_function_and_time(compiled: Any) -> None:
    first = next(e for e in compiled.of("dynamo") if e["name"] == "compile")
    assert first["args"]["function"] == "breaks"
    assert first["args"]["source"].endswith("program.py:6")
    assert first["dur"] > 0
    assert first["args"]["ops"] == 1


def test_the_first_compilation_lies_inside_the_step_that_paid_for_it(compiled: Any) -> None:
    (step,) = compiled.of("compute")
    first = next(e for e in compiled.of("dynamo") if e["name"] == "compile")
    assert step["ts"] - 100 <= first["ts"]
    assert first["ts"] + first["dur"] <= step["ts"] + step["dur"] + 100


def test_a_recompilation_tells_which_guard_failed(compiled: Any) -> None:
    (again,) = [e["args"] for e in compiled.of("dynamo") if e["name"] == "recompile"]
    assert again["function"] == "grows"
    assert "size mismatch" in again["reason"]


@pytest.fixture(scope="module")
def compiled_under_auto(run_program: Any) -> Any:
    """The same calls under automatic tracing, with a compilation before and after those of our backend."""
    return run_program("""
        import torch
        from dftracer import auto
        from dftracer.python import dftracer, dynamo
        log = dftracer.initialize_log("compilations.pfw", None, -1)
        auto.install()

        @torch.compile(backend="eager")
        def earlier(x):
            return x.cos()

        @dynamo.compile(dynamic=False)
        def grows(x):
            return x.sin()

        @torch.compile(backend="eager")
        def later(x):
            return x.tan()

        earlier(torch.ones(3))
        for n in (3, 4):
            grows(torch.ones(n))
        later(torch.ones(3))
        log.log_event("later ran", "app", log.get_time(), 0)
        callback = torch._dynamo.callback
        trigger = getattr(getattr(callback, "CallbackTrigger", None), "CUDAGRAPH_RECORDING", None)
        if trigger is not None:
            with callback.callback_handler.install_callbacks(trigger, "2/0"):
                pass
        auto.uninstall()
        grows(torch.ones(5))
        print(int(trigger is not None))
        log.finalize()
    """)


def test_under_automatic_tracing_each_compilation_is_written_once(compiled_under_auto: Any) -> None:
    events = compiled_under_auto.of("dynamo")
    recorded = [(e["name"], e["args"]["function"]) for e in events if "function" in e["args"]]
    assert recorded == [("compile", "grows"), ("recompile", "grows"), ("recompile", "grows")]


def test_what_another_backend_compiles_is_written_when_that_ends(compiled_under_auto: Any) -> None:
    # In the order of the file: torch completes its record later, when more has been compiled.
    events = [e for e in compiled_under_auto.events if e["cat"] == "dynamo" or e["name"] == "later ran"]
    names = [e["name"] for e in events if "auto" in e["args"] or e["name"] == "later ran"]
    expected = ["compile", "compile", "later ran"]
    assert [n for n in names if n != "graph_break"][:3] == expected


def test_recording_a_cuda_graph_of_which_torch_keeps_no_record_is_written(compiled_under_auto: Any) -> None:
    if not compiled_under_auto.result:
        pytest.skip("this torch does not announce it")
    triggers = [e["args"].get("trigger") for e in compiled_under_auto.of("dynamo")]
    assert triggers.count("cudagraph_recording") == 1


def test_times_of_torchs_records_are_laid_on_the_clock_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets: list[int] = []
    monkeypatch.setattr("dftracer.python.torch.clock_offset_ns", lambda: 5_000_000)
    monkeypatch.setattr(compilations, "_metrics", lambda: [object()])
    monkeypatch.setattr(compilations, "_write_compilation", lambda _, offset: offsets.append(offset))
    compilations.CompileEvents().collect()
    assert offsets == [5_000_000]


def test_a_record_that_cannot_be_read_does_not_fail_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> list[Any]:
        raise AttributeError("metrics")

    monkeypatch.setattr(compilations, "_metrics", unreadable)
    events = compilations.CompileEvents()
    events.pending = True
    assert events.then_collect(len)([1, 2, 3]) == 3
    assert not events.pending
