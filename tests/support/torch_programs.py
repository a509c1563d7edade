"""Programs are run in processes of their own, as users run them; tests read the trace they leave.

Importing torch is most of what such a process does. So each one is a fork of a process that has imported it,
and nothing else: the program itself imports dftracer, with its environment, and ends as every program does.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import gzip
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

Events = list[dict[str, Any]]
RunProgram = Callable[..., "Run"]

LONGEST_S = 240


class Run:
    """What a program left behind."""

    def __init__(self, directory: Path, stdout: str, stderr: str) -> None:
        self.directory = directory
        self.stdout = stdout
        self.stderr = stderr

    @property
    def records(self) -> Events:
        found: Events = []
        for path in sorted(self.directory.glob("*.pfw*")):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            for line in data.decode().splitlines():
                if line not in ("[", "]", ""):
                    found.append(json.loads(line))
        return found

    @property
    def events(self) -> Events:
        return [record for record in self.records if record["ph"] == "X"]

    def of(self, category: str) -> Events:
        return [event for event in self.events if event["cat"] == category]

    @property
    def result(self) -> Any:
        """What the program printed last, as JSON."""
        return json.loads(self.stdout.strip().splitlines()[-1])


def program_runner(tmp_path_factory: pytest.TempPathFactory) -> RunProgram:
    """Runs program texts in fresh directories, with tracing on unless told otherwise."""

    def run(
        code: str,
        *,
        enable: bool = True,
        env: dict[str, str] | None = None,
        check: bool = True,
        fresh: bool = False,
    ) -> Run:
        """With `fresh` in an interpreter that has imported nothing."""
        directory = tmp_path_factory.mktemp("program")
        program = directory / "program.py"
        program.write_text(textwrap.dedent(code))
        environment = {
            **_without_tracing(),
            "DFTRACER_ENABLE": "1" if enable else "0",
            "DFTRACER_DISABLE_IO": "1",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        # Torch reads its own variables while it is being imported.
        fresh = fresh or not all(name.startswith("DFTRACER_") for name in env or {})
        code_of_end = (_start if fresh else _fork)(program, environment)
        stdout, stderr = (_text(directory.with_suffix(f".{name}")) for name in ("stdout", "stderr"))
        assert not check or code_of_end == 0, stderr[-4000:]
        return Run(directory, stdout, stderr)

    return run


def _without_tracing() -> dict[str, str]:
    from .process import clean_environment  # noqa: PLC0415 - this file is also a program, which is no part of a package

    return clean_environment()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _start(program: Path, environment: dict[str, str]) -> int:
    place = program.parent
    with place.with_suffix(".stdout").open("wb") as out, place.with_suffix(".stderr").open("wb") as err:
        return subprocess.run(
            [sys.executable, str(program)],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            timeout=LONGEST_S,
            check=False,
        ).returncode


def _fork(program: Path, environment: dict[str, str]) -> int:
    place = program.parent
    return fork_at_once([Task(program, place, environment)])[0]


@dataclass
class Task:
    """A program, where it runs, and what it finds there; beside that place lies what it printed."""

    program: Path
    place: Path
    environment: dict[str, str]
    arguments: list[str] = field(default_factory=list)
    name: str = ""  # tells those that run in one place apart

    def output(self, stream: str) -> Path:
        return self.place.with_name(f"{self.place.name}{self.name}.{stream}")


def fork_at_once(tasks: list[Task]) -> list[int]:
    """Run programs side by side; their exit codes."""
    parent = _parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps([asdict(task) for task in tasks], default=str) + "\n")
    parent.stdin.flush()
    answer = parent.stdout.readline()
    if not answer:
        _parent.cache_clear()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        printed = "\n".join(_text(task.output("stderr"))[-2000:] for task in tasks)
        pytest.fail(f"longer than {LONGEST_S} s: {printed}")
    codes: list[int] = json.loads(answer)
    return codes


@cache
def _parent() -> subprocess.Popen[str]:
    parent = subprocess.Popen(
        [sys.executable, __file__],
        env={**_without_tracing(), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()

    atexit.register(end)
    return parent


def _serve() -> None:
    """Fork once for each line, and run its program in the child, where this returns after it."""
    import torch._dynamo  # noqa: F401, PLC0415 - the point of it all

    # Half of what a forked program would do is to look through torch's objects, and to copy their pages.
    gc.freeze()
    for line in sys.stdin:
        pids = []
        for each in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                task = Task(Path(each.pop("program")), Path(each.pop("place")), **each)
                _run_here(task)
                return
        signal.alarm(LONGEST_S)  # ends this process, so that who asks sees its end
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)
        signal.alarm(0)


def _run_here(task: Task) -> None:
    program = task.program
    os.chdir(task.place)
    os.environ.clear()
    os.environ.update(task.environment)
    for number, name, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, task.output("stdout"), os.O_WRONLY | os.O_CREAT),
        (2, task.output("stderr"), os.O_WRONLY | os.O_CREAT),
    ):
        file = os.open(name, mode, 0o666)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [str(program), *task.arguments]
    sys.path[0] = str(program.parent)
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    sys.modules["__main__"] = main
    if "DFTRACER_AUTO" in os.environ:  # as every interpreter does when it starts
        importlib.import_module("dftracer.auto").begin()
    exec(compile(program.read_text(encoding="utf-8"), program, "exec"), main.__dict__)  # noqa: S102


if __name__ == "__main__":
    _serve()
