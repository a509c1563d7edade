"""Calls of the CUDA runtime and NCCL, made by stand-ins that take known times."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, IoRun, compile_c, run_traced
from support.process import clean_environment
from support.trace import Record, read_directory

MS = 1_000_000


@dataclass(frozen=True)
class StandIn:
    """A program and the libraries it can load."""

    program: Path
    linked: Path  # bound by the loader of the program, lazily
    lazy: Path  # libtorch_cuda.so, to be loaded; with NCCL
    now: Path
    other: Path  # a caller of the other copy


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """Two copies of a runtime, one NCCL, and their callers."""
    base = tmp_path_factory.mktemp("stand_in")
    for copy in (12, 13):
        (base / str(copy)).mkdir()
        versions = base / f"{copy}.map"
        versions.write_text(f"libcudart.so.{copy} {{ global: cuda*; STANDIN_CALLS; local: *; }};")
        compile_c(
            FIXTURES / "cudart.c", base / f"libcudart.so.{copy}", "-shared", "-fPIC", f"-DCOPY={copy}",
            f"-Wl,-soname,libcudart.so.{copy}", f"-Wl,--version-script={versions}",
        )  # fmt: skip
    compile_c(FIXTURES / "nccl.c", base / "libnccl.so.2", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2")

    def caller(name: str, copy: int, *flags: str) -> Path:
        folder = base / name
        folder.mkdir()
        return compile_c(
            FIXTURES / "torch_cuda.c", folder / f"lib{name}.so", "-shared", "-fPIC", "-fno-builtin",
            str(base / f"libcudart.so.{copy}"), f"-Wl,-rpath,{base}", *flags,
        )  # fmt: skip

    nccl = ("-DWITH_NCCL", str(base / "libnccl.so.2"))
    lazy = caller("torch_cuda", 13, "-Wl,-z,lazy", *nccl)
    linked = compile_c(
        FIXTURES / "device_program.c", base / "linked", "-DLINKED", str(lazy), f"-Wl,-rpath,{lazy.parent}",
        "-Wl,-z,lazy",
    )  # fmt: skip
    return StandIn(
        program=compile_c(FIXTURES / "device_program.c", base / "program"),
        linked=linked,
        lazy=lazy,
        now=caller("c10_cuda", 13, "-Wl,-z,now"),
        other=caller("other", 12, "-Wl,-z,now"),
    )


CALLS = {
    "cudaMemcpyAsync=2000000,1,7": {"bytes": 2 * MS, "kind": "HtoD", "stream": 7},
    "cudaMemcpyAsync_ptsz=1000000,2,2": {"bytes": MS, "kind": "DtoH", "stream": 2},
    "cudaMemcpy=1000000,3": {"bytes": MS, "kind": "DtoD"},
    "cudaMemcpy2DAsync=1000000,0,9": {"bytes": MS, "kind": "HtoH", "stream": 9},
    "cudaMemsetAsync=1000000,0,5": {"bytes": MS, "stream": 5},
    "cudaStreamSynchronize=0,0,3000000": {"stream": 3 * MS},
    "cudaEventSynchronize=0,0,1000000": {},
    "cudaDeviceSynchronize": {},
    "cudaGraphLaunch=9,0,7": {"stream": 7, "graph": 9},
    "cudaMalloc=1000000": {"bytes": MS},
    "cudaFree=1000000": {},
}


def device_events(run: IoRun) -> list[Record]:
    """The records of the runtime's calls, in order."""
    return [e for e in run.trace.events if e.cat == "CUDA"]


def facts(record: Record) -> dict[str, object]:
    """What it says of the call."""
    return {k: v for k, v in record.args.items() if k not in {"hhash", "p_idx", "level"}}


def end_of(run: IoRun) -> dict[str, object]:
    """The closing record of its only process."""
    (end,) = [r for f in run.trace.files for r in f.records if r.name == "end"]
    return end.args


@pytest.mark.parametrize("how", ["linked", "loaded lazily", "loaded now"])
def test_calls_are_records(stand_in: StandIn, tmp_path: Path, how: str) -> None:
    """Each with its arguments and the time its caller measured; results and errno are those of the call."""
    program = stand_in.linked if how == "linked" else stand_in.program
    library = stand_in.lazy if how == "loaded lazily" else stand_in.now
    load = [] if how == "linked" else [f"load={library}"]
    run = run_traced([program, *load, *CALLS], tmp_path)
    events = device_events(run)
    printed = [line.split() for line in run.stdout.splitlines()]
    assert [e.name for e in events] == [name.removesuffix("_ptsz") for name, *_ in printed]
    assert [facts(e) for e in events] == list(CALLS.values())
    for event, (_, ret, error, ns) in zip(events, printed, strict=True):
        assert (ret, error) == ("0", "53")
        assert event.dur <= int(ns) / 1000 + 1
        assert event.name == "cudaGraphLaunch" or event.dur >= 1000
    end = end_of(run)
    assert end["cuda_patched_objects"] == 1
    assert end["cuda_short_calls"] == 0


def test_errors_are_told(stand_in: StandIn, tmp_path: Path) -> None:
    """A call that fails returns its error to the caller, and the record has it."""
    run = run_traced(
        [stand_in.program, f"load={stand_in.now}", "cudaStreamSynchronize=0,0,1000000"],
        tmp_path,
        env={"STANDIN_RETURN": "700"},
    )
    assert run.stdout.split()[:3] == ["cudaStreamSynchronize", "700", "53"]
    assert [facts(e) for e in device_events(run)] == [{"stream": MS, "ret": 700}]


def test_short_calls_are_counted(stand_in: StandIn, tmp_path: Path) -> None:
    """They are no records, but none is lost from the count; a graph launch is a record however short."""
    run = run_traced(
        [
            stand_in.program, f"load={stand_in.now}", "pause=5", "times=1000", "cudaMemcpyAsync=10,1,7",
            "cudaMalloc=50", "cudaGraphLaunch=0,0,7", "times=1", "cudaLaunchKernel",
        ],
        tmp_path,
    )  # fmt: skip
    names = [e.name for e in device_events(run)]
    assert names.count("cudaGraphLaunch") == 1000
    others = len(names) - 1000  # a call may be interrupted, and take long
    short, spent = end_of(run)["cuda_short_calls"], end_of(run)["cuda_short_us"]
    assert isinstance(short, int)
    assert isinstance(spent, int)
    assert short + others == 2000
    assert short > 1000
    assert 0 < spent < short * 100


@pytest.mark.parametrize("order", ["13 first", "12 first"])
@pytest.mark.parametrize("binding", ["now", "lazy"])
def test_two_copies(stand_in: StandIn, tmp_path: Path, order: str, binding: str) -> None:
    """Each caller reaches its own copy, whichever was loaded first."""
    own = stand_in.now if binding == "now" else stand_in.lazy
    libraries = [own, stand_in.other] if order == "13 first" else [stand_in.other, own]
    call = "cudaStreamSynchronize=0,0,1000000"
    words = [word for library in libraries for word in (f"load={library}", call)]
    run = run_traced([stand_in.program, *words, *words], tmp_path)
    errors = [line.split()[2] for line in run.stdout.splitlines()]
    assert errors == (["53", "52"] if order == "13 first" else ["52", "53"]) * 2
    assert len(device_events(run)) == 4
    assert end_of(run)["cuda_patched_objects"] == 2


def test_two_copies_without_versions(stand_in: StandIn, tmp_path: Path) -> None:
    """Which copy a lazily bound caller means is known to the loader alone, until the first call."""
    callers = []
    for copy in (12, 13):
        library = compile_c(
            FIXTURES / "cudart.c", tmp_path / f"libcudart-{copy}.so", "-shared", "-fPIC", f"-DCOPY={copy}"
        )
        callers.append(
            compile_c(
                FIXTURES / "torch_cuda.c",
                tmp_path / f"libcaller{copy}.so",
                "-shared",
                "-fPIC",
                "-Wl,-z,lazy",
                str(library),
                f"-Wl,-rpath,{tmp_path}",
            )
        )
    call = "cudaStreamSynchronize=0,0,1000000"
    words = [word for library in callers for word in (f"load={library}", call)]
    run = run_traced([stand_in.program, *words, "pause=300", *words], tmp_path)
    assert [line.split()[2] for line in run.stdout.splitlines()] == ["52", "53"] * 2
    assert len(device_events(run)) == 3


def test_switches(stand_in: StandIn, tmp_path: Path) -> None:
    """CUDA and I/O are switched off independently of each other."""
    words: list[str | Path] = [stand_in.program, f"load={stand_in.now}", "cudaDeviceSynchronize"]
    found = {}
    for switch in ("DFTRACER_DISABLE_CUDA", "DFTRACER_DISABLE_IO", "DFTRACER_NOTHING"):
        run = run_traced(words, tmp_path / switch, env={switch: "1"})
        found[switch] = {e.cat for e in run.trace.events if e.cat != "dftracer"}
    assert found["DFTRACER_DISABLE_CUDA"] <= {"POSIX", "STDIO"}
    assert found["DFTRACER_DISABLE_IO"] == {"CUDA"}
    assert "CUDA" in found["DFTRACER_NOTHING"]


def test_a_forked_child_has_its_own(stand_in: StandIn, tmp_path: Path) -> None:
    """Its records are in its own trace, and its count begins at nothing."""
    run = run_traced(
        [
            stand_in.program, f"load={stand_in.now}", "pause=5", "times=100", "cudaMemcpyAsync=10,1,7",
            "times=1", "cudaDeviceSynchronize", "fork", "times=50", "cudaMemcpyAsync=10,1,7", "times=1",
            "cudaStreamSynchronize=0,0,1000000",
        ],
        tmp_path,
    )  # fmt: skip
    counted = {}
    for file in run.trace.files:
        names = [r.name for r in file.records if r.cat == "CUDA"]
        (end,) = [r for r in file.records if r.name == "end"]
        copies = names.count("cudaMemcpyAsync")
        counted[names[-1]] = end.args["cuda_short_calls"] + copies
        assert len(names) == copies + 1
    assert counted == {"cudaDeviceSynchronize": 100, "cudaStreamSynchronize": 50}


def test_threads(stand_in: StandIn, tmp_path: Path) -> None:
    """Calls at the same time: each is the record of its thread."""
    run = run_traced(
        [
            stand_in.program, f"load={stand_in.now}", "pause=5", "threads=4", "times=20",
            "cudaStreamSynchronize=0,0,1000000", "times=5000", "cudaMemcpyAsync=10,1,7",
        ],
        tmp_path,
    )  # fmt: skip
    by_thread: dict[int, int] = {}
    short = 20000
    for event in device_events(run):
        if event.name == "cudaStreamSynchronize":
            by_thread[event.tid] = by_thread.get(event.tid, 0) + 1
        else:
            short -= 1
    assert list(by_thread.values()) == [20] * 4
    assert end_of(run)["cuda_short_calls"] == short


def test_exit_in_a_call(stand_in: StandIn, tmp_path: Path) -> None:
    """A program that exits while a thread waits for the device ends as it does untraced."""
    run = run_traced(
        [
            stand_in.program, f"load={stand_in.now}", "cudaDeviceSynchronize",
            "exit_while=cudaMemcpyAsync,30000000",
        ],
        tmp_path,
        expect=3,
    )  # fmt: skip
    assert run.stderr == ""
    assert device_events(run)[0].name == "cudaDeviceSynchronize"
    assert "cuda_short_calls" in end_of(run)


def test_function_mode_restores_the_calls(stand_in: StandIn, tmp_path: Path) -> None:
    """From `initialize_log` to `finalize`, below the annotation that is open; before and after, nothing."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import ctypes, sys
            from dftracer.python import ai, dftracer
            lib = ctypes.CDLL(sys.argv[1])
            name = b"cudaDeviceSynchronize"
            lib.call_cuda(name, 0, 0, 0)
            for i in range(2):
                log = dftracer.initialize_log(f"{sys.argv[2]}/t{i}", None, -1)
                with ai.compute.forward:
                    lib.call_cuda(name, 0, 0, 0)
                log.finalize()
                lib.call_cuda(name, 0, 0, 0)
            """
        )
    )
    run = run_traced(
        [sys.executable, program, stand_in.lazy, tmp_path / "traces"],
        tmp_path,
        mode="FUNCTION",
        env={"DFTRACER_DISABLE_IO": "1"},
    )
    for file in run.trace.files:
        (forward,) = [r for r in file.records if r.name == "forward"]
        (call,) = [r for r in file.records if r.cat == "CUDA"]
        assert call.args["p_idx"] == forward.id
    assert len(run.trace.files) == 2


RANK = """
import ctypes, sys
rank, library = int(sys.argv[1]), ctypes.CDLL(sys.argv[2])
library.init_rank.restype = library.split.restype = library.init_rank_scalable.restype = ctypes.c_void_p
def call(name, comm, n=0, type=7, peer=0):
    return library.call_nccl(name, ctypes.c_void_p(comm), ctypes.c_long(n), type, peer)
world = library.init_rank(2, b"an id", rank)
assert world
for n in (1000, 2000):
    assert call(b"ncclAllReduce", world, n) == 0
assert call(b"ncclAllGather", world, 500, 9) == 0
assert call(b"ncclReduceScatter", world, 500, 6) == 0
assert call(b"ncclReduce", world, 10, 8) == 0
if rank == 0:
    assert call(b"ncclSend", world, 16, 4, 1) == 0
else:
    assert call(b"ncclRecv", world, 16, 4, 0) == 0
assert call(b"ncclBroadcast", world, 100, 0) == 0
half = library.split(ctypes.c_void_p(world), rank)
assert call(b"ncclAllReduce", half, 1) == 0
assert call(b"ncclGroupEnd", None) == 0
large = library.init_rank_scalable(2, b"another id", rank)
assert call(b"ncclAllReduce", large, 3) == 0
"""


def test_nccl_of_two_ranks(stand_in: StandIn, tmp_path: Path) -> None:
    """Bytes, the communicator by the same name on both, and the same numbers for the same calls."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    ranks = []
    for rank in range(2):
        run = run_traced(
            [sys.executable, program, str(rank), stand_in.lazy], tmp_path / str(rank),
            env={"DFTRACER_DISABLE_IO": "1"},
        )  # fmt: skip
        ranks.append([e for e in run.trace.events if e.cat == "comm"])
    expected = [
        ("init", None, None),
        ("all_reduce", 4000, 1),
        ("all_reduce", 8000, 2),
        ("all_gather", 1000, 3),
        ("reduce_scatter", 1000, 4),
        ("reduce", 80, 5),
        (("send", "recv"), 128, 1),
        ("broadcast", 100, 6),
        ("init", None, None),
        ("all_reduce", 4, 1),
        ("group_end", None, None),
        ("init", None, None),
        ("all_reduce", 12, 1),
    ]
    for rank, events in enumerate(ranks):
        found = [(e.name, e.args.get("bytes"), e.args.get("seq")) for e in events]
        assert found == [
            (name if isinstance(name, str) else name[rank], size, seq) for name, size, seq in expected
        ]
        assert all(e.args["below_python"] == 1 for e in events)
        assert all(e.args["stream"] == 7 for e in events if "seq" in e.args)
        assert all(e.args["ranks"] == 2 for e in events[1:8])
        assert events[6].args["peer"] == 1 - rank
    worlds = [{e.args["comm"] for e in events[1:8]} for events in ranks]
    assert worlds[0] == worlds[1]
    assert len(worlds[0]) == 1
    halves = [events[9].args["comm"] for events in ranks]
    assert halves[0] != halves[1]
    assert worlds[0].isdisjoint(halves)
    large = {events[-1].args["comm"] for events in ranks}
    assert len(large) == 1
    assert large.isdisjoint(worlds[0])


def test_a_collective_below_a_collective(stand_in: StandIn, tmp_path: Path) -> None:
    """What NCCL is asked to do by a recorded collective is its child: readers count one of the two."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import ctypes, sys
            from dftracer.python import ai, dftracer
            lib = ctypes.CDLL(sys.argv[1])
            log = dftracer.initialize_log(f"{sys.argv[2]}/t", None, -1)
            with ai.comm.all_reduce:
                lib.call_nccl(b"ncclAllReduce", ctypes.c_void_p(0x5000), ctypes.c_long(10), 7, 0)
            lib.call_nccl(b"ncclAllReduce", ctypes.c_void_p(0x5000), ctypes.c_long(10), 7, 0)
            log.finalize()
            """
        )
    )
    run = run_traced([sys.executable, program, stand_in.lazy, tmp_path / "traces"], tmp_path, mode="FUNCTION")
    outer, *inner = sorted((e for e in run.trace.events if e.cat == "comm"), key=lambda e: e.id)
    assert "below_python" not in outer.args
    assert [e.args["below_python"] for e in inner] == [1, 1]
    assert inner[0].args["p_idx"] == outer.id
    assert inner[1].args["p_idx"] != outer.id
    # Its creation was not seen: named by its address.
    assert [(e.args["comm"], e.args["seq"]) for e in inner] == [
        ("0000000000005000", 1),
        ("0000000000005000", 2),
    ]


def test_with_dftracer_run(stand_in: StandIn, tmp_path: Path) -> None:
    """The launcher traces them, too."""
    out = tmp_path / "out"
    subprocess.run(
        [
            sys.executable, "-m", "dftracer.cli", "run", "-o", out, "--", stand_in.program,
            f"load={stand_in.now}", "cudaDeviceSynchronize",
        ],
        env=clean_environment(), check=True, capture_output=True,
    )  # fmt: skip
    assert [e.name for e in read_directory(out).events if e.cat == "CUDA"] == ["cudaDeviceSynchronize"]
