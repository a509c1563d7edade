"""The trace says what `strace` says, call by call and byte by byte, for real programs."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from support.iotrace import FIXTURES, compile_c, run_traced, same_calls

# Calls that leave a program through a symbol of the C library, so that both sides see them one to one.
VISIBLE = frozenset(
    [
        "openat",
        "creat",
        "close",
        "read",
        "write",
        "pread64",
        "pwrite64",
        "readv",
        "writev",
        "preadv",
        "pwritev",
        "preadv2",
        "pwritev2",
        "lseek",
        "fsync",
        "fdatasync",
        "ftruncate",
        "truncate",
        "newfstatat",
        "statx",
        "unlink",
        "rename",
        "link",
        "symlink",
        "chmod",
        "fchmod",
        "dup",
        "dup2",
        "dup3",
        "flock",
        "copy_file_range",
        "sendfile",
        "mkdir",
        "rmdir",
        "fallocate",
        "fadvise64",
        "mmap",
        "access",
    ]
)

PYTHON_PROGRAMS = {
    "file objects in every mode": """
        import os
        for mode in ("wb", "ab", "r+b", "w+b", "a+b", "x+b"):
            name = "x.bin" if "x" in mode else "f.bin"
            with open(name, mode) as f:
                f.write(b"0123456789" * 1000); f.flush(); f.seek(0)
                if "+" in mode: f.read()
        with open("f.bin", "rb", buffering=0) as f:
            while f.read(4096): pass
        with open("t.txt", "w") as f: f.writelines(f"line {i}\\n" for i in range(1000))
        with open("t.txt") as f: assert sum(1 for _ in f) == 1000
        fd = os.open("f.bin", os.O_RDWR)
        os.pread(fd, 100, 10); os.pwrite(fd, b"zz", 5); os.readv(fd, [bytearray(10), bytearray(20)])
        os.writev(fd, [b"a", b"bc"]); os.lseek(fd, 0, 2); os.fsync(fd); os.fdatasync(fd); os.ftruncate(fd, 50)
        os.preadv(fd, [bytearray(7)], 3); os.pwritev(fd, [b"x", b"y"], 1); os.posix_fadvise(fd, 0, 0, 2)
        d = os.dup(fd); os.read(d, 5); os.close(d); os.close(fd)
        os.stat("f.bin"); os.lstat("f.bin"); os.access("f.bin", os.R_OK); os.chmod("f.bin", 0o600)
        os.truncate("f.bin", 10); os.link("f.bin", "g.bin"); os.rename("g.bin", "h.bin"); os.unlink("h.bin")
        try: os.open("missing.bin", os.O_RDONLY)
        except FileNotFoundError: pass
    """,
    "shutil": """
        import shutil, os
        open("a.bin", "wb").write(os.urandom(300_000))
        shutil.copy("a.bin", "b.bin"); shutil.copyfile("a.bin", "c.bin"); shutil.move("c.bin", "d.bin")
        fi, fo = os.open("a.bin", os.O_RDONLY), os.open("e.bin", os.O_WRONLY | os.O_CREAT)
        while os.sendfile(fo, fi, None, 65536): pass
        os.lseek(fi, 0, 0)
        while os.copy_file_range(fi, fo, 100_000): pass
    """,
    "numpy": """
        import numpy as np
        a = np.arange(50_000, dtype=np.float32)
        np.save("a.npy", a); assert (np.load("a.npy") == a).all()
        np.savez("a.npz", a=a, b=a); np.load("a.npz")["b"].sum()
        m = np.memmap("m.dat", dtype=np.float32, mode="w+", shape=a.shape); m[:] = a; m.flush(); del m
        np.load("a.npy", mmap_mode="r").sum()
        a.tofile("raw.bin"); np.fromfile("raw.bin", dtype=np.float32)
    """,
    "sqlite3": """
        import sqlite3
        db = sqlite3.connect("s.db")
        db.execute("create table t(a, b)")
        db.executemany("insert into t values(?, ?)", ((i, "x" * 50) for i in range(500)))
        db.commit(); assert db.execute("select count(*) from t").fetchone() == (500,); db.close()
    """,
    "torch": """
        import torch
        t = {"w": torch.arange(20_000.0), "b": torch.ones(3)}
        torch.save(t, "t.pt"); torch.load("t.pt"); torch.load("t.pt", mmap=True)["w"].sum()
    """,
    "h5py": """
        import h5py, numpy as np
        with h5py.File("h.h5", "w") as f: f.create_dataset("x", data=np.arange(100_000), chunks=(1000,))
        with h5py.File("h.h5", "r") as f: f["x"][5000:5010]
    """,
    "pyarrow": """
        import pyarrow as pa, pyarrow.parquet as pq
        pq.write_table(pa.table({"a": list(range(10_000))}), "t.parquet"); pq.read_table("t.parquet")
    """,
    "threads": """
        import os, threading
        def work(i):
            for k in range(200):
                fd = os.open(f"f{i}", os.O_RDWR | os.O_CREAT)
                os.write(fd, b"x" * (k + 1)); os.pread(fd, 64, 0); os.close(fd)
        ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in ts]; [t.join() for t in ts]
    """,
    "forked workers": """
        import os, multiprocessing as mp
        fd = os.open("shared.bin", os.O_RDWR | os.O_CREAT); os.write(fd, b"0" * 1000)
        def work(i):
            os.pread(fd, 10 + i, i)
            with open(f"w{i}.bin", "wb") as f: f.write(b"y" * i)
        mp.set_start_method("fork")
        ps = [mp.Process(target=work, args=(i,)) for i in range(4)]
        [p.start() for p in ps]; [p.join() for p in ps]; os.close(fd)
    """,
}
NEEDS = {"torch": "torch", "h5py": "h5py", "pyarrow": "pyarrow", "numpy": "numpy"}


@pytest.mark.parametrize("mode", ["PRELOAD", "FUNCTION", "HYBRID"])
@pytest.mark.parametrize("program", PYTHON_PROGRAMS)
def test_python_programs(program: str, mode: str, tmp_path: Path) -> None:
    """Every call and every byte of a Python program is in the trace."""
    if program in NEEDS:
        pytest.importorskip(NEEDS[program])
    if mode == "HYBRID" and program in {"torch", "h5py", "pyarrow", "sqlite3"}:
        pytest.skip("the libraries are covered by the two other modes")
    data = tmp_path / "data"
    data.mkdir()
    script = tmp_path / "program.py"
    prelude = ""
    if mode != "PRELOAD":
        named = str(tmp_path / "traces" / "named")
        prelude = "from dftracer.python import dftracer\n"
        prelude += f"log = dftracer.initialize_log({named!r}, None, -1)\n"
    script.write_text(prelude + textwrap.dedent(PYTHON_PROGRAMS[program]))
    run = run_traced([sys.executable, script], tmp_path, data=str(data), cwd=data, strace=True, mode=mode)
    # A torch for GPUs looks for their driver, also in the current folder; the loader's calls are not the program's.
    same_calls(run, data, VISIBLE, skip=frozenset({"libcuda.so.1"}))


@pytest.mark.parametrize("tool", ["cp", "dd", "sqlite3", "sh"])
def test_unmodified_programs(tool: str, tmp_path: Path) -> None:
    """Programs that know nothing of the tracer, and the processes they start."""
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    data = tmp_path / "data"
    data.mkdir()
    (data / "in.bin").write_bytes(b"q" * 200_000)
    argv = {
        "cp": ["cp", "in.bin", "out.bin"],
        "dd": ["dd", "if=in.bin", "of=out.bin", "bs=4096"],
        "sqlite3": ["sqlite3", "s.db", "create table t(a); insert into t values(1); select * from t;"],
        "sh": [
            "sh",
            "-c",
            "cat in.bin > out.bin; head -c 10 in.bin >> out.bin; (wc -c < in.bin) > n; rm out.bin",
        ],
    }[tool]
    run = run_traced(argv, tmp_path, data=str(data), cwd=data, strace=True)
    # Standard streams are flushed inside the C library: that is not ours to see.
    same_calls(run, data, VISIBLE, skip=frozenset({"n"}) if tool == "sh" else frozenset())


def test_every_call_of_a_c_program(tmp_path: Path) -> None:
    """One of each POSIX call, from C."""
    data = tmp_path / "data"
    data.mkdir()
    program = compile_c(FIXTURES / "each_call.c", tmp_path / "each_call", "-fno-builtin")
    run = run_traced([program, data], tmp_path, data=str(data), cwd=data, strace=True)
    same_calls(run, data, VISIBLE)
    expected = (FIXTURES / "each_call.txt").read_text().split()
    seen = {e.name for e in run.events}
    assert not set(expected) - seen
