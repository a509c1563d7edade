"""FUNCTION, PRELOAD and HYBRID: when tracing begins, when it ends, what it is part of."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from support.iotrace import FIXTURES, compile_c, preload_library, run_traced
from support.process import clean_environment
from support.trace import read_directory


def script(tmp_path: Path, text: str) -> Path:
    """A program file."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    return file


def test_preload_prints_the_library() -> None:
    """`python -m dftracer.preload` prints a path that exists."""
    assert Path(preload_library()).exists()


def test_settings_file_for_preloaded_programs(tmp_path: Path) -> None:
    """`--env` hands a settings file on to programs that cannot read it; the environment still wins."""
    data = tmp_path / "the data"
    data.mkdir()
    settings = tmp_path / "settings.toml"
    settings.write_text(f'data_dir = "{data}"\ntrace_compression = false\nflush_ms = 50\n')
    env = clean_environment()
    env |= {"DFTRACER_CONFIGURATION": str(settings), "DFTRACER_LOG_FILE": str(tmp_path / "traces" / "t")}
    text = subprocess.run(
        [sys.executable, "-m", "dftracer.preload", "--env"],
        env={**env, "DFTRACER_FLUSH_MS": "20"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DFTRACER_FLUSH_MS=20" in text
    script = f'{text}\ncp /etc/passwd "$1/copy"; cat /etc/hostname > "$1/../outside"'
    subprocess.run(["sh", "-c", script, "sh", data], env=env, check=True)
    trace = read_directory(tmp_path / "traces")
    assert {f.path.suffix for f in trace.files} == {".pfw"}
    named = [r.raw["args"]["name"] for f in trace.files for r in f.records if r.name == "FH"]
    assert str(data / "copy") in named
    assert not any("outside" in name for name in named)


def test_function_mode_begins_and_ends_with_the_log(tmp_path: Path) -> None:
    """Before `initialize_log` and after `finalize` nothing is traced; data_dir is that of the call."""
    program = script(
        tmp_path,
        """
        import os, sys
        from dftracer.python import dftracer, ai
        def touch(name):
            with open(os.path.join(sys.argv[1], name), "wb") as f: f.write(b"1")
        touch("before")
        log = dftracer.initialize_log(sys.argv[2], sys.argv[1], -1)
        with ai.data.item:
            touch("during")
        log.finalize()
        touch("after")
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    trace = tmp_path / "traces" / "named"
    run = run_traced([sys.executable, program, data, trace], tmp_path, mode="FUNCTION", data="/nowhere")
    assert set(run.paths.values()) - {str(tmp_path)} == {str(data / "during")}
    assert sorted(p.name for p in run.traces.iterdir()) == ["named.pfw.gz"]
    item = read_directory(run.traces).one("item")
    assert {e.raw["args"]["p_idx"] for e in run.on(data / "during")} == {item.id}
    assert {e.raw["args"]["level"] for e in run.on(data / "during")} == {2}


def test_finalize_restores_every_slot(tmp_path: Path) -> None:
    """After finalize the process is as it was: a second session works as the first."""
    program = script(
        tmp_path,
        """
        import os, sys
        from dftracer.python import dftracer
        for i in range(3):
            log = dftracer.initialize_log(f"{sys.argv[1]}/t{i}", None, -1)
            open(f"{sys.argv[2]}/f{i}", "w").close()
            log.finalize()
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    run = run_traced(
        [sys.executable, program, tmp_path / "traces", data], tmp_path, mode="FUNCTION", data=str(data)
    )
    for i in range(3):
        assert run.names_on(data / f"f{i}").count("open") == 1


def test_hybrid_is_one_file_and_loses_nothing(tmp_path: Path) -> None:
    """Preloaded and annotated: what came before `initialize_log` is in the file it names."""
    program = script(
        tmp_path,
        """
        import sys
        open(sys.argv[1] + "/early", "w").close()
        from dftracer.python import dftracer, ai
        log = dftracer.initialize_log(sys.argv[2], None, -1)
        with ai.compute.forward:
            open(sys.argv[1] + "/late", "w").close()
        log.finalize()
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    named = tmp_path / "traces" / "hybrid"
    run = run_traced([sys.executable, program, data, named], tmp_path, mode="HYBRID", data=str(data))
    assert [p.name for p in run.traces.iterdir()] == ["hybrid.pfw.gz"]
    assert "open" in run.names_on(data / "early")
    assert (
        run.on(data / "late", "open")[0].raw["args"]["p_idx"] == read_directory(run.traces).one("forward").id
    )


def test_switches(tmp_path: Path) -> None:
    """DISABLE_IO, _POSIX and _STDIO do what they say."""
    data = tmp_path / "data"
    data.mkdir()
    program = compile_c(FIXTURES / "mixed_threads.c", tmp_path / "mixed")
    for number, (switch, cats) in enumerate(
        {
            "DFTRACER_DISABLE_POSIX": {"STDIO"},
            "DFTRACER_DISABLE_STDIO": {"POSIX"},
            "DFTRACER_DISABLE_IO": set(),
        }.items()
    ):
        base = tmp_path / str(number)
        base.mkdir()
        run = run_traced([program, data, "1", "2"], base, data=str(data), env={switch: "1"})
        assert {e.cat for e in run.events} == cats


def test_disabled_by_enable(tmp_path: Path) -> None:
    """An explicit DFTRACER_ENABLE=0 wins over the preloaded library."""
    run = run_traced(["cp", "/etc/passwd", tmp_path / "x"], tmp_path, env={"DFTRACER_ENABLE": "0"})
    assert list(run.traces.iterdir()) == []


def test_library_loaded_later(tmp_path: Path) -> None:
    """A library that is loaded while the session runs, found by its own RPATH, is traced too."""
    data = tmp_path / "data"
    lib, deps = tmp_path / "lib", tmp_path / "lib" / "deps"
    for folder in (data, lib, deps):
        folder.mkdir()
    compile_c(FIXTURES / "dependency.c", deps / "libdependency.so", "-shared", "-fPIC")
    compile_c(
        FIXTURES / "plugin.c", lib / "libplugin.so", "-shared", "-fPIC", f"-L{deps}", "-ldependency",
        "-Wl,-rpath,$ORIGIN/deps",
    )  # fmt: skip
    loader = compile_c(FIXTURES / "loader.c", tmp_path / "loader", f"-Wl,-rpath,{lib}")
    run = run_traced([loader, "libplugin.so", data / "from_plugin"], tmp_path, data=str(data))
    assert run.stdout == "done\n"
    assert run.names_on(data / "from_plugin") == ["open", "write", "close"]


def test_vfork_children_do_not_touch_our_memory(tmp_path: Path) -> None:
    """subprocess with close_fds: the child's closes are not the parent's."""
    program = script(
        tmp_path,
        """
        import os, subprocess, sys
        f = open(sys.argv[1] + "/kept", "wb", buffering=0)
        for _ in range(5):
            subprocess.run(["true"], close_fds=True, check=True)
            os.posix_spawn("/bin/true", ["true"], os.environ); os.wait()
            f.write(b"abc")
        print("ok")
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    run = run_traced([sys.executable, program, data], tmp_path, data=str(data))
    assert run.stdout == "ok\n"
    parent = run.on(data / "kept", "write")
    assert len(parent) == 5
    assert len({e.raw["pid"] for e in parent}) == 1


def test_exec_keeps_what_came_before(tmp_path: Path) -> None:
    """A process that replaces itself leaves its trace, and the new program its own."""
    program = script(
        tmp_path,
        """
        import os, sys
        open(sys.argv[1] + "/old", "w").close()
        os.execv("/bin/sh", ["sh", "-c", f"echo x > {sys.argv[1]}/new"])
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    run = run_traced([sys.executable, program, data], tmp_path, data=str(data))
    assert "open" in run.names_on(data / "old")
    assert "open" in run.names_on(data / "new")
    assert [e for e in run.events if e.name == "execve"]


def test_killed_processes_keep_their_events(tmp_path: Path) -> None:
    """kill -9, abort and a segmentation fault lose nothing that was recorded."""
    for number, how in enumerate(
        ["os.kill(os.getpid(), 9)", "os.abort()", "__import__('ctypes').string_at(0)"]
    ):
        base = tmp_path / str(number)
        data = base / "data"
        data.mkdir(parents=True)
        program = script(
            base,
            f"""
            import os, sys
            for i in range(100):
                fd = os.open(sys.argv[1] + "/f", os.O_CREAT | os.O_RDWR); os.write(fd, b"x" * i); os.close(fd)
            {how}
            """,
        )
        run = run_traced([sys.executable, program, data], base, data=str(data), expect=None)
        assert run.returncode != 0
        assert run.names_on(data / "f").count("write") == 100
        ids = [e.raw["id"] for e in run.events]
        assert len(set(ids)) == len(ids)


def test_calls_of_all_threads_are_numbered_without_gaps(tmp_path: Path) -> None:
    """Their ids are given when they are written, those of other records when they are made."""
    data = tmp_path / "data"
    data.mkdir()
    program = script(
        tmp_path,
        """
        import os, sys, threading
        def work(name):
            for _ in range(2000):
                os.close(os.open(sys.argv[1] + name, os.O_CREAT | os.O_RDWR))
        threads = [threading.Thread(target=work, args=(f"/{i}",)) for i in range(3)]
        for t in threads: t.start()
        for t in threads: t.join()
        """,
    )
    run = run_traced([sys.executable, program, data], tmp_path, data=str(data))
    assert sum(e.name == "close" for e in run.events) >= 6000
    for file in read_directory(run.traces).files:
        assert sorted(r.id for r in file.records) == list(range(1, len(file.records) + 1))


def test_workers_of_all_start_methods(tmp_path: Path) -> None:
    """fork, spawn and forkserver workers trace their I/O in FUNCTION mode."""
    for method in ("fork", "spawn", "forkserver"):
        base = tmp_path / method
        data = base / "data"
        data.mkdir(parents=True)
        program = script(
            base,
            f"""
            import multiprocessing as mp, os, sys
            from dftracer.python import dftracer
            def work(name):
                with open(name, "wb") as f: f.write(b"w")
            if __name__ == "__main__":
                log = dftracer.initialize_log(sys.argv[2], sys.argv[1], -1)
                with mp.get_context({method!r}).Pool(2) as pool:
                    pool.map(work, [f"{{sys.argv[1]}}/w{{i}}" for i in range(6)], chunksize=1)
                log.finalize()
            """,
        )
        run = run_traced([sys.executable, program, data, base / "traces" / "log"], base, mode="FUNCTION")
        for i in range(6):
            assert run.names_on(data / f"w{i}").count("write") == 1, method


def test_mapping_is_recorded_and_its_bytes_are_not_invented(tmp_path: Path) -> None:
    """mmap: one event for the mapping, no reads."""
    program = script(
        tmp_path,
        """
        import mmap, sys
        with open(sys.argv[1], "rb") as f:
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m: sum(m[::4096])
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    (data / "m").write_bytes(os.urandom(100_000))
    run = run_traced([sys.executable, program, data / "m"], tmp_path, data=str(data))
    names = run.names_on(data / "m")
    assert names.count("mmap") == 1
    assert "read" not in names
    assert run.on(data / "m", "mmap")[0].raw["args"]["size"] == 100_000


def test_the_trace_says_what_it_cannot_see(tmp_path: Path) -> None:
    """The closing record tells what was patched and what is invisible."""
    run = run_traced(["cp", "/etc/passwd", tmp_path / "x"], tmp_path, data=str(tmp_path))
    [file] = read_directory(run.traces).files
    end = next(r for r in file.records if r.name == "end").raw["args"]
    assert end["io_patched_calls"] > 10
    assert "io_uring" in end["io_invisible"]


def test_names_again_in_every_part_of_a_rotated_trace(tmp_path: Path) -> None:
    """A part of a rotated trace explains its own hashes."""
    program = script(
        tmp_path,
        """
        import os, sys
        fd = os.open(sys.argv[1] + "/f", os.O_CREAT | os.O_RDWR)
        for i in range(60_000): os.pwrite(fd, b"x" * (i % 97), i * 7919 % 100_003)
        """,
    )
    data = tmp_path / "data"
    data.mkdir()
    run = run_traced(
        [sys.executable, program, data], tmp_path, data=str(data),
        env={"DFTRACER_ROTATE_SIZE": "128K", "DFTRACER_MAX_STALL_US": "1000000"},
    )  # fmt: skip
    files = read_directory(run.traces).files
    assert len(files) > 1
    for file in files:
        named = {r.raw["args"]["value"] for r in file.records if r.name == "FH"}
        assert {r.raw["args"]["fhash"] for r in file.records if r.cat == "POSIX"} <= named


def test_subprocess_environment_is_enough(tmp_path: Path) -> None:
    """The command line of the documentation works as written."""
    out = tmp_path / "out"
    env = {
        **os.environ,
        "LD_PRELOAD": preload_library(),
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_LOG_FILE": str(out / "t"),
    }
    env.pop("DFTRACER_ENABLE", None)
    subprocess.run(["cp", "/etc/passwd", str(tmp_path / "copy")], env=env, check=True)
    assert len(list(out.glob("*.pfw.gz"))) == 1
