"""Device events on a CUDA device: prints one line of JSON: check, true or the error.

Needs no test runner: `python tests/gpu/device_events_program.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

os.environ["DFTRACER_ENABLE"] = "1"
os.environ["DFTRACER_DISABLE_IO"] = "1"
os.environ["DFTRACER_LOG_FILE"] = tempfile.mkdtemp() + "/t"

import torch

from dftracer.python import ai, dftracer
from dftracer.torch import device as _device_events


def train(steps: int, inside: Any = None) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i in ai.dataloader.fetch.iter(range(steps)):
        with ai.device.transfer:
            x = torch.randn(64, 512).cuda()
        with ai.compute.forward:
            loss = model(x).square().mean()
            if inside is not None:
                inside(i)
        with ai.compute.backward:
            loss.backward()
        with ai.compute.step:
            optimizer.step()
            optimizer.zero_grad()


def capture(mode: str = "global") -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(64, 64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = x @ x
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        for _ in range(200):
            y = x @ x
    del y
    return graph


def check_captures_of_this_thread() -> None:
    """Phases inside a capture leave no event in the graph."""
    x = torch.ones(64, 64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        x @ x
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(20):
            with ai.compute.forward:
                x @ x
    graph.replay()
    torch.cuda.synchronize()


def check_captures_beside_training() -> None:
    """Another thread captures in global mode again and again while this one trains."""
    errors: list[str] = []
    stop = threading.Event()
    captured = [0]

    def other() -> None:
        try:
            while not stop.is_set():
                capture("thread_local").replay()
                captured[0] += 1
        except Exception:
            errors.append(traceback.format_exc())

    thread = threading.Thread(target=other)
    thread.start()
    train(30)
    stop.set()
    thread.join()
    assert not errors, errors[0]
    assert captured[0] > 0


def check_questions_wait_for_a_global_capture() -> None:
    """Boundaries reached during a capture in global mode, by another thread, ask and record nothing."""
    errors: list[str] = []
    recorder = _device_events._recorder
    assert recorder is not None
    began, go_on = threading.Event(), threading.Event()

    def other() -> None:
        try:
            x = torch.ones(64, 64, device="cuda")
            stream = torch.cuda.Stream()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
                x + 1
                began.set()
                go_on.wait(20)
                x + 2
            graph.replay()
        except Exception:
            errors.append(traceback.format_exc())
        finally:
            began.set()

    thread = threading.Thread(target=other)
    thread.start()
    began.wait(20)
    for _ in range(50):  # only annotations: other work of this thread would break the capture by itself
        with ai.compute.forward:
            pass
    go_on.set()
    thread.join()
    assert not errors, errors[0]


def check_workers_forked_during_training() -> None:
    """Events exist when the loader forks its workers, in the second epoch at the latest."""
    for _ in range(2):
        loader = torch.utils.data.DataLoader(torch.randn(64, 512), batch_size=8, num_workers=2)
        assert sum(len(batch) for batch in ai.dataloader.fetch.iter(loader)) == 64
        train(3)


def check_phases_are_written() -> None:
    found = events()
    forward = [e for e in found if e["name"] == "forward"]
    assert len(forward) >= 50, len(forward)
    assert {"fetch", "transfer", "forward", "backward", "optimizer", "step"} <= {e["name"] for e in found}
    assert all(e["args"]["lag_us"] >= 0 for e in found)
    assert any("memory_peak" in e["args"] for e in found)
    steps = sum(e["name"] == "step" for e in found)
    assert steps >= 50, steps


def events() -> list[dict[str, Any]]:
    out = []
    for path in Path(os.environ["DFTRACER_LOG_FILE"]).parent.glob("*.pfw.gz"):
        text = gzip.decompress(path.read_bytes()).decode()
        out += [json.loads(line) for line in text.splitlines() if '"cat":"device_time"' in line]
    return out


def check_recording_is_limited() -> None:
    """Steps of a millisecond: most are left out, so that recording keeps to its share."""
    recorder = _device_events._recorder
    assert recorder is not None
    before = recorder._steps
    train(200)
    torch.cuda.synchronize()
    assert recorder._steps - before < 100, recorder._steps - before


def main() -> None:
    log = dftracer.initialize_log(None, None, -1)
    results: dict[str, Any] = {}
    share, _device_events.TIME_BUDGET = _device_events.TIME_BUDGET, 1.0
    train(30)
    torch.cuda.synchronize()

    def run(check: Any) -> None:
        try:
            check()
            results[check.__name__] = True
        except Exception:
            results[check.__name__] = traceback.format_exc()

    run(check_captures_of_this_thread)
    run(check_captures_beside_training)
    run(check_questions_wait_for_a_global_capture)
    run(check_workers_forked_during_training)
    train(30)
    torch.cuda.synchronize()
    _device_events.TIME_BUDGET = share
    run(check_recording_is_limited)
    log.finalize()
    run(check_phases_are_written)
    recorder = _device_events._recorder
    results["never gave up"] = recorder is not None and not recorder._failed
    print(json.dumps(results))


if __name__ == "__main__":
    main()
