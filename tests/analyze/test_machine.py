"""What the counters of the machine lead to: figures of the report, and findings that only they can make."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dftracer.analyze import Analysis, analyze
from dftracer.report import document
from dftracer.testing.synthetic import Process
from support.process import clean_environment

MS = 1000
S = 1_000_000
GIB = 1 << 30
MACHINE = {"machine_busy", "gpu_throttled", "swapping", "cache_thrash", "memory_limit"}
QUIET = {"user_us": 0, "system_us": 0, "cpus": 2, "runnable": 1}


def _ids(a: Analysis) -> set[str]:
    return {f.id for f in a.findings}


def _finding(a: Analysis, ident: str) -> Any:
    found = [f for f in a.findings if f.id == ident]
    assert found, f"{ident} is not among {_ids(a)}"
    return found[0]


def _train(
    p: Process, steps: int, backward: int = 60 * MS, slow: tuple[int, ...] = (), slow_by: int = 0
) -> int:
    """100 ms a step: 10 waiting, 20 forward, 60 backward, 10 optimizer; some take longer in backward."""
    t = 0
    for i in range(steps):
        longer = slow_by if i in slow else 0
        body = 90 * MS + longer
        p.step(i + 1, t, 10 * MS, body, step=i)
        p.span("compute", "forward", t + 10 * MS, 20 * MS, step=i)
        p.span("compute", "backward", t + 30 * MS, backward + longer, step=i)
        p.span("compute", "step", t + 90 * MS + longer, 10 * MS, step=i)
        t += 10 * MS + body
    return t


def _cpu(p: Process, at: int, ran: int, waited: int) -> None:
    p.counter("cpu", at, user_us=ran, system_us=0, ran_us=ran, waited_us=waited, switched_out=0, threads=2)


def test_a_busy_machine(tmp_path: Path) -> None:
    """31 % of the time without a CPU, which others had."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        _cpu(p, t, int(0.6 * t), int(0.31 * t))
        p.counter("host.cpu", t, user_us=int(1.9 * t), system_us=int(0.1 * t), cpus=2, runnable=9)
    p.write(tmp_path)
    a = analyze(tmp_path)
    f = _finding(a, "machine_busy")
    assert f.title == (
        "The machine was busy with something else: the program waited 31 % of the time for a CPU"
        " (2 cores, 9 runnable)."
    )
    assert f.evidence["cause"] == "others"
    assert f.seconds == pytest.approx(3.1, rel=0.01)
    assert a.head[1:] == (f.title, f.advice)
    assert f.evidence["other_cpu_s"] == pytest.approx(14, rel=0.01)
    machine = document(a)["machine"]
    assert machine["cpu_share"] == pytest.approx(0.6, rel=0.01)
    assert machine["waited_for_cpu_share"] == pytest.approx(0.31, rel=0.01)
    assert machine["waited_for_cpu_in_steps_share"] == pytest.approx(0.31, rel=0.01)


def test_too_much_of_its_own(tmp_path: Path) -> None:
    """The same waiting, while the program's own threads had the CPUs."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        p.counter("cpu", t, user_us=int(1.95 * t), system_us=0, ran_us=int(0.6 * t), waited_us=int(0.31 * t))
        p.counter("host.cpu", t, user_us=2 * t, system_us=0, cpus=2, runnable=9)
    p.write(tmp_path)
    f = _finding(analyze(tmp_path), "machine_busy")
    assert f.evidence["cause"] == "own"
    assert "more threads to run than CPUs" in f.title
    assert "OMP_NUM_THREADS" in f.advice


def test_a_limit_of_the_cpu(tmp_path: Path) -> None:
    """The group may use half a CPU, and is stopped for the rest."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        _cpu(p, t, t // 2, int(0.45 * t))
        p.counter("host.cpu", t, **{**QUIET, "user_us": t // 2})
        p.counter("cgroup", t, cpu_limit_milli=500, throttled_us=int(0.45 * t))
    p.write(tmp_path)
    f = _finding(analyze(tmp_path), "machine_busy")
    assert f.evidence["cause"] == "cpu_limit"
    assert "0.5 CPUs" in f.title


def test_workers_without_a_cpu(tmp_path: Path) -> None:
    """The training waits for data while the loader's workers wait for a CPU."""
    p, w = Process(10, rank=0), Process(11, ppid=10)
    t = 0
    for i in range(50):
        p.step(i + 1, t, 150 * MS, 50 * MS, step=i)
        p.span("compute", "forward", t + 150 * MS, 50 * MS, step=i)
        w.span("data", "item", t, 150 * MS, image_idx=i)
        t += 200 * MS
    for at in range(0, t + 1, S):
        _cpu(p, at, at // 4, 0)
        _cpu(w, at, int(0.3 * at), int(0.6 * at))
        p.counter("host.cpu", at, user_us=2 * at, system_us=0, cpus=2, runnable=5)
    p.write(tmp_path)
    w.write(tmp_path)
    f = _finding(analyze(tmp_path), "machine_busy")
    assert f.evidence["cause"] == "others"
    assert f.evidence["waited_by_workers_s"] == pytest.approx(0.6 * 7.5, rel=0.01)


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_items_that_waited_for_a_cpu_are_not_slow_by_themselves(tmp_path: Path, share: float) -> None:
    """Every 25th item of the main thread takes 61 ms, the others 1 ms; most of that, or less, it waited for a CPU."""
    p = Process(10, rank=0)
    t = waited = 0
    at = [(0, 0)]
    for i in range(200):
        dur = 61 * MS if i % 25 == 24 else MS
        p.span("data", "item", t + 1, dur, image_idx=i)
        waited += int(share * (dur - MS))
        t = p.step(i + 1, t, dur + 100, 200, step=i)
        p.span("compute", "forward", t - 200, 200)
        at.append((t, waited))
    for end, waits in at[:: len(at) // 10]:
        _cpu(p, end, end - waits, waits)
        p.counter("host.cpu", end, user_us=2 * end, system_us=0, cpus=2, runnable=5)
    p.write(tmp_path)
    a = analyze(tmp_path)
    busy = _finding(a, "machine_busy")
    assert ("slow_items" in {f.id for f in busy.symptoms}) == (share == 0.9)
    assert "input_bound" in {f.id for f in a.findings.every()}


def _outliers(tmp_path: Path, waited_by_slow: int) -> Analysis:
    """Two of a hundred steps take 0.5 s longer; how long did each wait for a CPU?"""
    p = Process(10, rank=0)
    slow = (20, 80)
    _train(p, 100, slow=slow, slow_by=500 * MS)
    at = [s.start for s in p.spans if s.name == "fetch.block" and s.dur > 500 * MS]
    end = max(s.end for s in p.spans)
    for t in range(0, end + S, S):
        waited = sum(waited_by_slow for start in at if start + 600 * MS <= t)
        _cpu(p, t, t // 2, waited)
        p.counter("host.cpu", t, user_us=t, system_us=0, cpus=2, runnable=3)
    p.write(tmp_path)
    return analyze(tmp_path)


def test_outliers_that_scheduling_explains_are_no_slow_steps(tmp_path: Path) -> None:
    """Not 10 % of the time, but the slow steps are slow because of it."""
    a = _outliers(tmp_path, 450 * MS)
    f = _finding(a, "machine_busy")
    assert f.evidence["slow_steps"] == 2
    assert [s.id for s in f.symptoms] == ["slow_steps"]
    assert f.seconds == pytest.approx(1.0, rel=0.02)
    assert "2 steps took several times as long" in f.title
    assert "slow_steps" not in _ids(a)
    assert "slow" not in a.verdict


def test_outliers_of_the_program_itself_stay(tmp_path: Path) -> None:
    a = _outliers(tmp_path, 30 * MS)
    assert "slow_steps" in _ids(a)
    assert "machine_busy" not in _ids(a)


def test_steps_that_sleep_on_a_busy_machine_stay(tmp_path: Path) -> None:
    """Waiting for a CPU all the time does not explain steps that did not want one."""
    p = Process(10, rank=0)
    end = _train(p, 100, slow=(7, 31, 58, 83), slow_by=900 * MS)
    for t in range(0, end + S, S):
        slept = sum(900 * MS for s in p.spans if s.name == "fetch.block" and s.dur > 500 * MS and s.end <= t)
        _cpu(p, t, (t - slept) // 2, (t - slept) // 2)
        p.counter("host.cpu", t, user_us=2 * t, system_us=0, cpus=2, runnable=5)
    p.write(tmp_path)
    a = analyze(tmp_path)
    assert {"slow_steps", "machine_busy"} <= _ids(a)


def test_a_rank_on_a_busy_node(tmp_path: Path) -> None:
    """Rank 1 is late because its node has no CPU for it; if it is late by itself, that stays."""
    for name, waited in (("busy", 0.45), ("own", 0.25)):
        folder = tmp_path / name
        folder.mkdir()
        for rank in (0, 1):
            p = Process(10 + rank, rank=rank, world_size=2, host=f"node{rank}")
            t = 0
            for i in range(50):
                work = 180 * MS if rank else 90 * MS
                p.step(i + 1, t, 10 * MS, 190 * MS, step=i)
                p.span("compute", "forward", t + 10 * MS, work, step=i)
                p.span("comm", "all_reduce", t + 10 * MS + work, 190 * MS - work, step=i)
                t += 200 * MS
            for at in range(0, t + 1, S):
                share = waited if rank else 0.0 if name == "busy" else 0.25
                _cpu(p, at, at // 2, int(share * at))
                p.counter("host.cpu", at, user_us=2 * at, system_us=0, cpus=2, runnable=5)
            p.write(folder)
        a = analyze(folder)
        assert ("straggler_rank" in _ids(a)) == (name == "own")
        if name == "busy":
            assert [s.id for s in _finding(a, "machine_busy").symptoms] == ["straggler_rank"]


@pytest.mark.parametrize("what", ["checkpoint", "own_code"])
def test_a_rank_that_does_what_no_other_does_is_late_by_that(tmp_path: Path, what: str) -> None:
    """It waits longer for a CPU than the others because it has more to run; and it is one finding."""
    for rank in (0, 1):
        p = Process(10 + rank, rank=rank, world_size=2)
        t = 0
        for i in range(50):
            work = 190 * MS if rank else 60 * MS
            p.step(i + 1, t, 10 * MS, 190 * MS + 10 * MS, step=i, auto=1)
            p.span("compute", "forward", t + 10 * MS, 60 * MS, step=i, auto=1)
            if rank and what == "checkpoint":
                p.span("checkpoint", "save", t + 70 * MS, 130 * MS, step=i, auto=1)
            p.span("comm", "all_reduce", t + 10 * MS + work, 200 * MS - work, step=i, auto=1)
            t += 210 * MS
        for at in range(0, t + 1, S):
            _cpu(p, at, at // 2, int((0.45 if rank else 0.05) * at))
            p.counter("host.cpu", at, user_us=2 * at, system_us=0, cpus=2, runnable=5)
        p.write(tmp_path)
    a = analyze(tmp_path)
    late = _finding(a, "straggler_rank")
    assert late.evidence["stage"] == what
    assert _finding(a, "machine_busy").symptoms == []
    assert [s.id for s in late.symptoms] == ["checkpoint_stall" if what == "checkpoint" else "own_code"]
    assert "Only this rank" in a.head[2]


def test_a_quiet_run_has_none(tmp_path: Path) -> None:
    """Some waiting, a hot cache, a cool GPU, memory to spare."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        _cpu(p, t, int(0.9 * t), int(0.02 * t))
        p.counter("host.cpu", t, user_us=t, system_us=0, cpus=2, runnable=1)
        p.counter("host.memory", t, total=16 * GIB, swapped_in=0, swapped_out=0, cache_refaults=0)
        p.counter("cgroup", t, memory_limit=4 * GIB, anonymous=GIB, limit_hits=t // S, oom_kills=0)
        p.counter("gpu.0", t, utilization=90, throttle=0x4, sm_mhz=1900, sm_max_mhz=1980, power_mw=690_000)
    p.write(tmp_path)
    assert not _ids(analyze(tmp_path)) & MACHINE


def test_gpus(tmp_path: Path) -> None:
    """One is too hot a third of the time; the other is idle, which is not throttling."""
    p = Process(10, rank=0)
    end = _train(p, 90)
    for n, t in enumerate(range(0, end + 1, S)):
        hot = n % 3 == 0
        p.counter(
            "gpu.0",
            t,
            utilization=80,
            power_mw=400_000,
            throttle=0x20 if hot else 0,
            sm_mhz=990 if hot else 1980,
            sm_max_mhz=1980,
            temperature=91 if hot else 70,
        )
        p.counter("gpu.1", t, utilization=0, power_mw=70_000, throttle=0x1, sm_mhz=345, sm_max_mhz=1980)
    p.write(tmp_path)
    a = analyze(tmp_path)
    f = _finding(a, "gpu_throttled")
    assert f.evidence["device"] == 0
    assert f.evidence["reasons"] == "temperature"
    assert f.evidence["throttled_share"] == pytest.approx(0.4, abs=0.07)
    assert f.title.endswith("(temperature): 990 of 1980 MHz, 91 °C, 400 W.")
    assert f.seconds == pytest.approx(9 * f.evidence["throttled_share"] / 2, rel=0.01)
    first, second = document(a)["machine"]["gpu"]
    assert (first["utilization"], first["power_w"]) == (0.8, 400.0)
    assert second["throttled_share"] == 0


def test_a_power_limit_counts_if_it_costs_clocks(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    end = _train(p, 50)
    for t in range(0, end + 1, S):
        p.counter("gpu.0", t, utilization=99, throttle=0x4, sm_mhz=1200, sm_max_mhz=1980)
    p.write(tmp_path)
    f = _finding(analyze(tmp_path), "gpu_throttled")
    assert f.evidence["reasons"] == "power limit"


def test_swapping(tmp_path: Path) -> None:
    """5 MiB come back every second, and the program waits for them."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        p.counter("memory", t, rss=GIB, major_faults=t // 1000)
        p.counter("host.memory", t, total=GIB, swapped_in=5 * (t << 20) // S, swapped_out=t)
        p.counter("host.pressure", t, memory_some_us=int(0.25 * t))
    p.write(tmp_path)
    f = _finding(analyze(tmp_path), "swapping")
    assert f.seconds == pytest.approx(2.5, rel=0.01)
    assert f.evidence["major_faults"] == pytest.approx(10_000, rel=0.01)


def test_somebody_else_swaps(tmp_path: Path) -> None:
    """The host does, but this program waits for no page."""
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        p.counter("memory", t, rss=GIB, major_faults=7)
        p.counter("host.memory", t, total=GIB, swapped_in=5 * (t << 20) // S, swapped_out=t)
    p.write(tmp_path)
    assert "swapping" not in _ids(analyze(tmp_path))


def _epochs(p: Process, epochs: int, read_from_disk: int, evicted: int) -> None:
    """10 steps an epoch of 1 s each, half of it reading; bytes per epoch from the disk after the first."""
    t = 0
    for epoch in range(epochs):
        for i in range(10):
            n = 10 * epoch + i
            p.step(n + 1, t, 500 * MS, 500 * MS, step=n, epoch=epoch)
            p.io("read", t + 50 * MS, 400 * MS, "/data/x", ret=30 << 20)
            p.span("compute", "forward", t + 500 * MS, 500 * MS)
            t += S
    for at in range(0, t + 1, S):
        later = max(0, at - 10 * S) / (10 * S)
        p.counter(
            "io",
            at,
            rchar=0,
            wchar=0,
            read_bytes=int(300e6 * min(at, 10 * S) / (10 * S) + read_from_disk * later),
        )
        p.counter(
            "host.memory",
            at,
            total=16 * GIB,
            swapped_in=0,
            swapped_out=0,
            cache_refaults=int(evicted * later),
        )
        p.counter("cgroup", at, memory_limit=128 << 20, anonymous=10 << 20, limit_hits=at // S)


def test_a_data_set_that_does_not_fit(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    _epochs(p, 3, int(300e6), int(290e6))
    p.write(tmp_path)
    a = analyze(tmp_path)
    f = _finding(a, "cache_thrash")
    assert f.evidence["read_again_per_epoch_bytes"] == pytest.approx(300e6, rel=0.01)
    assert "limited to 128.0 MiB" in f.title
    assert f.seconds == pytest.approx(20 * 0.4, rel=0.01)
    assert document(a)["machine"]["read_bytes"] == pytest.approx(900e6, rel=0.01)
    assert "memory_limit" not in _ids(a)  # the page cache fills every limit; that is not a lack of memory


@pytest.mark.parametrize(("read", "evicted"), [(0, 0), (int(300e6), 0)])
def test_cached_or_new_data_is_no_thrashing(tmp_path: Path, read: int, evicted: int) -> None:
    """From the cache; or from the disk, but other data each time."""
    p = Process(10, rank=0)
    _epochs(p, 3, read, evicted)
    p.write(tmp_path)
    assert "cache_thrash" not in _ids(analyze(tmp_path))


@pytest.mark.parametrize(
    ("used", "killed", "words"), [(0.95, 0, "needs 95 %"), (0.5, 2, "2 processes were killed")]
)
def test_a_memory_limit(tmp_path: Path, used: float, killed: int, words: str) -> None:
    p = Process(10, rank=0)
    end = _train(p, 100)
    for t in range(0, end + 1, S):
        kills = killed if t > end // 2 else 0
        p.counter("cgroup", t, memory_limit=GIB, anonymous=int(used * GIB), limit_hits=9, oom_kills=kills)
    p.write(tmp_path)
    f = _finding(analyze(tmp_path), "memory_limit")
    assert words in f.title
    assert f.severity == ("high" if killed else "medium")


def test_what_could_not_be_read_is_said(tmp_path: Path) -> None:
    """No /proc: no figures instead of zeros."""
    p = Process(10, rank=0, end={"counters_missing": "proc schedstat io pressure cgroup"})
    end = _train(p, 50)
    for t in range(0, end + 1, S):
        p.counter("cpu", t, user_us=t, system_us=0, switched_out=1)
    p.write(tmp_path)
    machine = document(analyze(tmp_path))["machine"]
    for key in ("cpu_share", "waited_for_cpu_share", "rss_peak_bytes", "read_bytes", "written_bytes"):
        assert machine[key] is None
    assert "waiting for a CPU (/proc/self/schedstat)" in machine["missing"]


def test_a_short_process_is_known_by_its_end_record(tmp_path: Path) -> None:
    facts = {
        "life_us": 800_000,
        "cpu_us": 700_000,
        "main_ran_us": 400_000,
        "main_waited_us": 80_000,
        "rss_peak": 123,
        "read_bytes": 4096,
        "write_bytes": 8192,
    }
    p = Process(10, end=facts)
    _train(p, 5)
    p.write(tmp_path)
    machine = document(analyze(tmp_path))["machine"]
    assert machine["cpu_share"] == 0.5
    assert machine["waited_for_cpu_share"] == 0.1
    assert (machine["rss_peak_bytes"], machine["read_bytes"], machine["written_bytes"]) == (123, 4096, 8192)


# Real runs.

_PROGRAM = """
import sys, time, zlib
from dftracer.python import ai, dftracer
log = dftracer.initialize_log({log!r}, None, -1)
block = bytes(range(256)) * 400
def batches():
    until = time.process_time() + {cpu_s}
    while time.process_time() < until: yield 0
for _ in ai.dataloader.fetch.iter(batches()):
    with ai.compute.forward:
        for _ in range(8): zlib.compress(block, 6)
print(open("/proc/self/schedstat").read())
log.finalize()
"""


def _run(tmp_path: Path, program: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    settings: dict[str, str | None] = {"DFTRACER_ENABLE": "1", "DFTRACER_COUNTER_MS": "100", **env}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def _looping(tmp_path: Path, cpu_s: float, **env: str | None) -> tuple[Analysis, float]:
    """A program that computes, and the seconds that it waited for a CPU according to the kernel."""
    done = _run(tmp_path, _PROGRAM.format(log=str(tmp_path / "t.pfw"), cpu_s=cpu_s), **env)
    return analyze(tmp_path), int(done.stdout.split()[1]) / 1e9


def test_beside_busy_loops(tmp_path: Path) -> None:
    """Two loops for every core run beside it."""
    cores = len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * cores)]
    try:
        a, waited_s = _looping(tmp_path, 2.0)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    f = _finding(a, "machine_busy")
    assert f.evidence["cause"] == "others"
    assert f.title.startswith("The machine was busy with something else: the program waited ")
    assert f"({cores} cores, " in f.title
    assert MACHINE & _ids(a) == {"machine_busy"}
    # The kernel's own figure includes the start of the interpreter.
    assert 0.5 * waited_s < f.evidence["waited_s"] <= waited_s
    assert "slow_steps" not in _ids(a)


@pytest.mark.alone
def test_alone(tmp_path: Path) -> None:
    """A run that waited little, as the kernel itself says, is not told that it did."""
    a, waited_s = _looping(tmp_path, 1.0)
    if waited_s > 0.05 * a.run_s:
        pytest.skip(
            f"the machine is busy: this run itself waited {waited_s:.2f} of {a.run_s:.2f} s for a CPU"
        )
    assert not MACHINE & _ids(a)


@contextmanager
def _cgroup(controller: str, **limits: str) -> Iterator[Path]:
    """A control group (v1) of our own with limits; a test that may not make one is skipped."""
    top = Path("/sys/fs/cgroup") / controller
    place = top / f"dftracer-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"needs a writable cgroup v1: {error}")
    try:
        for name, value in limits.items():
            (place / name.replace("__", ".")).write_text(value)
        yield place
    finally:
        place.rmdir()


def _inside(group: Path, tmp_path: Path, program: str, **env: str | None) -> subprocess.CompletedProcess[str]:
    enter = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    return _run(tmp_path, enter + program, **env)


def test_a_cpu_limit_of_a_control_group(tmp_path: Path) -> None:
    """A tenth of a CPU, and precedence over whatever else runs here: the limit alone stops the program."""
    limits = {"cpu__cfs_period_us": "20000", "cpu__cfs_quota_us": "2000", "cpu__shares": "200000"}
    with _cgroup("cpu", **limits) as group:
        _inside(group, tmp_path, _PROGRAM.format(log=str(tmp_path / "t.pfw"), cpu_s=0.4))
    f = _finding(analyze(tmp_path), "machine_busy")
    assert f.evidence["cause"] == "cpu_limit"
    assert f.evidence["cpu_limit"] == 0.1
    assert f.evidence["throttled_s"] > 0.5 * f.evidence["waited_s"]


_READER = """
from dftracer.python import ai, dftracer
log = dftracer.initialize_log({log!r}, None, -1)
def batches():
    with open({data!r}, "rb", buffering=0) as f:
        for part in range(10):
            left = {part}
            while left > 0: left -= len(f.read(min(left, 1 << 20)))
            yield part
for epoch in range(3):
    for _ in ai.dataloader.fetch.iter(batches()):
        with ai.compute.forward: sum(range(20000))
log.finalize()
"""


@pytest.mark.parametrize(("limit_mb", "thrashes"), [(48, True), (400, False)])
def test_a_data_set_larger_than_the_memory_limit(tmp_path: Path, limit_mb: int, thrashes: bool) -> None:
    """160 MB, read three times, with less and with more memory than that."""
    data, size = tmp_path / "data", 160 << 20
    with data.open("wb") as f:
        for _ in range(size >> 20):
            f.write(os.urandom(1 << 20))
        f.flush()
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    program = _READER.format(log=str(tmp_path / "traces" / "t.pfw"), data=str(data), part=size // 10)
    (tmp_path / "traces").mkdir()
    with _cgroup("memory", memory__limit_in_bytes=str(limit_mb << 20)) as group:
        _inside(group, tmp_path, program, DFTRACER_COUNTER_MS="20")
    a = analyze(tmp_path / "traces")
    assert ("cache_thrash" in _ids(a)) == thrashes
    if thrashes:
        f = _finding(a, "cache_thrash")
        assert f.evidence["read_again_per_epoch_bytes"] > 0.5 * size
        assert f.evidence["memory_bytes"] == limit_mb << 20
        assert f.seconds > 0


def test_close_to_a_memory_limit(tmp_path: Path) -> None:
    """Memory that the program itself needs, not the page cache."""
    program = """
import time
from dftracer.python import ai, dftracer
log = dftracer.initialize_log({log!r}, None, -1)
for step in ai.dataloader.fetch.iter(range(20)):
    with ai.compute.forward:
        if step == 5: block = b"x" * (90 << 20)
        time.sleep(0.01)
log.finalize()
"""
    with _cgroup("memory", memory__limit_in_bytes=str(100 << 20)) as group:
        _inside(group, tmp_path, program.format(log=str(tmp_path / "t.pfw")), DFTRACER_COUNTER_MS="20")
    f = _finding(analyze(tmp_path), "memory_limit")
    assert f.evidence["limit_bytes"] == 100 << 20
    assert f.evidence["used_bytes"] > 90 << 20
