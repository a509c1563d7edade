"""Some fifty ways for a job to go wrong, each with a known culprit, class and line."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dftracer.cli.main import main
from postmortem.jobs import ANNOTATED, ODD, PROGRAM, RANKS, Job, line_of
from support.process import clean_environment

pytest.importorskip("torch")


class Expected(NamedTuple):
    kind: str
    rank: int | None
    hangs: bool = True  # until somebody ends it; else it dies by itself
    others: int = 2  # hang files to wait for


CASES = {
    "skipped": Expected("missing_rank", 1),
    "order": Expected("order_mismatch", 1),
    "sigstop": Expected("stopped", 1),
    "sigkill": Expected("killed", 1, hangs=False),
    "worker_killed": Expected("worker", 1, hangs=False),
    "worker_fifo": Expected("worker", 1),
    "read": Expected("missing_rank", 1),
    "deadlock": Expected("lock", 1),
    "loop": Expected("missing_rank", 1),
    "gil": Expected("gil", 1),
    "checkpoint": Expected("missing_rank", 0),
    "exception": Expected("exception", 1, hangs=False),
    "os_exit": Expected("early_exit", 1, hangs=False),
    "memory": Expected("memory", 1, hangs=False),
    "fewer_batches": Expected("early_exit", 1, hangs=False),
    "barrier": Expected("missing_rank", 1),
    "evaluation": Expected("missing_rank", 0),
    "startup": Expected("startup", 1),
    "at_exit": Expected("lock", 1, others=0),
    "all_stopped": Expected("stopped", None),
    "crash": Expected("signal", 1, hangs=False),
    "network": Expected("same_collective", None),
}
# Of `odd_job.py`. Where none is told, the line is that of the mark.
ODD_CASES = {
    "worker_raises": Expected("exception", 1, hangs=False),
    "worker_key": Expected("exception", 1, hangs=False),
    "worker_memory": Expected("memory", 1, hangs=False),
    "worker_exits": Expected("worker", 1, hangs=False),
    "worker_stopped": Expected("worker", 1),
    "worker_loop": Expected("worker", 1),
    "hook": Expected("exception", 1, hangs=False),
    "nan": Expected("exception", 1, hangs=False),
    "recursion": Expected("exception", 1, hangs=False),
    "device_memory": Expected("memory", 1, hangs=False),
    "exit_0": Expected("early_exit", 1, hangs=False),
    "exit_text": Expected("early_exit", 1, hangs=False),
    "sigterm": Expected("killed", 1, hangs=False),
    "abort": Expected("signal", 1, hangs=False),
    "interrupted": Expected("killed", None, hangs=False),
    "terminated": Expected("killed", None, hangs=False),
    "late": Expected("missing_rank", 1, hangs=False),
    "receive": Expected("missing_rank", 1),
    "connect": Expected("missing_rank", 1),
    "child": Expected("missing_rank", 1),
    "save_fifo": Expected("missing_rank", 0),
    "cleanup": Expected("missing_rank", 1),
    "other_group": Expected("missing_rank", 1),
    "restarted": Expected("missing_rank", 1),
    "flock": Expected("lock", 1),
    "join": Expected("lock", 1),
    "queue": Expected("lock", 1),
    "optimizer_lock": Expected("lock", 1),
    "thread_gil": Expected("gil", 1),
    "two_groups": Expected("order_mismatch", None),
    "receive_of_a_rank": Expected("order_mismatch", 1),
}
SENTENCES = {
    "worker_raises": "ValueError: this label is odd (in DataLoader worker process 0)",
    "worker_key": "KeyError: 'label' (in DataLoader worker process 0)",
    "interrupted": "its launcher got SIGINT",
    "terminated": "its launcher got SIGTERM",
    "save_fifo": "pipe` since",
    "flock": "waiting for the lock of `",
    "receive_of_a_rank": "rank 1 is in recv",
    "cleanup": "It is cleaning up after ValueError at odd_job.py:",
}
QUICK = ("read", "worker_raises")

Begin = Callable[..., Job]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    jobs: list[Job] = []

    def start(case: str, **options: Any) -> Job:
        jobs.append(Job(tmp_path, case, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.end()


def _expected(case: str) -> Expected:
    return CASES[case] if case in CASES else ODD_CASES[case]


def _went_wrong(job: Job, case: str) -> bool:
    expected = _expected(case)
    if not expected.hangs:
        return job.over
    assert not job.over, job.log[-3000:]
    if case == "all_stopped":
        return list(job.states().values()) == ["T"] * RANKS
    if case == "at_exit":
        return expected.rank in job.hang_files()
    if case == "sigstop":
        return len(job.hang_files()) == RANKS - 1
    return len(job.hang_files()) == RANKS


def _check(answer: dict[str, Any], case: str) -> None:
    expected = _expected(case)
    assert (answer["class"], answer["rank"]) == (expected.kind, expected.rank), answer["sentence"]
    line = line_of(case, PROGRAM if case in CASES else ODD)
    if line is not None and expected.rank is not None and case != "sigkill":
        where = answer["ranks"][expected.rank]["where"]
        assert where is not None, answer["sentence"]
        assert f":{line}" in where, answer["sentence"]


def _each(cases: Iterable[str]) -> list[Any]:
    return [
        pytest.param(case, id=case, marks=() if case in QUICK else (pytest.mark.thorough,)) for case in cases
    ]


def _signal(job: Job, number: int) -> None:
    """To the launcher, once the ranks train; of Ctrl-C, the ranks of a terminal's job get it as well."""
    job.wait(lambda: len(list(job.traces.glob("*.rows"))) == RANKS, "it does not train")
    os.kill(job.process.pid, number)  # `-q`: the command has become the launcher


@pytest.mark.parametrize("case", _each(ODD_CASES))
def test_odd_case(begin: Begin, case: str) -> None:
    job = begin(case, program=ODD, restarts=int(case == "restarted"))
    if case in ("interrupted", "terminated"):
        _signal(job, signal.SIGINT if case == "interrupted" else signal.SIGTERM)
    job.wait(lambda: _went_wrong(job, case), "it did not go wrong")
    code, answer = job.judged()
    assert code == 1
    assert SENTENCES.get(case, "") in answer["sentence"]
    _check(answer, case)
    assert answer["restarts"] == int(case == "restarted")
    if _expected(case).hangs:
        job.end()
        _check(job.judged()[1], case)


@pytest.mark.thorough
def test_a_rank_that_is_slow_but_moves(begin: Begin) -> None:
    job = begin("one_slow", program=ODD)
    job.wait(lambda: len(list(job.traces.glob("*.rows"))) == RANKS, "it does not train")
    code, answer = job.judged()
    assert (code, answer["class"], answer["rank"]) == (0, "running", None), answer["sentence"]
    job.wait(lambda: job.over, "it does not end")
    code, answer = job.judged()
    assert (code, answer["class"]) == (0, "ended"), answer["sentence"]
    assert job.hang_files() == set()


@pytest.mark.parametrize("case", _each(CASES))
def test_case(begin: Begin, case: str) -> None:
    job = begin(case)
    job.wait(lambda: _went_wrong(job, case), "it did not go wrong")
    code, answer = job.judged()
    assert code == 1
    assert set(answer) >= {"class", "rank", "ranks", "first", "missing_ranks", "sentence"}
    _check(answer, case)
    if _expected(case).hangs and case not in ("all_stopped", "sigstop"):
        # The same after it was killed, from what is left.
        job.end()
        _check(job.judged()[1], case)


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["read", "exception"])
def test_with_the_files_of_one_rank_removed(begin: Begin, case: str) -> None:
    job = begin(case)
    job.wait(lambda: _went_wrong(job, case), "it did not go wrong")
    pids = {row["rank"]: row["pid"] for row in job.judged()[1]["ranks"]}
    job.end()
    job.judged()  # what was still in rings is in files now
    for path in job.traces.glob("*.pfw.gz"):
        with gzip.open(path, "rt") as file:
            head = file.read(2000)
        if f'"pid":{pids[1]},' in head:
            path.unlink()
    (job.traces / "hang_1.json").unlink(missing_ok=True)
    _, answer = job.judged()
    assert answer["missing_ranks"] == [1]
    assert any("rank 1" in text for text in answer["more"])


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["read", "deadlock", "loop", "sigstop"])
def test_without_the_watch(begin: Begin, case: str) -> None:
    """What the traces and the kernel say is enough while the job hangs."""
    job = begin(case, hang_s=0)
    job.wait(lambda: list(job.traces.glob("*.pfw.gz")) != [], "it did not start")
    job.wait(lambda: len(job.states()) >= RANKS, "it did not start")
    job.wait(lambda: job.judged()[1].get("class") not in (None, "running", "startup"), "it moves")
    code, answer = job.judged()
    assert code == 1, answer
    _check(answer, case)


HEALTHY_S = os.environ.get("DFTRACER_TEST_HEALTHY_S", "3600")


@pytest.mark.thorough
@pytest.mark.timeout(int(HEALTHY_S) + 600)
def test_no_alarm_in_a_job_that_is_well(tmp_path: Path) -> None:
    """An hour (DFTRACER_TEST_HEALTHY_S) of steps, evaluations, checkpoints and compilations."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dftracer.cli", "run", "-q", "-o", str(tmp_path / "traces"), "--"),
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"),
            *(str(PROGRAM.with_name("healthy_job.py")), HEALTHY_S),
        ],
        cwd=tmp_path,
        env=clean_environment(OMP_NUM_THREADS="1", DFTRACER_HANG_S="5"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "no progress for" not in done.stderr
    assert list((tmp_path / "traces").glob("hang_*")) == []
    code = main(["postmortem", str(tmp_path / "traces"), "-q"])
    assert code == 0


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group that may have 3 GiB, where this user may make one."""
    first = Path("/sys/fs/cgroup/memory")
    limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    if not first.is_dir():
        first, limits = Path("/sys/fs/cgroup"), ("memory.max", "memory.swap.max")
    place = first / f"dftracer-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        try:
            (place / limits[0]).write_text(str(3 << 30))
            with contextlib.suppress(OSError):  # a kernel that does not count swap
                (place / limits[1]).write_text("0" if limits[1] == "memory.swap.max" else str(3 << 30))
        except OSError:
            pytest.skip("no limit can be set here")
        yield place
    finally:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                place.rmdir()
                break
            except OSError:  # its processes are ending
                time.sleep(0.1)


@pytest.mark.thorough
def test_the_kernel_kills_for_want_of_memory(little_memory: Path, begin: Begin) -> None:
    job = begin("cgroup", cgroup=little_memory)
    job.wait(lambda: job.over, "it is not killed")
    code, answer = job.judged()
    assert code == 1
    assert (answer["class"], answer["rank"]) == ("memory", 1), answer["sentence"]


def test_a_rank_that_is_annotated_by_hand_stops(begin: Begin) -> None:
    job = begin("hangs", hang_s=3, program=ANNOTATED)
    job.wait(lambda: job.hang_files() == {0, 1}, "nobody noticed")
    code, answer = job.judged()
    assert code == 1
    assert (answer["class"], answer["rank"]) == ("missing_rank", 1), answer["sentence"]
    late, waits = answer["ranks"][1], answer["ranks"][0]
    assert f":{line_of('hangs', ANNOTATED)} load_shard" in late["where"]
    assert (late["step"], waits["step"], waits["collective"]["op"]) == (40, 40, "all_reduce")


@pytest.mark.thorough
def test_no_alarm_where_annotations_say_less_than_is_going_on(begin: Begin) -> None:
    job = begin("well", hang_s=4, program=ANNOTATED)
    job.wait(lambda: job.over, "it does not end")
    assert "no progress for" not in job.log
    assert list(job.traces.glob("hang_*")) == []
    assert "modules: False False" in job.log  # nothing else of torch is observed
    assert job.judged()[0] == 0


@pytest.mark.parametrize(("hang_s", "watches"), [("60", 1), ("0", 0)])
def test_a_hand_annotated_program_is_watched_once_it_has_a_group(
    tmp_path: Path, hang_s: str, watches: int
) -> None:
    program = """
import os, sys, time
from dftracer.python import dftracer
log = dftracer.initialize_log(None, None)
def watches():
    names = [open(f"/proc/self/task/{t}/comm").read() for t in os.listdir("/proc/self/task")]
    return names.count("dftracer-watch\\n")
told = ["torch" in sys.modules, watches()]
import torch.distributed as dist
code = dist.init_process_group.__code__
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.getcwd()}/meet")
until = time.monotonic() + 100
while os.environ["DFTRACER_HANG_S"] != "0" and not watches() and time.monotonic() < until:
    time.sleep(0.01)  # a thread gives itself its name
told.append(watches())
log.finalize()
told.append(dist.init_process_group.__code__.co_filename.endswith("c10d_logger.py"))
print(told)
"""
    env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_HANG_S=hang_s)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout == f"{[False, 0, watches, True]}\n", done.stderr


def test_nothing_to_read(tmp_path: Path) -> None:
    assert main(["postmortem", str(tmp_path)]) == 2
    assert main(["postmortem", str(tmp_path / "absent")]) == 2


OWN_LOADER = """
import os, signal, socket, sys, time
import torch, torch.multiprocessing as mp

def make(queue, ready):
    for i in range(4):
        queue.put(torch.full((4, 8), float(i)))
    queue.close()
    queue.join_thread()  # all of them are on their way
    ready.set()
    while True:
        time.sleep(0.1)

def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

def batches(queue, worker, ready):
    ready.wait()
    for i in range(4):
        if i == 2 and sys.argv[1] == "worker":
            os.kill(worker.pid, signal.SIGKILL)
            while not gone(worker.pid):
                time.sleep(0.01)
        elif i == 2:  # a server that is not there
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                socket.create_connection(unused.getsockname())
        yield queue.get()

if __name__ == "__main__":
    queue = mp.Queue()
    ready = mp.Event()
    worker = mp.Process(target=make, args=(queue, ready), daemon=True)
    worker.start()
    print(worker.pid)
    model = torch.nn.Linear(8, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(queue, worker, ready):
        model(batch).sum().backward()
        sgd.step()
        sgd.zero_grad()
"""


@pytest.mark.parametrize(("cause", "kind"), [("worker", "worker"), ("server", "exception")])
def test_a_connection_that_fails_because_the_worker_behind_it_was_killed(
    tmp_path: Path, cause: str, kind: str
) -> None:
    """Batches are fetched through a worker's sockets: its death shows as a failed connection, like others."""
    (tmp_path / "train.py").write_text(OWN_LOADER)
    command = [sys.executable, "-m", "dftracer.cli"]
    env = clean_environment()
    ran = subprocess.run(
        [*command, "run", "-q", "-o", "traces", "--", sys.executable, "train.py", cause],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert re.search("^(Connection(Refused|Reset)|BrokenPipe|EOF)Error", ran.stderr, re.MULTILINE), ran.stderr
    result = subprocess.run(
        [*command, "postmortem", "traces", "--json"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["class"]) == (1, kind), answer["sentence"]
    worker = int(ran.stdout.split()[0])
    assert (f"worker (pid {worker}) was killed (SIGKILL)" in answer["sentence"]) == (kind == "worker")
