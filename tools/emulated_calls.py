"""Runs the C programs of tests/intercept under an emulator, untraced and traced.

    tools/emulated_calls.py INSTALLED_PACKAGE COMPILER EMULATOR [OPTION ...]

Traced, each must print and return the same and leave an event for each of its calls: as many as here, on this
machine's own processor, if .venv has the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests/intercept/fixtures"
sys.path.insert(0, str(ROOT / "tests"))

from support.trace import read_directory  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A program, and what is the same in each of its runs."""

    name: str
    arguments: str = "{data}"
    flags: str = "-O1 -fno-builtin"
    libraries: tuple[str, ...] = ()
    prints: bool = True  # the same
    counts: bool = True  # the same: it does not call until something happens
    drops: bool = False
    at_least: str = ""  # events


EACH = " ".join((FIXTURES / "each_call.txt").read_text().split())
CASES = (
    Case("each_call", at_least=EACH),
    Case("each_call", flags="-O2 -D_FORTIFY_SOURCE=2"),
    Case("each_call", flags="-O1 -no-pie -Wl,-z,lazy"),
    Case("each_call", flags="-O1 -Wl,-z,now,-z,relro"),
    Case("vfork", at_least="vfork waitpid write"),
    Case(
        "lookups",
        "{here}/libplugin.so {data}/f {version}",
        "-O1 -rdynamic",
        ("dependency", "plugin"),
        at_least="write",
    ),
    Case(
        "loader",
        "{here}/libplugin.so {data}/f",
        libraries=("dependency", "plugin"),
        at_least="open write close",
    ),
    Case(
        "load_while_recording",
        "{data}/f {here}/libslow_load.so {data}/f",
        libraries=("slow_load",),
        counts=False,
        at_least="open close",
    ),
    Case("results"),
    Case("paths"),
    Case("mixed_threads", "{data} 8 100"),
    # Calls of a handler that interrupts the recorder are dropped, and counted.
    Case("signals", prints=False, counts=False, drops=True, at_least="pwrite"),
    Case("fork_storm", "{data} 10", counts=False),
)
LIBRARY_FLAGS = {"plugin": ["-ldependency"], "slow_load": ["-Wl,-z,now,-z,relro"]}


@dataclass(frozen=True)
class Machine:
    """How programs are compiled and run: here or emulated."""

    compiler: str
    emulator: tuple[str, ...]
    preload: Path
    version: str  # of the first symbols of its C library

    def compile(self, case: Case, here: Path) -> None:
        """The program and its libraries, into a directory."""
        for library in case.libraries:
            flags = [
                "-O1",
                "-shared",
                "-fPIC",
                f"-L{here}",
                *LIBRARY_FLAGS.get(library, ()),
                "-Wl,-rpath,$ORIGIN",
            ]
            self._compile(library, here / f"lib{library}.so", flags)
        self._compile(case.name, here / case.name, [*case.flags.split(), "-lpthread", "-ldl"])

    def _compile(self, name: str, output: Path, flags: Sequence[str]) -> None:
        subprocess.run([self.compiler, "-w", "-o", output, FIXTURES / f"{name}.c", *flags], check=True)

    def run(self, case: Case, here: Path, traces: Path | None = None) -> tuple[int, str, int]:
        """Exit status, output and process id of a run in an empty directory for its files."""
        data = here / "data"
        subprocess.run(["rm", "-rf", data], check=True)
        data.mkdir()
        (data / "f").touch()
        environment = {}
        if traces:
            environment = {
                "LD_PRELOAD": str(self.preload),
                "DFTRACER_ENABLE": "1",
                "DFTRACER_INIT": "PRELOAD",
                "DFTRACER_LOG_FILE": str(traces / "t"),
                "DFTRACER_DATA_DIR": str(data),
                "DFTRACER_MAX_STALL_US": "10000000",
            }
        command = [
            str(here / case.name),
            *case.arguments.format(data=data, here=here, version=self.version).split(),
        ]
        if self.emulator:
            given = [word for pair in environment.items() for word in ("-E", "=".join(pair))]
            command, environment = [*self.emulator, *given, *command], {}
        outer = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
        with subprocess.Popen(
            command, env=outer | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                output, errors = process.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if "dftracer" in errors:
            # Programs for this machine that an emulated one starts cannot load a library for another.
            output += "".join(line for line in errors.splitlines(True) if "cannot be preloaded" not in line)
        return process.returncode, output, process.pid


def problems(case: Case, machine: Machine, here: Path) -> tuple[list[str], Counter[str]]:
    """What differs between the untraced and the traced run, and the events of the latter's first process."""
    traces = here / "traces"
    traces.mkdir(parents=True)
    machine.compile(case, here)
    status, output, _ = machine.run(case, here)
    traced_status, traced_output, pid = machine.run(case, here, traces)
    found = []
    if traced_status != status:
        found.append(f"untraced it ended with {status}, traced with {traced_status}")
    if case.prints and traced_output != output:
        found.append(f"untraced it printed {output!r}, traced {traced_output!r}")
    trace = read_directory(traces)
    seen = Counter(e.name for e in trace.events if e.cat in {"POSIX", "STDIO"} and e.pid == pid)
    if missing := set(case.at_least.split()) - set(seen):
        found.append(f"no events of {sorted(missing)}")
    lost = sum(r.raw["args"]["dropped"] for f in trace.files for r in f.records if r.name == "end")
    if lost and not case.drops:
        found.append(f"{lost} events were dropped")
    if case.name == "mixed_threads" and sum(seen.values()) != int(output):
        found.append(f"{sum(seen.values())} events of {output.strip()} calls")
    if case.name == "fork_storm" and len(trace.files) != 1 + int(case.arguments.split()[-1]):
        found.append(f"{len(trace.files)} traces of a process and its {case.arguments.split()[-1]} children")
    return found, seen


def main(package: str, compiler: str, *emulator: str) -> int:
    """Exit status: 1 if something differs."""
    emulated = Machine(compiler, emulator, Path(package) / "libdftracer_preload.so", "GLIBC_2.17")
    own = None
    python = ROOT / ".venv/bin/python"
    if python.exists():
        done = subprocess.run([python, "-m", "dftracer.preload"], capture_output=True, text=True, check=False)
        if done.returncode == 0 and os.uname().machine == "x86_64":
            own = Machine("gcc", (), Path(done.stdout.strip()), "GLIBC_2.2.5")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="dftracer-emulated-") as scratch:
        for number, case in enumerate(CASES):
            found, seen = problems(case, emulated, Path(scratch, f"{number}"))
            if own and case.counts:
                _, expected = problems(case, own, Path(scratch, f"{number}-own"))
                if seen != expected:
                    found.append(f"more than here: {dict(seen - expected)}, fewer: {dict(expected - seen)}")
            bad += bool(found)
            print("FAILED" if found else "ok    ", f"{sum(seen.values()):6} events ", case.name, case.flags)
            for each in found:
                print(f"    {each}")
    if own is None:
        print("the numbers of events were not compared with those of this machine: .venv lacks the package")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
