"""Memory is bounded whatever a file unpacks to, its end is told as such, and no extra is needed to look."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from dftracer.cli.main import main
from dftracer.testing.synthetic import Process, training_run
from support.process import clean_environment

_EVENT = (
    '{"id":%d,"name":"read","cat":"POSIX","pid":7,"tid":7,"ts":%d,"dur":5,"ph":"X",'
    '"args":{"hhash":"6882804a826580cd","p_idx":-1,"level":1}}\n'
)
# Runs the command and says how much memory it held at most (`ru_maxrss` begins with what the parent held).
_MEASURED = """
import sys
from dftracer.cli.main import main
code = main(sys.argv[1:])
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0], file=sys.stderr)
sys.exit(code)
"""


def _packed(path: Path, *pieces: tuple[bytes, int]) -> Path:
    """Pieces of text, each many times over, in one gzip member."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        for piece, times in pieces:
            for _ in range(times):
                file.write(pack.compress(piece))
        file.write(pack.flush())
    return path


def _measured(*words: str | Path) -> tuple[subprocess.CompletedProcess[str], int]:
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *map(str, words)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        check=False,
    )
    return done, int(done.stderr.split()[-1]) >> 10


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line of 500 MB between two events, in half a megabyte."""
    folder = tmp_path_factory.mktemp("long")
    one = (_EVENT % (1, 10)).encode()
    return _packed(
        folder / "long.pfw.gz",
        (b"[\n" + one + b'{"name":"', 1),
        (b"x" * (1 << 20), 500),
        (b'"}\n' + one + b"]\n", 1),
    )


@pytest.mark.parametrize(
    "words",
    [
        ["info", "--json", "IN"],
        ["merge", "--json", "IN", "-o", "OUT/m.pfw.gz"],
        ["repair", "--json", "IN", "-o", "OUT"],
        ["slice", "--json", "IN", "-o", "OUT"],
    ],
)
def test_a_line_without_end_is_passed_over(long_line: Path, tmp_path: Path, words: list[str]) -> None:
    argv = [w.replace("IN", str(long_line)).replace("OUT", str(tmp_path)) for w in words]
    done, megabytes = _measured(*argv)
    assert done.returncode == (1 if words[0] in {"merge", "repair"} else 0), done.stderr
    result = json.loads(done.stdout)
    if words[0] == "info":
        assert result["files"][0]["events"] == 2
        assert "1 line is not a record" in result["files"][0]["problems"]
    elif words[0] == "merge":
        assert (result["records"], result["left_out"]) == (2, 1)
    else:
        assert result["files"][0].get("records", result["files"][0].get("events")) == 2
    assert megabytes < 200


def test_many_events_in_a_small_file_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Twelve million in 13 MB: they are read a chunk at a time, and what repeats is kept once."""
    block = "".join(_EVENT % (i, 1_760_000_000_000_000 + i) for i in range(100)).encode()
    path = _packed(tmp_path / "many.pfw.gz", (block, 120))
    path.write_bytes(path.read_bytes() * 1000)
    assert path.stat().st_size < 16 << 20
    done, megabytes = _measured("info", "--json", path)
    assert json.loads(done.stdout)["files"][0]["events"] == 12_000_000
    assert megabytes < 300
    done, megabytes = _measured("report", "--json", path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trace"]["events"] == 12_000_000
    assert megabytes < 800


def test_the_memory_of_a_report_does_not_grow_with_repeated_passes(tmp_path: Path) -> None:
    """Events that delimit something are kept, too, but those at the very same place once."""
    forward = _EVENT.replace('"read","cat":"POSIX"', '"forward","cat":"compute"')
    block = "".join(forward % (i, 1_760_000_000_000_000 + i) for i in range(100)).encode()
    piece = _packed(tmp_path / "piece.gz", (block, 120)).read_bytes()
    needed = []
    for members in (250, 750):
        path = tmp_path / f"{members}.pfw.gz"
        path.write_bytes(piece * members)
        done, megabytes = _measured("report", "--json", path)
        assert json.loads(done.stdout)["trace"]["events"] == members * 12_000, done.stderr
        needed.append(megabytes)
    assert needed[1] - needed[0] < 150


def test_an_export_holds_no_events(tmp_path: Path) -> None:
    events = 600_000
    lines = (_EVENT % (i, 1_760_000_000_000_000 + 9 * i) for i in range(events))
    path = _packed(tmp_path / "long.pfw.gz", ("".join(lines).encode(), 1))
    done, megabytes = _measured("export", path, "-o", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.json").read_bytes().count(b'"ph":"X"') == events
    assert megabytes < 250


def test_out_of_memory_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    run = training_run(tmp_path / "run", events=400_000, ranks=1, workers=0, steps_per_epoch=100)
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_DATA, (70 << 20, 70 << 20))\n" + _MEASURED
    done = subprocess.run(
        [sys.executable, "-c", limited, "export", str(run.directory), "-o", str(tmp_path / "out.json")],
        capture_output=True,
        text=True,
        env={**clean_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "out of memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*out*"))
    assert not list(tmp_path.glob(".*"))


def test_looking_at_traces_needs_no_extra(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    p = Process(10, rank=0, world_size=1)
    at = 0
    for step in range(6):
        at = p.step(step, at, 10, 20, epoch=1, step=step)
    p.write(given)
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('numpy', 'polars', 'pyarrow', 'duckdb', 'rich', 'msgspec'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from dftracer.cli.main import main\n"
        "for words in sys.argv[1:]:\n"
        "    code = main(words.split())\n"
        "    assert code == 0, (words, code)\n"
    )
    words = [
        f"info {given}",
        f"info --json {given}",
        f"validate {given}",
        f"merge {given} -o {tmp_path / 'm.pfw.gz'}",
        f"slice {given} -o {tmp_path / 'time'} --time 0:10",
        f"slice {given} -o {tmp_path / 'steps'} --steps 2:3",
        f"repair {given} -o {tmp_path / 'r'}",
        f"repair {given} --in-place",
    ]
    subprocess.run([sys.executable, "-c", program, *words], env=clean_environment(), check=True)
    # The labels give the same window as the analysis.
    assert main(["slice", str(given), "-o", str(tmp_path / "analyzed"), "--steps", "2:3"]) == 0
    bare, full = (next((tmp_path / d).iterdir()).read_bytes() for d in ("steps", "analyzed"))
    assert zlib.decompress(bare, 31) == zlib.decompress(full, 31)


def test_names_that_are_not_text_are_shown_escaped(tmp_path: Path) -> None:
    folder = Path(
        str(tmp_path).encode().decode("utf-8", "surrogateescape"),
        b"\xff\x01dir".decode("utf-8", "surrogateescape"),
    )
    folder.mkdir()
    Process(10, rank=0).write(folder, b"\xfe\xffname".decode("utf-8", "surrogateescape"))
    for words in (
        ["info"],
        ["info", "--json"],
        ["validate"],
        ["report", "--md"],
        ["report", "--json"],
        ["report"],
    ):
        done, _ = _measured(*words, folder)
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        if "--json" in words:
            json.loads(done.stdout)
    done, _ = _measured("query", "select count(*) n from events", folder)
    assert done.returncode == 0, done.stderr
