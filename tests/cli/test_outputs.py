"""Commands never harm what they read: inputs stay, outputs appear whole, a live trace is left alone."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dftracer.cli.main import CommandError, main
from dftracer.cli.outputs import appearing
from dftracer.format.reader import read_trace
from dftracer.format.trace_names import find_files
from dftracer.format.writer import maker_of
from dftracer.link.discover import discover
from dftracer.load.find import find_torch_files
from dftracer.testing.synthetic import Process
from support.process import clean_environment


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Two ranks in one folder."""
    folder = tmp_path / "given"
    folder.mkdir()
    for rank in (0, 1):
        _process(10 + rank, rank).write(folder)
    return folder


def _process(pid: int, rank: int) -> Process:
    p = Process(pid, rank=rank, world_size=2)
    at = 0
    for step in range(5):
        at = p.step(step, at, 10, 20, epoch=1, step=step)
    return p


def _state(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def _events(path: Path) -> int:
    return sum(1 for e in read_trace([path]).events if e["cat"] == "dataloader")


@pytest.mark.parametrize(
    "words",
    [
        ["slice", "GIVEN", "-f", "-o", "GIVEN"],
        ["slice", "GIVEN/A", "-f", "-o", "GIVEN", "--cat", "nothing"],
        ["merge", "GIVEN/A", "GIVEN/B", "-f", "-o", "GIVEN/A"],
        ["merge", "GIVEN", "-f", "-o", "GIVEN/A"],
        ["merge", "GIVEN", "-f", "-o", "GIVEN/../given/A"],
        ["export", "GIVEN/A", "-f", "-o", "GIVEN/A"],
        ["export", "GIVEN", "-f", "--to", "csv", "-o", "GIVEN/B"],
        ["export", "GIVEN/B", "-f", "--to", "csv", "-o", "GIVEN/A"],
        ["repair", "GIVEN", "-f", "-o", "GIVEN"],
        ["query", "select 1", "GIVEN", "-f", "-o", "GIVEN/A"],
        ["report", "GIVEN", "-f", "-o", "GIVEN/A"],
        ["report", "GIVEN", "-f", "--html", "GIVEN/A"],
    ],
)
def test_no_command_writes_to_an_input(
    given: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = sorted(p.name for p in given.iterdir())
    before = _state(given)
    argv = [w.replace("GIVEN", str(given)).replace("/A", f"/{a}").replace("/B", f"/{b}") for w in words]
    assert main([*argv, "--no-cache"] if words[0] == "query" else argv) == 2
    assert _state(given) == before
    assert capsys.readouterr().err.count("\n") == 1


def test_an_input_is_known_by_any_of_its_names(given: Path, tmp_path: Path) -> None:
    """A link, symbolic or hard, is the same file."""
    a, b = sorted(given.iterdir())
    (tmp_path / "soft.pfw.gz").symlink_to(a)
    (tmp_path / "hard.pfw.gz").hardlink_to(a)
    before = _state(given)
    for name in ("soft.pfw.gz", "hard.pfw.gz"):
        assert main(["merge", str(a), str(b), "-f", "-o", str(tmp_path / name)]) == 2
    assert _state(given) == before


def test_force_replaces_earlier_outputs_and_no_recorded_trace(given: Path, tmp_path: Path) -> None:
    other = _process(99, 0).write(tmp_path, "kept")
    before = other.read_bytes()
    assert main(["merge", str(given), "-f", "-o", str(other)]) == 2
    assert other.read_bytes() == before
    out = tmp_path / "all.pfw.gz"
    for force in ([], ["-f"]):
        assert main(["merge", str(given), "-o", str(out), *force]) == 0
        assert maker_of(out) == "dftracer merge"
        assert _events(out) == 20
    assert main(["merge", str(given), "-o", str(out)]) == 2
    for verb in ("slice", "repair"):
        folder = tmp_path / verb
        for force in ([], ["-f"]):
            assert main([verb, str(given), "-o", str(folder), *force]) == 0
            assert sum(map(_events, folder.iterdir())) == 20


def _kineto(path: Path) -> Path:
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


def test_traces_of_pytorch_are_kept_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As inputs, and as traces of another collection that happen to have the name of an output."""
    folder, other = tmp_path / "collected", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
        _kineto(each / "kineto_trace_0.json.gz")
    (folder / "hta-notes.txt").touch()
    before = _state(tmp_path)
    export = ["export", str(folder), "--to", "hta", "-f", "-o"]
    for target in (folder, other):
        assert main([*export, str(target)]) == 2
        assert _state(tmp_path) == before
        assert capsys.readouterr().err.count("\n") == 1
    _process(10, 0).write(folder)
    before = _state(tmp_path)
    assert main(["export", str(folder), "-f", "-o", str(folder / "kineto_trace_0.json.gz")]) == 2
    assert _state(tmp_path) == before


def test_copies_of_pytorchs_traces_are_replaced_and_not_read(tmp_path: Path) -> None:
    _kineto(tmp_path / "kineto_trace_0.json.gz")
    for force in ([], ["-f"]):
        assert main(["export", str(tmp_path), "--to", "hta", "-o", str(tmp_path / "hta"), *force]) == 0
        assert [p.name for p in (tmp_path / "hta").glob("*.gz")] == ["kineto_trace_0.json.gz"]
        assert len(discover(tmp_path).ranks[0].activity) == 1
        assert find_torch_files([tmp_path])[0] == [tmp_path / "kineto_trace_0.json.gz"]
    assert len(discover(tmp_path / "hta").ranks[0].activity) == 1


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_kept(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two commands, or a command and a traced program, that want one name."""
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("first")
    for path in (new, old):
        with pytest.raises(CommandError, match="meanwhile"):
            _write_while_another_does(path)
        assert path.read_text() == "another's"
    with appearing(old) as place:
        place.write_text("last")
    assert old.read_text() == "last"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


def _write_while_another_does(path: Path) -> None:
    with appearing(path) as place:
        place.write_text("the command's")
        other = path.with_name("other")
        other.write_text("another's")
        other.replace(path)


def _no_links(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_an_output_within_the_input_folder_is_not_read_again(given: Path) -> None:
    for force in ([], ["-f"]):
        assert main(["merge", str(given), "-o", str(given / "all.pfw.gz"), *force]) == 0
        assert _events(given / "all.pfw.gz") == 20
    (given / "all.pfw.gz").unlink()
    for force in ([], ["-f"]):
        assert main(["slice", str(given), "-o", str(given / "part"), *force]) == 0
        assert sum(map(_events, (given / "part").iterdir())) == 20


@pytest.mark.parametrize("verb", ["slice", "repair"])
def test_equal_names_of_several_folders_stay_apart(tmp_path: Path, verb: str) -> None:
    for folder, pid in (("a", 5), ("b", 6)):
        (tmp_path / folder).mkdir()
        _process(pid, 0).write(tmp_path / folder, "t-0123456789abcdef-app")
    out = tmp_path / "out"
    assert main([verb, str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(out)]) == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "2-t-0123456789abcdef-app.pfw.gz",
        "t-0123456789abcdef-app.pfw.gz",
    ]
    assert {e["pid"] for e in read_trace(out).events} == {5, 6}


def test_what_a_crash_leaves_is_never_read(given: Path, tmp_path: Path) -> None:
    """The output appears when it is complete; its half is hidden, and of no trace's name."""
    out = given / "all.pfw.gz"

    def interrupted() -> None:
        with appearing(out) as place:
            place.write_bytes(b"half")
            assert not out.exists()
            assert place.parent == out.parent
            assert place not in find_files(given)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(list(given.iterdir())) == 2
    program = textwrap.dedent("""
        import os, signal, sys
        from dftracer.format import writer
        from dftracer.cli.main import CommandError, main
        add = writer.TraceWriter.add
        def dying(self, text, record):
            if self.records == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            add(self, text, record)
        writer.TraceWriter.add = dying
        main(sys.argv[1:])
    """)
    died = subprocess.run([sys.executable, "-c", program, "merge", str(given), "-o", str(out)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert not out.exists()
    assert len(find_files(given)) == 2
    # Earlier versions left such files.
    for name in (".x.tmp.pfw.gz", "x.tmp.pfw.gz", ".hidden.pfw"):
        (given / name).write_bytes(b"[\n")
    assert len(find_files(given)) == 2
    assert len(read_trace(given).paths) == 2


def _as_written(file: Path) -> tuple[int, int, int]:
    about = file.stat()  # when it was read is there, too
    return about.st_ino, about.st_size, about.st_mtime_ns


def test_in_place_keeps_the_damaged_file_and_leaves_whole_ones(given: Path) -> None:
    cut, whole = sorted(given.iterdir())
    data = cut.read_bytes()[:-20]
    cut.write_bytes(data)
    before = _as_written(whole)
    assert main(["repair", str(given), "--in-place"]) == 1
    assert _as_written(whole) == before
    assert (given / f"{cut.name}.original").read_bytes() == data
    assert maker_of(cut) is None  # it is still the recorder's
    assert not read_trace([cut]).problems.skipped
    cut.write_bytes(data)
    assert main(["repair", str(given), "--in-place"]) == 1
    assert (given / f"{cut.name}.original").read_bytes() == data
    assert (given / f"{cut.name}.original-2").exists()


_LIVE = """
import sys
from dftracer.python import ai, dftracer
log = dftracer.initialize_log(sys.argv[1], None, -1)
for i in range(2000):
    with ai.compute.forward:
        pass
from dftracer import _core
_core.flush()
print("ready", flush=True)
sys.stdin.readline()
for i in range(2000):
    with ai.compute.forward:
        pass
log.finalize()
"""


@pytest.mark.parametrize("ending", ["pfw", "pfw.gz"])
def test_a_live_trace_is_left_alone(tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = tmp_path / "live.pfw"
    env = clean_environment(DFTRACER_ENABLE="1", DFTRACER_TRACE_COMPRESSION=str(int(ending == "pfw.gz")))
    child = subprocess.Popen(
        [sys.executable, "-c", _LIVE, str(name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**env, "DFTRACER_DISABLE_IO": "1"},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    inodes = {p.name: p.stat().st_ino for p in find_files(tmp_path)}
    assert main(["repair", str(tmp_path), "--in-place"]) == 1
    assert "still being written" in capsys.readouterr().err
    assert {p.name: p.stat().st_ino for p in find_files(tmp_path)} == inodes
    child.communicate("go\n")
    assert child.returncode == 0
    events = [e for e in read_trace(tmp_path).events if e["name"].startswith("forward")]
    assert len(events) == 4000


def test_devices_and_pipes_are_written_to_and_not_replaced(given: Path) -> None:
    assert main(["export", str(given), "--to", "csv", "-f", "-o", os.devnull]) == 0
    assert not Path(os.devnull).is_file()
