"""torch without `trace_activities()`: the profiler's event objects give the same trace."""

from __future__ import annotations

import json
from typing import Any

import pytest

BOTH = """
    import json, threading, types
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    from dftracer.python import dftracer
    from dftracer.python.torch import trace_handler

    log = dftracer.initialize_log("both.pfw", None, -1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())

    def beside():
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))

    options = dict(record_shapes=True, profile_memory=True, with_flops=True)
    prof = profile(activities=[ProfilerActivity.CPU], **options)
    prof.start()
    for _ in range(2):
        with record_function("annotated"):
            y = model(torch.randn(4, 8))
            torch.cat([y, y]).sum().backward()
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        prof.step()
    prof.stop()
    results = prof.profiler.kineto_results
    if hasattr(results, "trace_activities"):
        trace_handler(prof)

    class Older:
        events = staticmethod(results.events)
        trace_start_ns = staticmethod(results.trace_start_ns)

    # What the events of torch 2.5 have.
    methods = (
        "name device_index device_resource_id start_ns end_ns duration_ns is_async linked_correlation_id "
        "shapes dtypes concrete_inputs kwinputs device_type start_thread_id end_thread_id correlation_id "
        "fwd_thread_id stack scope sequence_nr flops nbytes is_user_annotation"
    ).split()

    class Event:
        def __init__(self, event):
            self.event = event

    for method in methods:
        setattr(Event, method, lambda self, method=method: getattr(self.event, method)())

    class Oldest(Older):
        events = staticmethod(lambda: [Event(event) for event in results.events()])

    inner = types.SimpleNamespace(kineto_results=Older)
    oldest = types.SimpleNamespace(kineto_results=Oldest)
    trace_handler(types.SimpleNamespace(profiler=inner, with_flops=True))
    trace_handler(types.SimpleNamespace(profiler=oldest, with_flops=True))
    log.finalize()
    print(json.dumps(hasattr(results, "trace_activities")))
"""
# Only Kineto's text has these.
ONLY_NEW = {"addr", "total_allocated", "total_reserved", "forward_thread"}


def comparable(event: dict[str, Any]) -> str:
    """Without times on the trace's clock, which was read anew for each route; `dur_ns` is an arg."""
    args = {key: value for key, value in event["args"].items() if key not in ONLY_NEW}
    return json.dumps([event["name"], event["tid"], args], sort_keys=True)


def test_both_routes_write_the_same_events(run_program: Any) -> None:
    run = run_program(BOTH)
    if not run.result:
        pytest.skip("this torch has the older route only")
    events = run.of("PP")
    third = len(events) // 3
    new, old, oldest = events[:third], events[third : 2 * third], events[2 * third :]
    assert sorted(map(comparable, new)) == sorted(map(comparable, old))
    # Shapes of lists of tensors came later.
    kinds = [(e["name"], e["tid"], e["args"]["type"], e["args"]["dur_ns"]) for e in new]
    assert sorted(kinds) == sorted(
        (e["name"], e["tid"], e["args"]["type"], e["args"]["dur_ns"]) for e in oldest
    )
    sizes = [
        {e["args"]["input_size"] for e in route if e["name"] == "aten::addmm"} for route in (new, oldest)
    ]
    assert sizes[0] == sizes[1]
