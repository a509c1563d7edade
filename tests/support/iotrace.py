"""Run programs with their I/O traced, and beside it what the kernel itself saw (`strace`)."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

from .process import clean_environment, recover
from .trace import Record, Trace, read_directory

__all__ = [
    "FIXTURES",
    "Call",
    "IoRun",
    "compile_c",
    "events_as_calls",
    "preload_library",
    "run_traced",
    "same_calls",
]

FIXTURES = Path(__file__).resolve().parents[1] / "intercept" / "fixtures"


def preload_library() -> str:
    """The path that `python -m dftracer.preload` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "dftracer.preload"],
        check=True,
        capture_output=True,
        text=True,
        env=clean_environment(),
    )
    return done.stdout.strip()


def compile_c(source: Path, output: Path, *flags: str) -> Path:
    """Compile a fixture; a machine without a compiler skips."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for its fixture")
    command = [compiler, "-O1", "-g", "-Wall", "-o", str(output), str(source), *flags, "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@dataclass(frozen=True, order=True)
class Call:
    """A system call on a file: what both sides can say of it."""

    name: str
    path: str
    ret: int


@dataclass
class IoRun:
    """A finished program: its result, its traced I/O, and the kernel's account if asked for."""

    returncode: int
    stdout: str
    stderr: str
    traces: Path
    kernel: list[Call] = field(default_factory=list)

    @cached_property
    def trace(self) -> Trace:
        """Everything it wrote, read strictly and once."""
        return read_directory(self.traces)

    @cached_property
    def events(self) -> list[Record]:
        """All POSIX and STDIO events of all its processes."""
        return [e for e in self.trace.events if e.cat in {"POSIX", "STDIO"}]

    @cached_property
    def paths(self) -> dict[str, str]:
        """Hash to path, each from its own file; a hash must not mean two paths."""
        found: dict[str, str] = {}
        for file in self.trace.files:
            for record in file.records:
                if record.name == "FH":
                    path, value = record.raw["args"]["name"], record.raw["args"]["value"]
                    assert found.setdefault(value, path) == path
        return found

    def on(self, path: Path | str, name: str | None = None) -> list[Record]:
        """Events on one file, in order."""
        paths = self.paths
        return [
            e
            for e in self.events
            if paths.get(e.raw["args"].get("fhash", "")) == str(path) and name in (None, e.name)
        ]

    def names_on(self, path: Path | str) -> list[str]:
        """Names of the events on one file, in order."""
        return [e.name for e in self.on(path)]


_LINE = re.compile(r"^(\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)")
_FD_PATH = re.compile(r"(?:^|, )\d+<(/[^>]*)>")
_DIR_FD = re.compile(r"^(?:AT_FDCWD|\d+)<(/[^>]*)>, \"([^\"]*)\"")
_STRING = re.compile(r"\"([^\"]*)\"")

# Calls whose file is named by a path; in all others it is that of a descriptor.
_BY_PATH = frozenset(
    [
        "openat",
        "open",
        "creat",
        "newfstatat",
        "stat",
        "lstat",
        "statx",
        "access",
        "faccessat",
        "faccessat2",
        "mkdir",
        "mkdirat",
        "rmdir",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "readlink",
        "readlinkat",
        "chmod",
        "fchmodat",
        "chown",
        "lchown",
        "truncate",
    ]
)

_KERNEL_NAMES = {
    "open": "openat", "opendir": "openat", "fopen": "openat", "stat": "newfstatat", "lstat": "newfstatat",
    "fstatat": "newfstatat", "fstat": "newfstatat", "pread": "pread64", "pwrite": "pwrite64",
    "posix_fadvise": "fadvise64", "posix_fallocate": "fallocate", "fclose": "close", "closedir": "close",
    "remove": "unlink", "faccessat": "faccessat2",
}  # fmt: skip

# There the kernel has only the calls that take a directory; the C library makes the others of them.
_OF_DIRECTORIES = {
    "access": "faccessat", "chmod": "fchmodat", "creat": "openat", "dup2": "dup3", "link": "linkat",
    "mkdir": "mkdirat", "rename": "renameat", "rmdir": "unlinkat", "symlink": "symlinkat", "unlink": "unlinkat",
} if platform.machine() == "aarch64" else {}  # fmt: skip


def _kernel_name(name: str) -> str:
    name = _KERNEL_NAMES.get(name, name)
    return _OF_DIRECTORIES.get(name, name)


def _parse_kernel(line: str, cwd: Path) -> Call | None:
    found = _LINE.match(line)
    if not found:
        return None
    name, args, ret = found.groups()
    value = int(ret, 0)
    if name in _BY_PATH:
        at = _DIR_FD.match(args)
        if at:
            base, rest = at.groups()
            path = base if not rest else str(Path(base, rest))
        else:
            texts = _STRING.findall(args)
            if not texts:
                return None
            path = str(Path(cwd, texts[-1] if name in {"symlink", "symlinkat"} else texts[0]))
    else:
        descriptors = _FD_PATH.findall(args)
        if not descriptors:
            return None
        path = descriptors[1] if name == "sendfile" and len(descriptors) > 1 else descriptors[0]
    if name == "mmap":
        value = 0 if value > 0 else value
    name = "newfstatat" if name in {"stat", "lstat", "fstat"} else name  # one call, by the age of the caller
    return Call(name, path.removesuffix(" (deleted)").removesuffix("(deleted)"), value)


def run_traced(
    argv: Sequence[str | Path],
    base: Path,
    *,
    data: str | None = None,
    mode: str = "PRELOAD",
    strace: bool = False,
    cwd: Path | None = None,
    expect: int | None = 0,
    timeout: float = 120,
    env: dict[str, str | None] | None = None,
    stdin: int | None = subprocess.DEVNULL,
) -> IoRun:
    """Run `argv` with its I/O traced; `data` None means `all`."""
    traces = base / "traces"
    traces.mkdir(exist_ok=True, parents=True)
    settings: dict[str, str | None] = {
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": mode,
        "DFTRACER_LOG_FILE": str(traces / "t"),
        "DFTRACER_DATA_DIR": data or "all",
        **(env or {}),
    }
    command = [str(a) for a in argv]
    preload = {"LD_PRELOAD": preload_library()} if mode in {"PRELOAD", "HYBRID"} else {}
    directory = cwd or base
    if strace:
        if shutil.which("strace") is None:
            pytest.skip("needs strace, the counted truth of this test")
        given = [f"-E{k}={v}" for k, v in preload.items()]
        options = ["-ff", "-y", "-qq", "-s", "0", "-e", "trace=file,desc", "-o", str(base / "strace")]
        command = ["strace", *options, *given, *command]
    else:
        settings.update(preload)
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment(**settings),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
        stdin=stdin,
    )
    if expect is not None:
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    recover(traces)
    run = IoRun(done.returncode, done.stdout, done.stderr, traces)
    if strace:
        for file in sorted(base.glob("strace.*")):
            for line in file.read_text(errors="replace").splitlines():
                call = _parse_kernel(line, directory)
                if call:
                    run.kernel.append(call)
    return run


def events_as_calls(run: IoRun) -> list[Call]:
    """The traced POSIX events in the kernel's words."""
    paths = run.paths
    calls = []
    for e in run.events:
        args = e.raw["args"]
        if "fhash" not in args:
            continue
        name = _kernel_name(e.name)
        ret = args.get("ret", 0)
        calls.append(Call(name, paths[args["fhash"]], -1 if args.get("errno") else ret))
    return calls


def same_calls(run: IoRun, within: Path, names: frozenset[str], skip: frozenset[str] = frozenset()) -> None:
    """Assert: call by call and byte by byte, the trace says of regular files what the kernel says.

    What a stream does underneath happens inside the C library: there the bytes written must agree.
    """
    streams = _stream_bytes(run)
    names |= {_kernel_name(name) for name in names}

    def counted(calls: list[Call]) -> Counter[Call]:
        return Counter(
            c
            for c in calls
            if c.name in names
            and Path(c.path).is_relative_to(within)
            and not Path(c.path).is_dir()
            and not c.path.endswith((".pfw.gz", ".pfw"))
            and c.path not in streams
            and Path(c.path).name not in skip
        )

    kernel, traced = counted(run.kernel), counted(events_as_calls(run))
    assert sum(kernel.values()) + len(streams) > 0, "the program did no I/O below the data directory"
    missing, invented = kernel - traced, traced - kernel
    assert (missing, invented) == ({}, {}), f"missing: {dict(missing)}\ninvented: {dict(invented)}"
    for path, written in streams.items():
        if Path(path).name in skip:
            continue
        truth = sum(
            max(c.ret, 0) for c in run.kernel if c.path == path and c.name in {"write", "pwrite64", "writev"}
        )
        assert written == truth, f"{path}: {written} bytes traced, {truth} written"


def _stream_bytes(run: IoRun) -> dict[str, int]:
    """Bytes written to each file that is used through streams, by streams and otherwise."""
    paths = run.paths
    with_streams = {
        paths[e.raw["args"]["fhash"]] for e in run.events if e.cat == "STDIO" and "fhash" in e.raw["args"]
    }
    written = dict.fromkeys(with_streams, 0)
    for e in run.events:
        args = e.raw["args"]
        path = paths.get(args.get("fhash", ""), "")
        if path not in written:
            continue
        if e.name == "fwrite":
            written[path] += args["ret"] * args["size"]
        elif e.name in {"fputs", "fputc"}:
            written[path] += args["count"] if "errno" not in args else 0
        elif e.name in {"fprintf", "write", "pwrite", "writev"}:
            written[path] += max(args["ret"], 0)
    return written
