"""`trace_handler`: what of a profiler window reaches the trace, and with which numbers."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

WINDOWS = """
    import collections, json, threading
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function, schedule
    from dftracer.python import ai, dftracer
    from dftracer.python.torch import trace_handler

    log = dftracer.initialize_log("windows.pfw", None, -1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    counts = collections.Counter()
    exported = []

    def handler(prof):
        trace_handler(prof)
        path = f"kineto_{len(exported)}.json"
        prof.export_chrome_trace(path)
        exported.append(path)
        prof.key_averages()

    def other_thread():
        with record_function("beside"):
            torch.mm(torch.ones(32, 32), torch.ones(32, 32))

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=handler,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
        with_stack=%(with_stack)s,
    ) as prof:
        for step in range(9):
            with ai.compute.forward:
                with record_function("inside"):
                    out = model(torch.randn(4, 8))
            with record_function("allocates"):
                kept = torch.empty(1000)
            out.sum().backward()
            thread = threading.Thread(target=other_thread)
            thread.start()
            thread.join()
            prof.step()
    log.finalize()

    for path in exported:
        for event in json.load(open(path))["traceEvents"]:
            if event.get("ph") in ("X", "i") and event.get("cat") not in (None, "Trace"):
                counts[event["cat"]] += 1
    print(json.dumps({"windows": len(exported), "counts": counts}))
"""


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with_stack"])
def windows(request: pytest.FixtureRequest, run_program: Any) -> Any:
    return run_program(WINDOWS % {"with_stack": request.param})


def test_every_activity_kineto_exports_is_in_the_trace(windows: Any) -> None:
    ours = Counter(event["args"]["type"] for event in windows.of("PP"))
    assert windows.result["windows"] == 2
    assert ours == windows.result["counts"]


def test_documented_args_are_on_every_event(windows: Any) -> None:
    documented = {
        "device",
        "cpu_memory",
        "is_remote",
        "device_memory_usage",
        "input_size",
        "total_cpu_percent",
        "total_device_percent",
    }
    for event in windows.of("PP"):
        assert documented <= event["args"].keys(), event


def test_input_size_counts_elements_and_input_bytes_bytes(windows: Any) -> None:
    sizes = {
        (event["args"]["input_size"], event["args"]["input_bytes"], event["args"]["shapes"])
        for event in windows.of("PP")
        if event["name"] == "aten::addmm"
    }
    assert (16 + 4 * 8 + 8 * 16, 4 * (16 + 4 * 8 + 8 * 16), "[[16],[4,8],[8,16],[],[]]") in sizes


def test_dtypes_and_flops_come_with_shapes(windows: Any) -> None:
    (args, *_) = [
        event["args"]
        for event in windows.of("PP")
        if event["name"] == "aten::mm" and event["args"]["shapes"] == "[[32,32],[32,32]]"
    ] or [{}]
    if args:
        assert json.loads(args["dtypes"]) == ["float", "float"]
        assert args["flops"] == 2 * 32**3


def test_memory_of_an_operator_includes_what_it_calls(windows: Any) -> None:
    kept = [event for event in windows.of("PP") if event["name"] == "allocates"]
    assert kept
    for event in kept:
        # The previous tensor of the same name is freed within the annotation, except in its first step.
        assert event["args"]["cpu_memory"] in (0, 4000)
    memory = [event for event in windows.of("PP") if event["name"] == "[memory]"]
    assert {event["dur"] for event in memory} == {0}
    assert any(event["args"]["bytes"] == 4000 for event in memory)


def test_percentages_are_parts_of_the_window(windows: Any) -> None:
    steps = [event for event in windows.of("PP") if event["name"].startswith("ProfilerStep#")]
    for pair in (steps[:2], steps[2:]):
        wholes = [100 * event["dur"] / event["args"]["total_cpu_percent"] for event in pair]
        assert wholes[0] == pytest.approx(wholes[1], rel=0.01)
        assert sum(event["dur"] for event in pair) <= 1.001 * wholes[0]
    for event in windows.of("PP"):
        assert 0 <= event["args"]["total_cpu_percent"] <= 100.01
        assert event["args"]["total_device_percent"] == 0


def test_a_record_function_inside_an_annotation_lies_inside_it(windows: Any) -> None:
    blocks = [(e["ts"], e["ts"] + e["dur"]) for e in windows.of("compute") if e["name"] == "forward"]
    inside = [event for event in windows.of("PP") if event["name"] == "inside"]
    assert len(inside) == 4
    for event in inside:
        start, end = event["ts"], event["ts"] + event["dur"]
        assert any(low - 100 <= start and end <= high + 100 for low, high in blocks)


def test_events_lie_on_the_threads_they_ran_on(windows: Any) -> None:
    pid = windows.of("PP")[0]["pid"]
    assert {event["tid"] for event in windows.of("PP") if event["name"] == "inside"} == {pid}
    assert not {event["tid"] for event in windows.of("PP") if event["name"] == "beside"} & {pid}


def test_steps_are_numbered_across_windows(windows: Any) -> None:
    steps = {event["args"].get("step") for event in windows.of("PP") if event["name"] == "inside"}
    assert steps == {2, 3, 6, 7}


def test_durations_keep_their_nanoseconds(windows: Any) -> None:
    operators = [event for event in windows.of("PP") if event["args"]["type"] == "cpu_op"]
    assert all(abs(1000 * event["dur"] - event["args"]["dur_ns"]) < 1000 for event in operators)
    assert any(event["args"]["dur_ns"] % 1000 for event in operators)


def test_backward_operators_share_the_sequence_number_of_their_forward(windows: Any) -> None:
    forward = {
        e["args"]["sequence"]
        for e in windows.of("PP")
        if e["name"] == "aten::addmm" and "sequence" in e["args"]
    }
    backward = {e["args"]["sequence"] for e in windows.of("PP") if e["name"] == "AddmmBackward0"}
    assert backward
    assert backward <= forward


def test_external_ids_are_those_of_kineto_and_distinct_within_a_window(windows: Any) -> None:
    first = [event for event in windows.of("PP") if event["args"].get("step") in (2, 3)]
    ids = [event["args"]["external_id"] for event in first if event["args"]["type"] == "cpu_op"]
    assert ids
    assert len(ids) == len(set(ids))


def test_without_schedule_and_without_finalize_the_window_is_there(run_program: Any) -> None:
    run = run_program("""
        import torch
        from torch.profiler import ProfilerActivity, profile
        from dftracer.python import dftracer
        from dftracer.python.torch import trace_handler
        dftracer.initialize_log("short.pfw", None, -1)
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler):
            torch.ones(4) + 1
    """)
    assert "aten::add" in {event["name"] for event in run.of("PP")}


def test_names_that_are_not_utf8_do_not_cost_the_window(run_program: Any) -> None:
    run = run_program("""
        import json, torch
        from torch.profiler import ProfilerActivity, profile, record_function
        from dftracer.python import dftracer
        from dftracer.python.torch import trace_handler
        log = dftracer.initialize_log("names.pfw", None, -1)
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler):
            with record_function('quote " backslash \\\\ newline \\n umlaut \\u00e4'):
                torch.ones(4) + 1
        log.finalize()
        print(json.dumps('quote " backslash \\\\ newline \\n umlaut \\u00e4'))
    """)
    assert run.result in {event["name"] for event in run.of("PP")}


def test_handler_without_tracing_is_harmless(run_program: Any) -> None:
    run = run_program(
        """
        import torch
        from torch.profiler import ProfilerActivity, profile
        from dftracer.python.torch import trace_handler
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler):
            torch.ones(4) + 1
        """,
        enable=False,
    )
    assert run.records == []
    assert [path.name for path in run.directory.iterdir()] == ["program.py"]


def test_a_forked_worker_writes_its_own_windows(run_program: Any) -> None:
    run = run_program("""
        import os, torch
        from torch.profiler import ProfilerActivity, profile, record_function
        from dftracer.python import dftracer
        from dftracer.python.torch import trace_handler
        log = dftracer.initialize_log("fork.pfw", None, -1)

        def window(name):
            with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler):
                with record_function(name):
                    torch.ones(4) + 1

        window("parent")
        child = os.fork()
        if child == 0:
            window("child")
            dftracer.get_instance().finalize()
            os._exit(0)
        os.waitpid(child, 0)
        window("parent again")
        log.finalize()
    """)
    names = Counter(event["name"] for event in run.of("PP") if event["args"]["type"] == "user_annotation")
    assert names == {"parent": 1, "child": 1, "parent again": 1}
