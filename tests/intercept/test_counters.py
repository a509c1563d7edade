"""Counters of the process, its host and its GPUs beside the events."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.iotrace import FIXTURES, compile_c
from support.process import Run, clean_environment
from support.trace import Trace, read_directory

DEFAULT: dict[str, str | None] = {"DFTRACER_COUNTER_MS": None}
OFTEN: dict[str, str | None] = {"DFTRACER_COUNTER_MS": "10"}
PROCESS = {"cpu", "memory", "io"}


def _counters(trace: Trace, name: str) -> list[dict[str, Any]]:
    """The samples of one counter, with pid and time, in the order of time."""
    found = [
        {**r.args, "pid": r.pid, "ts": r.ts}
        for f in trace.files
        for r in f.records
        if r.ph == "C" and r.cat == "counter" and r.name == name
    ]
    return sorted(found, key=lambda c: c["ts"])


def _names(trace: Trace) -> set[str]:
    return {r.name for f in trace.files for r in f.records if r.ph == "C"}


def test_once_a_second_by_default(traced: Callable[..., Run]) -> None:
    """Of a program that runs for a few seconds, also while nothing is recorded."""
    run = traced(
        "import time\nwith ai.compute.forward: pass\ntime.sleep(3.2)\nlog.finalize()",
        env=DEFAULT,
    )
    end = run.trace.files[0].end_record.args
    samples = _counters(run.trace, "cpu")
    assert 3 <= len(samples) <= end["life_us"] / 1e6 + 3
    assert _names(run.trace) >= {*PROCESS, "host.cpu", "host.memory"}
    assert end["num_events"] == sum(len(f.records) for f in run.trace.files) - 1


def test_none_if_so_set(traced: Callable[..., Run]) -> None:
    run = traced(
        "import time\nwith ai.compute.forward: pass\ntime.sleep(2)", env={"DFTRACER_COUNTER_MS": "0"}
    )
    assert _names(run.trace) == set()


def test_a_process_that_records_nothing_leaves_no_file(traced: Callable[..., Run]) -> None:
    """Samples are no events: someone else speaks for the host, and samples begin with the first event."""
    silent = traced("import time\nai.disable()\nwith ai.compute.forward: time.sleep(1)", env=OFTEN)
    assert silent.written == []
    late = traced("import time\ntime.sleep(1)\nwith ai.compute.forward: pass\ntime.sleep(1)", env=OFTEN)
    began = late.one("forward").ts
    assert _names(late.trace) >= {*PROCESS, "host.cpu"}
    assert min(c["ts"] for c in _counters(late.trace, "cpu")) >= began


def test_a_short_process_has_its_figures_in_the_end_record(traced: Callable[..., Run]) -> None:
    """What the kernel says at the end; and no samples."""
    run = traced(
        """
        import resource
        with ai.compute.forward:
            block = b"x" * 60_000_000
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, used.ru_nivcsw, used.ru_majflt)
        print(open("/proc/self/schedstat").read())
        """,
        env={"DFTRACER_COUNTER_MS": "3600000"},
    )
    assert _names(run.trace) == set()
    end = run.trace.files[0].end_record.args
    cpu, switched, faults, ran, waited, _ = map(float, run.stdout.split())
    assert cpu * 1e6 <= end["cpu_us"] <= end["life_us"] * 2 + 20_000
    assert end["switched_out"] >= switched
    assert end["major_faults"] >= faults
    assert ran / 1e3 <= end["main_ran_us"] + 1 <= end["life_us"] + 20_000
    assert waited / 1e3 <= end["main_waited_us"] + 1
    assert end["rss_peak"] > 60_000_000
    assert end["read_bytes"] >= 0
    assert end["write_bytes"] >= 0


def test_counters_at_an_interval(traced: Callable[..., Run]) -> None:
    """Memory, CPU and bytes; forked children have their own."""
    run = traced(
        """
        import os, time
        with ai.compute.forward:
            block = b"x" * 50_000_000; time.sleep(0.2)
            if os.fork() == 0:
                with ai.data.item: time.sleep(0.2)
                os._exit(0)
            os.wait()
        log.finalize()
        """,
        env=OFTEN,
    )
    files = run.trace.files
    assert len(files) == 2
    for file in files:
        counters = [r for r in file.records if r.ph == "C"]
        assert {r.name for r in counters} >= PROCESS
        assert all(r.cat == "counter" for r in counters)
    rss = [s["rss"] for s in _counters(run.trace, "memory")]
    assert len(rss) >= 4
    assert max(rss) > 50_000_000


def test_they_are_what_the_kernel_says(traced: Callable[..., Run]) -> None:
    """Between two looks of the program itself: its own CPU time, waiting, threads and bytes."""
    run = traced(
        """
        import json, os, resource, threading, time
        def look():
            ran, waited, _ = map(int, open("/proc/self/schedstat").read().split())
            used = resource.getrusage(resource.RUSAGE_SELF)
            io = dict(line.split(": ") for line in open("/proc/self/io").read().splitlines())
            return {"ts": time.time() * 1e6, "user_us": used.ru_utime * 1e6, "ran_us": ran / 1e3,
                    "waited_us": waited / 1e3, "switched_out": used.ru_nivcsw,
                    "wchar": int(io["wchar"])}
        stop = threading.Event()
        with ai.compute.forward:
            threads = [threading.Thread(target=stop.wait) for _ in range(5)]
            for t in threads: t.start()
            before = look()
            until = time.process_time() + 0.4
            with open("written", "wb") as f:
                while time.process_time() < until: f.write(b"x" * 100_000)
            after = look()
            stop.set()
            for t in threads: t.join()
        log.finalize()
        print(json.dumps([before, after]))
        """,
        env=OFTEN,
    )
    before, after = json.loads(run.stdout)
    cpu, io = _counters(run.trace, "cpu"), _counters(run.trace, "io")
    for samples, keys in ((cpu, ("user_us", "ran_us", "waited_us", "switched_out")), (io, ("wchar",))):
        # Each is read a moment after its time; the last may have been read after the program's second look.
        between = [s for s in samples if before["ts"] < s["ts"] < after["ts"]][:-1]
        assert between
        for sample in between:
            for key in keys:
                assert before[key] - 1 <= sample[key] <= after[key] + 1, key
    # Six, the tracer's own, and perhaps one that is about to end.
    assert max(s["threads"] for s in cpu) in {7, 8}
    assert all(s["threads_waited_us"] >= s["waited_us"] - 2000 for s in cpu)


def test_one_process_of_a_run_writes_what_all_share(traced: Callable[..., Run]) -> None:
    """Of four processes one samples the host; when it ends, another goes on."""
    run = traced(
        """
        import os, time
        with ai.compute.forward: pass
        children = []
        for i in range(3):
            if (pid := os.fork()) == 0:
                with ai.data.item: time.sleep(1.5 if i else 0.6)
                log.finalize()
                os._exit(0)
            children.append(pid)
        for pid in children:  # since Python 3.12 the parent's writer comes back with its next event
            with ai.compute.forward: os.waitpid(pid, 0)
        log.finalize()
        """,
        env={"DFTRACER_COUNTER_MS": "20"},
    )
    assert len(run.trace.files) == 4
    assert len({s["pid"] for s in _counters(run.trace, "cpu")}) == 4
    for name in ("host.cpu", "host.memory", "cgroup"):
        in_turn = [pid for pid, _ in itertools.groupby(s["pid"] for s in _counters(run.trace, name))]
        assert in_turn, name
        assert len(in_turn) == len(set(in_turn)), name


def test_another_process_goes_on_when_the_first_ends(traced: Callable[..., Run]) -> None:
    run = traced(
        """
        import glob, os, time
        def samples():
            files = glob.glob(os.environ["DFTRACER_LOG_FILE"] + "*.pfw")
            return [f for f in files if "host.cpu" in open(f).read()]
        def record_until(files):
            while len(samples()) < files:
                with ai.data.item: time.sleep(0.01)
        child = os.fork()
        if child == 0:
            record_until(1)
            log.finalize()
            os._exit(0)
        os.wait()  # who records nothing samples nothing
        record_until(2)
        log.finalize()
        """,
        env={"DFTRACER_COUNTER_MS": "20", "DFTRACER_TRACE_COMPRESSION": "0"},
    )
    assert len({s["pid"] for s in _counters(run.trace, "host.cpu")}) == 2


def test_under_run(tmp_path: Path) -> None:
    """A program that knows nothing of the tracer has them, too."""
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nfor _ in range(12):\n    open('x', 'w').write('x')\n    time.sleep(0.2)\n"
    )
    subprocess.run(
        [
            sys.executable,
            "-m",
            "dftracer",
            "run",
            "-o",
            str(tmp_path / "traces"),
            "--",
            sys.executable,
            program,
        ],
        cwd=tmp_path,
        env=clean_environment(),
        check=True,
        capture_output=True,
    )
    assert _names(read_directory(tmp_path / "traces")) >= {*PROCESS, "host.cpu"}


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the driver's libraries."""
    place = tmp_path_factory.mktemp("driver")
    source = FIXTURES / "stand_in_nvml.c"
    compile_c(source, place / "libcuda.so.1", "-shared", "-fPIC")
    compile_c(source, place / "libnvidia-ml.so.1", "-shared", "-fPIC", "-DWITH_NVML")
    return place


def test_gpus_of_a_process_with_the_driver(traced: Callable[..., Run], stand_ins: Path) -> None:
    run = traced(
        """
        import ctypes, time
        ctypes.CDLL("libcuda.so.1")
        for _ in range(100):
            with ai.compute.forward: time.sleep(0.3)
            if "libnvidia-ml" in open("/proc/self/maps").read(): break
        time.sleep(0.5)
        log.finalize()
        """,
        env={**OFTEN, "LD_LIBRARY_PATH": str(stand_ins)},
    )
    hot, cool = (_counters(run.trace, name)[0] for name in ("gpu.0", "gpu.1"))
    expected = {
        "utilization": 97,
        "memory_utilization": 40,
        "memory_used": 600,
        "memory_total": 1000,
        "power_mw": 650_000,
        "power_limit_mw": 700_000,
        "sm_mhz": 990,
        "sm_max_mhz": 1980,
        "temperature": 91,
        "throttle": 0x20,
    }
    assert {k: hot[k] for k in expected} == expected
    assert (cool["utilization"], cool["throttle"]) == (12, 1)


def test_nvml_is_not_loaded_without_the_driver(traced: Callable[..., Run], stand_ins: Path) -> None:
    run = traced(
        """
        import time
        with ai.compute.forward: time.sleep(0.3)
        print("nvidia" in open("/proc/self/maps").read())
        log.finalize()
        """,
        env={**OFTEN, "LD_LIBRARY_PATH": str(stand_ins)},
    )
    assert run.stdout.split() == ["False"]
    assert not any(n.startswith("gpu") for n in _names(run.trace))
