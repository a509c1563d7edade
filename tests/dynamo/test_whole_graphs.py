"""The second mode: the real backend stays, whole graphs are timed."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

GRAPHS = """
    import json, torch
    from dftracer.python import create_backend, dftracer, dynamo
    log = dftracer.initialize_log("graphs.pfw", None, -1)

    def f(x, w):
        return (x @ w).relu().sum()

    compiled = {how}
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    expected = torch.autograd.grad(f(x, w), w)[0]
    for _ in range(3):
        (found,) = torch.autograd.grad(compiled(x, w), w)
        torch.testing.assert_close(found, expected)
    with torch.no_grad():
        compiled(x, w)
    log.finalize()
"""


@pytest.mark.parametrize(
    "how",
    [
        'dynamo.compile(f, backend="aot_eager")',
        'torch.compile(f, backend=create_backend(backend="aot_eager"))',
        pytest.param(
            'dynamo.compile(f, granularity="graph")',
            marks=pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a compiler"),
        ),
    ],
)
def test_forward_and_backward_calls_are_events(run_program: Any, how: str) -> None:
    run = run_program(GRAPHS.format(how=how))
    forward = [e["args"] for e in run.of("dynamo") if e["name"] == "graph.forward"]
    backward = [e["args"] for e in run.of("dynamo") if e["name"] == "graph.backward"]
    assert [args["grad_enabled"] for args in forward] == [1, 1, 1, 0]
    assert len(backward) == 3
    assert {args["phase"] for args in backward} == {"backward"}
    assert {args["graph"] for args in backward} == {forward[0]["graph"]}
    assert forward[0]["backend"] in ("aot_eager", "inductor")
    assert not [e for e in run.of("dynamo") if e["name"].startswith("function.")]


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a compiler")
def test_mode_and_options_are_inductors_and_reach_it(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import dftracer, dftracer_dynamo_backend, dynamo
        import torch._inductor.compile_fx as compile_fx
        log = dftracer.initialize_log("mode.pfw", None, -1)
        seen = []
        original = compile_fx.compile_fx

        def spy(*args, **kwargs):
            if kwargs.get("config_patches"):
                seen.append(dict(kwargs["config_patches"]))
            return original(*args, **kwargs)

        compile_fx.compile_fx = spy
        f = dynamo.compile(lambda x: x + 1, mode="max-autotune-no-cudagraphs")
        f(torch.ones(3))
        g = torch.compile(lambda x: x * 3, backend=dftracer_dynamo_backend, options={"epilogue_fusion": True})
        g(torch.ones(3))
        log.finalize()
        assert seen[0]["max_autotune"] is True, seen
        assert seen[1]["epilogue_fusion"] is True, seen
    """)
    assert sum(e["name"] == "graph.forward" for e in run.of("dynamo")) == 2


def test_a_failing_backward_leaves_nothing_open(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import ai, dftracer, dynamo
        log = dftracer.initialize_log("fails.pfw", None, -1)
        f = dynamo.compile(lambda x: (x * 2).sum(), backend="aot_eager")
        x = torch.ones(3, requires_grad=True)
        loss = f(x)
        loss.backward()
        try:
            loss.backward()
        except RuntimeError:
            pass
        with ai.compute:
            pass
        log.finalize()
    """)
    (after,) = run.of("compute")
    assert (after["args"]["level"], after["args"]["p_idx"]) == (1, -1)


def test_a_wrong_granularity_is_refused(run_program: Any) -> None:
    run = run_program("""
        from dftracer.python import create_backend
        try:
            create_backend(granularity="layer")
        except ValueError as error:
            print(error)
    """)
    assert "op, graph" in run.stdout
