"""A trace, once written, is never cut, overwritten or deleted: names are claimed, runs are told apart."""

from __future__ import annotations

import gzip
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment, recover
from support.trace import TraceFile, read_directory, read_file

# Twice for the child of a process that has a name of its own, such as the fork server of Python 3.14, which imports
# the program.
OWN_NAME = re.compile(r"t(-[0-9a-f]{16}-(app|fork|preload))+\.pfw\.gz")

PROGRAM = """
from dftracer.python import ai, dftracer
log = dftracer.initialize_log("t.pfw", None, -1)
def work(n):
    for _ in range(n):
        with ai.compute: pass
"""


def script(folder: Path, text: str, name: str = "program.py") -> Path:
    """A program that gives its trace the name t.pfw and can `work`."""
    file = folder / name
    file.write_text(PROGRAM + textwrap.dedent(text))
    return file


def environment(**more: str | None) -> dict[str, str]:
    """Tracing of annotations alone."""
    return clean_environment(**{"DFTRACER_ENABLE": "1", "DFTRACER_DISABLE_IO": "1", **more})


def run(
    folder: Path, *words: object, check: bool = True, **more: str | None
) -> subprocess.CompletedProcess[str]:
    """The command, in the folder."""
    done = subprocess.run(
        [str(w) for w in words],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def python(
    folder: Path, *words: object, check: bool = True, **more: str | None
) -> subprocess.CompletedProcess[str]:
    """This interpreter."""
    return run(folder, sys.executable, *words, check=check, **more)


def files_of(folder: Path) -> list[TraceFile]:
    """Every trace of the folder, each finished and readable to its end."""
    files = read_directory(folder).files
    assert all(f.closed for f in files)
    return files


def events(file: TraceFile) -> int:
    """The program's own events."""
    return sum(e.name == "compute" for e in file.events)


def record_of_run(file: TraceFile) -> dict[str, Any]:
    """What the file says of its run."""
    (record,) = [r for r in file.records if "run" in r.args and r.ph == "M"]
    assert (record.name, record.cat) == ("HH", "dftracer")
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", record.args["run"])
    return record.args


def runs_of(files: list[TraceFile]) -> Counter[object]:
    """How many files each run has."""
    return Counter(record_of_run(f)["run"] for f in files)


def check_names(files: list[TraceFile]) -> None:
    """One has the name that was given, all others have names of their own beside it."""
    names = [f.path.name for f in files]
    assert names.count("t.pfw.gz") == 1
    assert all(OWN_NAME.fullmatch(n) for n in names if n != "t.pfw.gz"), names


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_that_give_the_name_again(method: str, tmp_path: Path) -> None:
    """Workers started before the parent has an event do not take the name it gave."""
    program = script(
        tmp_path,
        f"""
        import multiprocessing
        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            workers = [context.Process(target=work, args=(500,)) for _ in range(4)]
            for w in workers: w.start()
            for w in workers: w.join()
            with ai.data: pass
            work(500)
        """,
    )
    python(tmp_path, program)
    files = files_of(tmp_path)
    check_names(files)
    assert [events(f) for f in files] == [500] * 5
    named = read_file(tmp_path / "t.pfw.gz")
    assert [e.name for e in named.events].count("data") == 1, "the parent's"
    assert len(runs_of(files)) == 1


def test_loader_workers_of_several_epochs(tmp_path: Path) -> None:
    """New workers in every epoch, each with a file of its own."""
    program = script(
        tmp_path,
        """
        import torch.utils.data as data
        class Items(data.Dataset):
            def __len__(self): return 40
            def __getitem__(self, i):
                with ai.compute: return i
        if __name__ == "__main__":
            loader = data.DataLoader(Items(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
            for epoch in range(2):
                for batch in loader: pass
        """,
    )
    python(tmp_path, program)
    recover(tmp_path)  # on a slow machine the loader kills workers that take their time to end
    files = files_of(tmp_path)
    assert sum(map(events, files)) == 80
    assert len(runs_of(files)) == 1
    assert all(OWN_NAME.fullmatch(f.path.name) for f in files), (
        "the parent has no events, its name stays free"
    )


def test_short_ranks_under_torchrun(tmp_path: Path) -> None:
    """Without an id of the rendezvous the agent tells the run; the first rank with events has the name."""
    program = script(tmp_path, "work(500)")
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=4")
    python(tmp_path, *torchrun, program, OMP_NUM_THREADS="1")
    files = files_of(tmp_path)
    check_names(files)
    assert [events(f) for f in files] == [500] * 4
    assert len(runs_of(files)) == 1
    facts = [record_of_run(f) for f in files]
    assert sorted(f["rank"] for f in facts) == [0, 1, 2, 3]
    assert {(f["launcher"], f["world_size"], f["attempt"]) for f in facts} == {("torchrun", 4, 0)}


def test_an_elastic_restart_is_the_next_attempt(tmp_path: Path) -> None:
    """The workers that torchrun starts again belong to the run, and write over nothing."""
    program = script(
        tmp_path,
        """
        import os, sys
        work(100)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1")
        """,
    )
    torchrun = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--monitor-interval=0.1",
    )
    python(tmp_path, *torchrun, program, OMP_NUM_THREADS="1")
    recover(tmp_path)  # the agent may have killed rank 0
    files = files_of(tmp_path)
    check_names(files)
    assert len(runs_of(files)) == 1
    attempts = Counter((record_of_run(f)["attempt"], record_of_run(f)["rank"]) for f in files)
    assert attempts[(0, 1)] == attempts[(1, 0)] == attempts[(1, 1)] == 1
    assert [events(f) for f in files if record_of_run(f)["attempt"] == 1] == [100, 100]


def test_one_after_the_other_under_a_shell(tmp_path: Path) -> None:
    """Each is a run; the earlier trace is moved aside under its run's id."""
    script(tmp_path, "work(500)")
    run(tmp_path, "sh", "-c", f"{sys.executable} program.py; {sys.executable} program.py")
    files = files_of(tmp_path)
    assert [events(f) for f in files] == [500, 500]
    assert len(runs_of(files)) == 2
    (aside,) = [f for f in files if f.path.name != "t.pfw.gz"]
    assert aside.path.name == f"t-{record_of_run(aside)['run']}.pfw.gz"
    times = {f.path.name: f.events[0].ts for f in files}
    assert times["t.pfw.gz"] > times[aside.path.name]


def test_beside_each_other_under_a_shell(tmp_path: Path) -> None:
    """The name is the first one's as long as it lives; nothing is lost in any order."""
    script(tmp_path, "work(500)")
    run(tmp_path, "sh", "-c", f"for i in 1 2 3 4; do {sys.executable} program.py & done; wait")
    files = files_of(tmp_path)
    assert [events(f) for f in files] == [500] * 4
    assert [f.path.name for f in files].count("t.pfw.gz") == 1
    assert len(runs_of(files)) == 4


def test_a_shell_under_one_run(tmp_path: Path) -> None:
    """What inherits the run is part of it, one after the other too."""
    script(tmp_path, "work(500)")
    command = f"{sys.executable} program.py; {sys.executable} program.py"
    run(tmp_path, "sh", "-c", command, DFTRACER_RUN="my-run.1")
    files = files_of(tmp_path)
    check_names(files)
    assert [events(f) for f in files] == [500, 500]
    assert runs_of(files) == {"my-run.1": 2}


@pytest.mark.parametrize("io", ["0", "1"])
def test_exec_of_itself(io: str, tmp_path: Path) -> None:
    """The process is another program afterwards, with a trace of its own."""
    script(
        tmp_path,
        """
        import os, sys
        work(500)
        if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, "program.py", "again"])
        """,
    )
    python(tmp_path, "program.py", DFTRACER_DISABLE_IO=io)
    recover(tmp_path)
    files = files_of(tmp_path)
    check_names(files)
    assert [events(f) for f in files] == [500, 500]
    assert len(runs_of(files)) == 1


def test_finalize_and_initialize_again(tmp_path: Path) -> None:
    """Each session of a process has a file; a session without events leaves the name to the next."""
    script(
        tmp_path,
        """
        log.finalize()
        for n in (500, 300):
            log = dftracer.initialize_log("t.pfw", None, -1)
            work(n)
            log.finalize()
        """,
    )
    python(tmp_path, "program.py")
    files = files_of(tmp_path)
    check_names(files)
    assert events(read_file(tmp_path / "t.pfw.gz")) == 500
    assert sorted(events(f) for f in files) == [300, 500]


def test_a_parent_that_finalizes_before_its_children_begin(tmp_path: Path) -> None:
    """They were told of its name when they were started, or find its file."""
    script(
        tmp_path,
        """
        import subprocess, sys
        work(100)
        if len(sys.argv) == 1:
            child = [sys.executable, __file__, "child"]
            early = subprocess.Popen(child, stdin=subprocess.PIPE)
            log.finalize()
            early.communicate()
            subprocess.run(child, check=True)
        """,
    )
    python(tmp_path, "program.py")
    files = files_of(tmp_path)
    check_names(files)
    assert [events(f) for f in files] == [100] * 3
    assert len(runs_of(files)) == 1


def test_a_killed_run_started_again(tmp_path: Path) -> None:
    """Its trace is completed from its ring, and moved aside."""
    script(
        tmp_path,
        """
        import os, signal, sys
        work(500)
        if len(sys.argv) > 1:
            from dftracer import _core
            assert _core.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    rings = tmp_path / "rings"
    rings.mkdir()
    killed = run(tmp_path, sys.executable, "program.py", "die", check=False, DFTRACER_RING_DIR=str(rings))
    assert killed.returncode == -signal.SIGKILL
    python(tmp_path, "program.py", DFTRACER_RING_DIR=str(rings))
    files = files_of(tmp_path)
    assert [events(f) for f in files] == [500, 500]
    assert sorted(f.path.name.startswith("t-2") for f in files) == [False, True]
    assert len(runs_of(files)) == 2


NO_FLOCK = """
#include <errno.h>
int flock(int fd, int operation) { (void)fd; (void)operation; errno = ENOSYS; return -1; }
"""


def test_a_file_system_without_locks(tmp_path: Path) -> None:
    """Three ranks at once, then a second run, then a killed one: not an event is lost."""
    (tmp_path / "flock.c").write_text(NO_FLOCK)
    library = tmp_path / "flock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "flock.c"], check=True)
    script(tmp_path, "work(2000)")
    ranks = f"for i in 0 1 2; do RANK=$i WORLD_SIZE=3 {sys.executable} program.py & done; wait"
    for count in (1, 2):
        run(tmp_path, "sh", "-c", ranks, LD_PRELOAD=str(library))
        files = files_of(tmp_path)
        assert [events(f) for f in files] == [2000] * 3 * count
        assert sorted(runs_of(files).values()) == [3] * count


def test_the_longest_name_that_fits(tmp_path: Path) -> None:
    """Given twice: the second process's own name is cut, not its events."""
    name = "n" * (255 - len(".pfw.gz"))
    (tmp_path / "program.py").write_text(PROGRAM.replace("t.pfw", f"{name}.pfw") + "work(10)\n")
    run(tmp_path, "sh", "-c", f"{sys.executable} program.py && {sys.executable} program.py", DFTRACER_RUN="r")
    files = files_of(tmp_path)
    assert [events(f) for f in files] == [10, 10]
    assert f"{name}.pfw.gz" in {f.path.name for f in files}


@pytest.mark.parametrize("given", ["./", "new/"])
def test_a_directory_instead_of_a_name(given: str, tmp_path: Path) -> None:
    """The trace lies in it under a name that readers see."""
    (tmp_path / "program.py").write_text(PROGRAM.replace("t.pfw", given) + "work(10)\n")
    python(tmp_path, "program.py")
    (file,) = files_of(tmp_path / given)
    assert (file.path.name, events(file)) == ("trace.pfw.gz", 10)


@pytest.mark.parametrize("content", [b"not a trace\n", b"", b"\x1f\x8bnot gzip at all"])
def test_a_file_that_is_no_trace(content: bytes, tmp_path: Path) -> None:
    """Left as it is, and said once."""
    (tmp_path / "t.pfw.gz").write_bytes(content)
    script(tmp_path, "work(10)")
    done = python(tmp_path, "program.py")
    assert (tmp_path / "t.pfw.gz").read_bytes() == content
    (file,) = tmp_path.glob("t-*.pfw.gz")
    assert OWN_NAME.fullmatch(file.name)
    assert events(read_file(file)) == 10
    assert done.stderr.count("is not a dftracer trace") == 1


def test_a_joined_process_does_not_take_a_file_that_is_no_trace(tmp_path: Path) -> None:
    """It records already under another name when its program gives the one that is taken."""
    (tmp_path / "t.pfw.gz").write_text("not a trace")
    program = tmp_path / "program.py"
    program.write_text(
        "from dftracer.python import ai, dftracer\n"
        "with ai.compute: pass\n"
        "from dftracer import _core\n"
        "assert _core.flush()\n"
        "log = dftracer.initialize_log('t.pfw', None, -1)\n"
        "with ai.compute: pass\n"
    )
    done = python(tmp_path, program, DFTRACER_SESSION=str(tmp_path / "joined"))
    assert (tmp_path / "t.pfw.gz").read_text() == "not a trace"
    (file,) = [p for p in tmp_path.glob("*.pfw.gz") if p.name != "t.pfw.gz"]
    assert OWN_NAME.fullmatch(file.name)
    assert events(read_file(file)) == 2
    assert done.stderr.count("is not a dftracer trace") == 1


def test_a_trace_of_an_older_version(tmp_path: Path) -> None:
    """Finished, it names no run: moved aside under its time. Unfinished, its owner may live: it stays."""
    script(tmp_path, "work(10)")
    python(tmp_path, "program.py")
    text = gzip.decompress((tmp_path / "t.pfw.gz").read_bytes())
    lines = re.sub(rb',"run":".*?(?=}})', b"", text).splitlines(keepends=True)
    (tmp_path / "t.pfw.gz").unlink()
    for finished, expected in ((True, r"t-\d{8}-\d{6}\.pfw"), (False, r"t-[0-9a-f]{16}-app\.pfw")):
        content = b"".join(lines if finished else lines[:-1])
        (tmp_path / "t.pfw").write_bytes(content)
        python(tmp_path, "program.py", DFTRACER_TRACE_COMPRESSION="0")
        (other,) = tmp_path.glob("t-*.pfw")
        assert re.fullmatch(expected, other.name)
        assert (other if finished else tmp_path / "t.pfw").read_bytes() == content
        for file in tmp_path.glob("*.pfw"):
            file.unlink()


def test_two_lines_of_one_slurm_script(tmp_path: Path) -> None:
    """Equal ids, but a rank that was used by a process that has ended: a new run, whose ranks agree on it."""
    script(tmp_path, "work(100)")
    step = "; ".join(f"SLURM_PROCID={i} {sys.executable} program.py" for i in (0, 1))
    run(tmp_path, "sh", "-c", f"{step}; {step}", SLURM_JOB_ID="77", SLURM_STEP_ID="0", SLURM_NTASKS="2")
    files = files_of(tmp_path)
    assert [events(f) for f in files] == [100] * 4
    assert runs_of(files) == {"slurm-77-0": 2, "slurm-77-0.2": 2}
    for name in ("slurm-77-0", "slurm-77-0.2"):
        facts = [record_of_run(f) for f in files if record_of_run(f)["run"] == name]
        assert sorted(f["rank"] for f in facts) == [0, 1]
        assert {(f["launcher"], f["world_size"]) for f in facts} == {("slurm", 2)}
    assert record_of_run(read_file(tmp_path / "t.pfw.gz"))["run"] == "slurm-77-0.2"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "{i}", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job/7"}, r"torchrun-job-7-[0-9a-f]{8}"),
        ({"RANK": "{i}", "TORCHELASTIC_RUN_ID": "none", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n0",
          "MASTER_PORT": "29500"}, r"torchrun-[0-9a-f]{16}"),
        ({"OMPI_COMM_WORLD_RANK": "{i}", "PMIX_NAMESPACE": "job-11@1"}, r"openmpi-job-11-1-[0-9a-f]{8}"),
        ({"PMI_RANK": "{i}", "PMI_SIZE": "2"}, r"pmi-[0-9a-f]{16}"),
        ({"FLUX_TASK_RANK": "{i}", "FLUX_JOB_ID": "f3"}, r"flux-f3"),
        ({"SLURM_PROCID": "{i}", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "3"}, r"slurm-5-3"),
    ],
)  # fmt: skip
def test_ranks_of_a_launcher_are_one_run(variables: dict[str, str], expected: str, tmp_path: Path) -> None:
    """Its ids tell the run, or the process that started the ranks does."""
    script(tmp_path, "work(10)")
    ranks = []
    for i in range(2):
        values = {k: v.format(i=i) for k, v in variables.items()}
        ranks.append(
            subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, env=environment(**values))
        )
    assert [r.wait(120) for r in ranks] == [0, 0]
    files = files_of(tmp_path)
    check_names(files)
    (name,) = runs_of(files)
    assert re.fullmatch(expected, str(name))


def test_forks_and_parts_name_their_run(tmp_path: Path) -> None:
    """So that left-overs of another run are never taken for parts of this one."""
    script(
        tmp_path,
        """
        import os
        work(3000)
        if os.fork() == 0:
            work(10)
            os._exit(0)
        os.wait()
        work(3000)
        """,
    )
    for _ in range(2):
        python(
            tmp_path, "program.py", DFTRACER_ROTATE_SIZE="3000", DFTRACER_WRITE_BUFFER_SIZE="16K",
            DFTRACER_FLUSH_MS="10",
        )  # fmt: skip
    files = files_of(tmp_path)
    assert sum(map(events, files)) == 2 * 6010
    runs = runs_of(files)
    assert len(runs) == 2
    parts = [f for f in files if "-part" in f.path.name]
    assert len(parts) > 2
    newest = max(record_of_run(f)["run"] for f in files if f.path.name.startswith("t-part"))
    assert record_of_run(read_file(tmp_path / "t.pfw.gz"))["run"] == newest
    for file in files:
        aside = re.match(r"t-(2\d{7}-\d{6}-[0-9a-f]{8})(-part\d+)?\.", file.path.name)
        if aside:
            assert record_of_run(file)["run"] == aside[1]


def test_what_a_trace_says_of_its_run(tmp_path: Path) -> None:
    """Start, command, host, versions."""
    script(tmp_path, "work(1)")
    python(tmp_path, "program.py", "--lr", "3")
    (file,) = files_of(tmp_path)
    facts = record_of_run(file)
    start = next(r for r in file.records if r.name == "start")
    assert facts["start"] == start.ts
    assert facts["command"] == f"{sys.executable} program.py --lr 3"
    assert facts["name"] == os.uname().nodename
    assert facts["launcher"] == ""
    assert facts["attempt"] == 0
    assert "world_size" not in facts
    assert facts["version"] == start.args["version"]
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert file.records[0].args == facts


def test_switched_on_after_the_import(tmp_path: Path) -> None:
    """Not silent: one line says why nothing is recorded."""
    program = tmp_path / "late.py"
    program.write_text(
        textwrap.dedent(
            """
            import os
            from dftracer.python import ai, dftracer
            os.environ["DFTRACER_ENABLE"] = "1"
            for _ in range(2):
                log = dftracer.initialize_log("t.pfw", None, -1)
                with ai.compute: pass
                log.finalize()
            """
        )
    )
    done = python(tmp_path, program, DFTRACER_ENABLE=None)
    assert list(tmp_path.glob("*.pfw*")) == []
    (line,) = done.stderr.splitlines()
    assert line.startswith("dftracer: tracing was switched on after dftracer had been imported")
    quiet = python(tmp_path, program, DFTRACER_ENABLE="0", PYTHONOPTIMIZE="1")
    assert "switched on" in quiet.stderr
