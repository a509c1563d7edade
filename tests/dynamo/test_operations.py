"""Operations of compiled graphs: names, args, phases."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

MODEL = """
    import json
    import torch
    from dftracer.python import Dynamo, dftracer, dftracer_dynamo_backend, dynamo

    log = dftracer.initialize_log("operations.pfw", None, -1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 16, 3, 1)
            last = torch.nn.Sequential(torch.nn.Linear(16 * 15 * 15, 10))
            self.layers = torch.nn.Sequential(torch.nn.ReLU(), last)

        @dynamo.compile
        def forward(self, x):
            x = self.conv(x)
            x = torch.nn.functional.max_pool2d(self.layers[0](x), 2)
            with torch.no_grad():
                scale = x.abs().sum()
            x = x.view(x.size(0), -1) / scale
            return self.layers[1](x)

    model = Model()
    model(torch.randn(2, 3, 32, 32)).sum().backward()
"""


@pytest.fixture(scope="module")
def trained(run_program: Any) -> Any:
    return run_program(MODEL + "\n    log.finalize()\n")


def one(events: list[dict[str, Any]], name: str, phase: str) -> dict[str, Any]:
    (found,) = [e for e in events if e["name"] == name and e["args"].get("phase") == phase]
    return found


def test_forward_operations_have_the_documented_names_in_order(trained: Any) -> None:
    names = [e["name"] for e in trained.of("dynamo") if e["args"].get("phase") == "forward"]
    wanted = [
        "function.convolution.default",
        "function.relu.default",
        "function.max_pool2d_with_indices.default",
        "function.getitem",
        "function.view.default",
        "function.t.default",
        "function.addmm.default",
    ]
    positions = [names.index(name) for name in wanted]
    assert positions == sorted(positions)


def test_an_operation_says_what_it_is_and_where_it_comes_from(trained: Any) -> None:
    args = one(trained.of("dynamo"), "function.convolution.default", "forward")["args"]
    assert args["op_type"] == "call_function"
    assert args["target"] == "aten.convolution.default"
    assert (args["module"], args["module_type"]) == ("conv", "Conv2d")
    assert args["shapes"] == "[2,3,32,32],[16,3,3,3],[16]"
    assert args["dtypes"] == "float32,float32,float32"
    assert args["output_shapes"] == "[2,16,30,30]"
    assert args["source"].rpartition(":")[0].endswith("program.py")


def test_modules_are_named_as_the_program_nests_them(trained: Any) -> None:
    paths = {e["args"].get("module") for e in trained.of("dynamo")}
    assert {"conv", "layers.0", "layers.1.0"} <= paths


def test_grad_enabled_follows_the_program_not_the_runtime(trained: Any) -> None:
    events = trained.of("dynamo")
    assert one(events, "function.convolution.default", "forward")["args"]["grad_enabled"] == 1
    assert one(events, "function.abs.default", "forward")["args"]["grad_enabled"] == 0
    assert {
        e["args"]["grad_enabled"]
        for e in events
        if e["args"].get("phase") == "backward" and "target" in e["args"]
    } == {0}


def test_gradient_operations_name_their_forward_operation(trained: Any) -> None:
    events = trained.of("dynamo")
    backward = one(events, "function.convolution_backward.default", "backward")
    assert backward["args"]["forward_op"] == "function.convolution.default"
    assert backward["args"]["module"] == "conv"
    relu = one(events, "function.threshold_backward.default", "backward")
    assert (relu["args"]["forward_op"], relu["args"]["module"]) == ("function.relu.default", "layers.0")


def test_operations_do_not_overlap_and_lie_on_their_thread(trained: Any) -> None:
    events = [e for e in trained.of("dynamo") if "target" in e["args"]]
    assert {e["tid"] for e in events} == {events[0]["pid"]}
    assert {(e["args"]["p_idx"], e["args"]["level"]) for e in events} == {(-1, 1)}
    ordered = sorted(events, key=lambda e: e["id"])
    for before, after in itertools.pairwise(ordered):
        assert before["ts"] + before["dur"] <= after["ts"] + 1


def test_args_of_a_tracer_are_on_its_events_and_follow_updates(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import Dynamo, dftracer
        log = dftracer.initialize_log("args.pfw", None, -1)
        tracer = Dynamo(name="resnet50", epoch=1, step=100, image_idx=42, image_size=(224, 224), enable=True)

        @tracer.compile
        def f(x):
            return x.sin()

        f(torch.ones(3))
        tracer.update(step=101, args={"phase_of_training": "warm"})
        f(torch.ones(3))
        tracer.disable()
        f(torch.ones(3))
        tracer.enable()
        f(torch.ones(3))
        log.finalize()
    """)
    first, second, third = [e["args"] for e in run.of("dynamo") if e["name"] == "function.sin.default"]
    assert (first["model"], first["epoch"], first["step"], first["image_idx"]) == ("resnet50", 1, 100, 42)
    assert first["image_size"] == [224, 224]
    assert (second["step"], second["epoch"], second["phase_of_training"]) == (101, 1, "warm")
    assert third["step"] == 101


def test_every_form_of_use_gives_the_same_operations(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import Dynamo, create_backend, dftracer, dftracer_dynamo_backend, dynamo
        from dftracer.python.dynamo import Dynamo as D, create_backend as c, dynamo as d
        assert D is Dynamo and c is create_backend
        log = dftracer.initialize_log("forms.pfw", None, -1)

        def f(x):
            return x.cos() + 1

        @dynamo.compile
        class Net(torch.nn.Module):
            def forward(self, x):
                return x.cos() + 1

        class Plain(torch.nn.Module):
            def forward(self, x):
                return x.cos() + 1

        forms = [
            dynamo.compile(f),
            dynamo.compile()(f),
            dynamo.compile(fullgraph=True)(f),
            dynamo.compile(f, dynamic=True),
            d.compile(f),
            torch.compile(f, backend=dftracer_dynamo_backend),
            torch.compile(f, backend=create_backend()),
            dynamo.compile(f, backend=create_backend()),
            torch.compile(f, backend=Dynamo().backend),
            dynamo.compile(Plain()),
            Net(),
        ]
        expected = f(torch.ones(4))
        for number, form in enumerate(forms):
            torch._dynamo.reset()
            assert torch.equal(form(torch.ones(4)), expected), number
        log.finalize()
        print(len(forms))
    """)
    count = sum(e["name"] == "function.cos.default" for e in run.of("dynamo"))
    assert count == run.result


def test_an_operation_that_raises_closes_its_event_and_the_error_is_the_programs(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import ai, dftracer, dynamo
        log = dftracer.initialize_log("raises.pfw", None, -1)

        @dynamo.compile
        def f(x, i):
            return x.exp()[i]

        f(torch.ones(3), torch.tensor([1]))
        for _ in range(2):
            try:
                f(torch.ones(3), torch.tensor([9]))
            except IndexError:
                pass
            else:
                raise AssertionError("no error")
        with ai.compute:
            pass
        log.finalize()
    """)
    (after,) = run.of("compute")
    assert (after["args"]["level"], after["args"]["p_idx"]) == (1, -1)
    assert sum(e["name"] == "function.exp.default" for e in run.of("dynamo")) == 3


def test_user_settings_reach_torch(run_program: Any) -> None:
    run = run_program("""
        import torch
        from dftracer.python import dftracer, dynamo
        log = dftracer.initialize_log("settings.pfw", None, -1)

        def breaks(x):
            y = x + 1
            torch._dynamo.graph_break()
            return y * 2

        try:
            dynamo.compile(breaks, fullgraph=True)(torch.ones(3))
        except torch._dynamo.exc.Unsupported:
            print("fullgraph")
        torch._dynamo.reset()
        f = dynamo.compile(lambda x: x * 2, dynamic=True)
        for n in (3, 4, 5, 6):
            f(torch.ones(n))
        log.finalize()
        print(len([m for m in torch._dynamo.utils.get_compilation_metrics() if m.co_name == "<lambda>"]))
    """)
    assert "fullgraph" in run.stdout
    assert run.result == 1


def test_tracing_off_gives_the_function_itself_and_no_torch(run_program: Any) -> None:
    run = run_program(
        """
        import sys
        from dftracer.python import Dynamo, dftracer, dynamo
        import dftracer.python.dynamo

        def f(x):
            return x

        assert dynamo.compile(f) is f
        assert dynamo.compile()(f) is f
        assert dynamo.compile(fullgraph=True)(f) is f
        assert Dynamo(enable=False).compile(f) is f
        assert "torch" not in sys.modules
        """,
        enable=False,
        fresh=True,
    )
    assert run.records == []


def test_enable_false_gives_the_function_itself(run_program: Any) -> None:
    run_program(
        """
        import sys
        from dftracer.python import Dynamo, dynamo

        def f(x):
            return x

        assert Dynamo(enable=False).compile(f) is f
        assert dynamo.compile(f, enable=False) is f
        dynamo.disable()
        assert dynamo.compile(f) is f
        assert "torch" not in sys.modules
        """,
        fresh=True,
    )


def test_missing_or_old_torch_names_the_extra(run_program: Any) -> None:
    run = run_program(
        inspect.cleandoc("""
        import sys, types
        from dftracer.python import dynamo

        def attempt():
            try:
                dynamo.compile(lambda x: x)
            except ImportError as error:
                return str(error)

        sys.modules["torch"] = None
        print(attempt())
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].__version__ = "2.1.0"
        print(attempt())
        """)
    )
    missing, old = run.stdout.strip().splitlines()
    assert "pip install 'pydftracer[dynamo]'" in missing
    assert "found 2.1.0" in old
    assert "pip install 'pydftracer[dynamo]'" in old


def test_a_graph_timed_by_hand_gives_what_it_gave(run_program: Any) -> None:
    """A backend of the program's own may time a graph and run it as it always did."""
    run = run_program(
        """
        import torch
        from torch import fx
        from dftracer.python import Dynamo, dftracer
        log = dftracer.initialize_log("by_hand.pfw", None, -1)
        tracer = Dynamo(name="net", epoch=2)
        layer = torch.nn.Linear(3, 2)
        assert tracer.count_parameters(layer) == 8 and tracer.count_parameters(object()) is None

        def backend(gm, inputs):
            timed = tracer.add_enhanced_timing_to_graph(gm)
            assert timed is gm
            return timed.forward

        x = torch.ones(4, 3)
        wanted = torch.relu(layer(x)).sum()
        found = torch.compile(lambda x: torch.relu(layer(x)).sum(), backend=backend)(x)
        assert torch.equal(wanted, found)
        plain = fx.symbolic_trace(lambda a, b: a + b)
        assert tracer.add_enhanced_timing_to_graph(plain)(1, 2) == 3
        off = Dynamo(enable=False)
        assert "dftracer" not in off.add_enhanced_timing_to_graph(fx.symbolic_trace(lambda a: a * 2)).code
        log.finalize()
        """
    )
    events = run.of("dynamo")
    assert [e["name"].split(".")[0] for e in events] == ["function", "function", "method", "function"]
    assert {(e["args"]["model"], e["args"]["epoch"], e["args"]["phase"]) for e in events} == {
        ("net", 2, "forward")
    }
