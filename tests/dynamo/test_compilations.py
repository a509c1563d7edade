"""Compilations, recompilations and graph breaks: why the first step was slow."""

from __future__ import annotations

from typing import Any

import pytest


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
