"""dftracer.testing: the events of a block, with the real recorder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from dftracer.testing import capture, read
from support.process import clean_environment

from dftracer.python import ai  # isort: skip - dftracer.testing comes first and turns tracing on

CLEAN = clean_environment()


def run(code: str, cwd: Path, **environ: str) -> str:
    """The output of a fresh interpreter that runs `code`."""
    return run_python(["-c", textwrap.dedent(code)], cwd, **environ)


def run_python(arguments: list[str], cwd: Path, **environ: str) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**CLEAN, "PYTHONPATH": ":".join(filter(None, sys.path)), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_events_of_the_block_are_there_after_it() -> None:
    with capture() as events:
        with ai.compute.forward:
            pass
        assert len(events) == 0
    assert [(event.name, event.cat) for event in events] == [("forward", "compute")]
    assert events[0].pid == os.getpid()
    assert events[0].tid == threading.get_native_id()
    assert events[0].dur >= 0


def test_only_the_events_of_the_block_are_there() -> None:
    with ai.compute.forward:
        pass
    with capture() as first, ai.compute.backward:
        pass
    with ai.compute.forward:
        pass
    with capture() as second, ai.compute.step:
        pass
    assert [event.name for event in first] == ["backward"]
    assert [event.name for event in second] == ["step"]


def test_parents_and_children_are_objects() -> None:
    with capture() as events, ai.pipeline.epoch:
        for _ in range(2):
            with ai.compute.forward:
                pass
    epoch = events.one("epoch")
    assert epoch.parent is None
    assert epoch.children == events.named("forward")
    assert epoch.level is not None
    assert [(c.parent, c.level) for c in epoch.children] == [(epoch, epoch.level + 1)] * 2
    assert [line.split()[0] for line in events.tree().splitlines()] == [
        "pipeline:epoch",
        "compute:forward",
        "compute:forward",
    ]


def test_args_are_the_users_alone() -> None:
    with capture() as events, ai.compute.forward(args={"batch": 3, "note": 'a\n"b"'}):
        pass
    args = events.one("forward").args
    assert (args["batch"], args["note"]) == (3, 'a\n"b"')
    assert not {"hhash", "p_idx", "level"} & args.keys()


def test_one_shows_what_was_recorded_instead() -> None:
    with capture() as events, ai.compute.forward:
        pass
    with pytest.raises(AssertionError, match=r"0 events named 'backward'(.|\n)*compute:forward"):
        events.one("backward")


def test_refresh_shows_events_inside_of_the_block() -> None:
    with capture() as events:
        with ai.compute.forward:
            pass
        events.refresh()
        assert [event.name for event in events] == ["forward"]
        with ai.compute.backward:
            pass
    assert [event.name for event in events] == ["forward", "backward"]


def test_refresh_behind_the_block_adds_nothing_of_this_process() -> None:
    with capture():
        with capture() as inner, ai.compute.forward:
            pass
        with ai.compute.backward:
            pass
        with capture() as empty:
            pass
        with ai.compute.step:
            pass
        for each in (inner, empty):
            each.refresh()
        assert [event.name for event in inner] == ["forward"]
        assert len(empty) == 0


def test_captures_nest() -> None:
    with capture() as outer:
        with ai.compute.forward:
            pass
        with capture() as inner, ai.compute.backward:
            pass
    assert [event.name for event in inner] == ["backward"]
    assert [event.name for event in outer] == ["forward", "backward"]


def test_an_exception_leaves_the_block_as_it_came() -> None:
    events = capture()
    with pytest.raises(ZeroDivisionError), events, ai.compute.forward:
        _ = 1 / 0
    assert events.one("forward").name == "forward"


def test_metadata_is_at_hand() -> None:
    with capture() as events:
        ai.pipeline.epoch.start(metadata=True)
        ai.pipeline.epoch.stop(metadata=True)
    names = [record["args"]["name"] for record in events.metadata if record["name"] == "CM"]
    assert names[-2:] == ["epoch.start", "epoch.end"]


WORKERS = """
import multiprocessing, sys
from dftracer.testing import capture
from dftracer.python import ai, dftracer

def work(step):
    ai.update(step=step)
    with ai.data.item:
        pass

if __name__ == "__main__":
    method, mode = sys.argv[1:]
    context = multiprocessing.get_context(method)
    if mode == "active":
        dftracer.initialize_log("run.pfw")
    with capture() as events:
        workers = [context.Process(target=work, args=(step,)) for step in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    items = sorted(events.named("item"), key=lambda item: item.args["step"])
    assert [item.args["step"] for item in items] == [0, 1], events
    assert [item.pid for item in items] == [worker.pid for worker in workers], events
    print("as expected")
"""


@pytest.mark.parametrize("mode", ["private", "active"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_events_of_workers_belong_to_the_block(method: str, mode: str, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    assert run_python([str(script), method, mode], tmp_path) == "as expected\n"


def test_within_an_active_session_the_events_also_stay_in_its_file(tmp_path: Path) -> None:
    code = """
        from dftracer.testing import capture
        from dftracer.python import ai, dftracer
        log = dftracer.initialize_log("run.pfw")
        with ai.compute.forward: pass
        with capture() as events:
            with ai.compute.backward: pass
        with ai.compute.step: pass
        log.finalize()
        print(*(event.name for event in events))
    """
    assert run(code, tmp_path).split() == ["backward"]
    assert [event.name for event in read(tmp_path)] == ["forward", "backward", "step"]
    assert not read(tmp_path).problems


def test_a_private_session_leaves_no_file_behind(tmp_path: Path) -> None:
    code = """
        from dftracer.testing import capture
        from dftracer.python import ai
        for _ in range(3):
            with capture() as events:
                with ai.compute.forward: pass
            print(len(events))
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert run(code, tmp_path, TMPDIR=str(scratch)).split() == ["1", "1", "1"]
    assert list(scratch.iterdir()) == []
    assert list(tmp_path.iterdir()) == [scratch]


def test_capture_says_when_tracing_was_off_at_import(tmp_path: Path) -> None:
    code = """
        import dftracer.python
        from dftracer.testing import capture
        try:
            with capture(): pass
        except RuntimeError as error:
            print(error)
    """
    assert "Import dftracer.testing first" in run(code, tmp_path)


def test_reading_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.pfw")
