"""The command `dftracer`, run as its users run it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dftracer.cli.main import _plain_run, build_parser, verb_names
from dftracer.load import Trace
from dftracer.testing.synthetic import Process, Run, training_run
from support import commands
from support.process import clean_environment
from support.trace import read_file

# In the process of the test; tests/cli/test_manners.py starts them.
READS = {"export", "info", "merge", "query", "repair", "report", "slice", "validate"}


def dftracer(
    *args: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    if args and args[0] in READS and not (cwd or env):
        return commands.dftracer(*args)
    clean = clean_environment()
    return subprocess.run(
        [sys.executable, "-m", "dftracer.cli", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**clean, **(env or {})},
        check=False,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return training_run(tmp_path / "run", events=6000, ranks=2, workers=1, steps_per_epoch=10)


def _json(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_every_verb_has_help_with_an_example_and_the_common_options() -> None:
    text = build_parser().format_help()
    assert build_parser(names_only=True).format_help() == text
    for verb in verb_names():
        assert verb in text
        answer = dftracer(verb, "--help").stdout
        assert "example: " in answer
        for option in ("-o", "-f", "-q", "-v", "--json"):
            assert option in answer


def test_bad_usage_and_bad_input_exit_with_2_and_say_what_to_do(tmp_path: Path) -> None:
    assert dftracer("nonsense").returncode == 2
    assert dftracer().returncode == 2
    for verb in ("report", "info", "validate"):
        missing = dftracer(verb, tmp_path / "nowhere")
        assert missing.returncode == 2
        assert "does not exist" in missing.stderr
    empty = dftracer("report", tmp_path)
    assert empty.returncode == 2
    assert "DFTRACER_ENABLE=1" in empty.stderr
    assert "Traceback" not in empty.stderr


def test_report_as_json_has_the_documented_keys(run: Run) -> None:
    answer = _json(dftracer("report", run.directory, "--json"))
    assert answer["trace"]["events"] == run.events
    assert answer["trace"].keys() >= {
        "events",
        "processes",
        "ranks",
        "span_s",
        "dropped",
        "truncated_files",
        "coverage",
    }
    assert answer["ledger"].keys() >= {"total", "ranks", "steps"}
    assert list(answer["ledger"]["total"]) == (
        [
            "fetch_wait",
            "read",
            "preprocess",
            "collate",
            "transfer",
            "forward",
            "backward",
            "optimizer",
            "comm",
            "checkpoint",
            "sync",
            "own_code",
            "other",
            "unexplained",
        ]
    )
    for finding in answer["findings"]:
        assert finding.keys() >= {"id", "severity", "seconds", "percent", "confidence", "evidence", "advice"}
    assert isinstance(answer["verdict"], str)
    assert answer["names"]
    assert answer["files"]
    assert answer["workers"]


def test_report_on_the_terminal_as_markdown_and_as_html(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    answer = dftracer("report", run.directory, "--html", page)
    assert answer.returncode == 0
    assert "Where the step time goes" in answer.stdout
    assert str(page) in answer.stdout.replace("\n", "")
    assert page.stat().st_size < 5_000_000
    short = dftracer("report", run.directory, "--md").stdout
    assert short.startswith("**")
    assert len(short) < 3000


def test_info_and_validate_tell_a_whole_trace_from_a_cut_one(run: Run, tmp_path: Path) -> None:
    assert sum(f["events"] for f in _json(dftracer("info", run.directory, "--json"))["files"]) == run.events
    assert dftracer("validate", run.directory).returncode == 0
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "a.pfw.gz").write_bytes(run.files[0].read_bytes()[:-500])
    answer = dftracer("validate", cut)
    assert answer.returncode == 1
    assert "cut" in answer.stdout
    fixed = tmp_path / "fixed"
    assert dftracer("repair", cut, "-o", fixed).returncode == 1
    again = _json(dftracer("info", fixed, "--json"))["files"][0]
    assert again["problems"] == [
        "the file it was copied from had 1 damaged gzip member",
        "no end record: killed, or still running",
    ]
    assert again["events"] == _json(dftracer("info", cut, "--json"))["files"][0]["events"]


def test_merge_keeps_every_record_and_the_report_stays_the_same(run: Run, tmp_path: Path) -> None:
    one = tmp_path / "one.pfw.gz"
    assert dftracer("merge", run.directory, "-o", one).returncode == 0
    a, b = (_json(dftracer("report", p, "--json")) for p in (run.directory, one))
    for key in ("ledger", "findings", "names", "files", "workers", "verdict"):
        assert a[key] == b[key]
    assert dftracer("merge", run.directory, "-o", one).returncode == 2  # exists
    assert dftracer("merge", run.directory, "-o", one, "-f").returncode == 0


def test_a_merged_file_is_filtered_by_rank_and_process_like_its_parts(run: Run, tmp_path: Path) -> None:
    one = tmp_path / "one.pfw.gz"
    assert dftracer("merge", run.directory, "-o", one).returncode == 0
    main = next(p.pid for p in Trace(run.directory).processes if p.rank == 1 and p.ppid == 1)
    for wanted in (["--ranks", "1"], ["--pids", str(main)]):
        a, b = (_json(dftracer("report", p, "--json", *wanted)) for p in (run.directory, one))
        for key in ("ledger", "findings", "names", "files", "workers", "verdict"):
            assert a[key] == b[key]
        assert a["trace"]["processes"] == b["trace"]["processes"]
        frames = [
            Trace(p, cache=False, ranks=[1] if "--ranks" in wanted else None, pids=[main])
            .polars()
            .drop("file")
            for p in (run.directory, one)
        ]
        assert frames[0].height > 0
        assert frames[0].sort("pid", "id").equals(frames[1].sort("pid", "id"))
        out = tmp_path / f"part{wanted[0]}"
        assert dftracer("slice", one, "--steps", "3:4", *wanted, "-o", out).returncode == 0
        steps = _json(dftracer("report", out, "--json"))["ledger"]["steps"]
        assert [(s["rank"], s["step"]) for s in steps] == [(1, 3), (1, 4)]


@pytest.mark.parametrize("content", [b"hello\nworld\n", b"", b"[\n", b"\x1f\x8b" + b"x" * 40])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.pfw"
    file.write_bytes(content)
    for more in ([], ["--json"], ["--md"]):
        answer = dftracer("report", file, *more)
        assert answer.returncode == 2
        assert "is not a dftracer trace" in answer.stderr or "is empty" in answer.stderr
        assert answer.stdout == ""


def test_asking_for_a_rank_that_is_not_there_says_which_are(run: Run) -> None:
    answer = dftracer("report", run.directory, "--ranks", "7")
    assert answer.returncode == 2
    assert "[0, 1]" in answer.stderr


def test_slice_by_steps_ranks_time_and_category(run: Run, tmp_path: Path) -> None:
    part = tmp_path / "part"
    assert dftracer("slice", run.directory, "--steps", "3:5", "--ranks", "1", "-o", part).returncode == 0
    steps = _json(dftracer("report", part, "--json"))["ledger"]["steps"]
    assert [(s["rank"], s["step"]) for s in steps] == [(1, 3), (1, 4), (1, 5)]
    only = tmp_path / "only"
    assert dftracer("slice", run.directory, "--cat", "compute", "-o", only).returncode == 0
    assert set(Trace(only, cache=False).polars()["cat"].cast(str).unique()) == {"compute", "dftracer"}
    early = tmp_path / "early"
    assert dftracer("slice", run.directory, "--time", "0:0.01", "-o", early).returncode == 0
    assert 0 < Trace(early, cache=False).arrow().num_rows < run.events / 4


def test_query_speaks_sql(run: Run, tmp_path: Path) -> None:
    sql = "select rank, count(*) as n from events where name = 'fetch.iter' group by rank order by rank"
    assert _json(dftracer("query", sql, run.directory, "--json")) == [
        {"rank": 0, "n": run.steps},
        {"rank": 1, "n": run.steps},
    ]
    out = tmp_path / "q.csv"
    assert dftracer("query", sql, run.directory, "-o", out).returncode == 0
    assert out.read_text().splitlines()[0] == "rank,n"
    wrong = dftracer("query", "select nothing from events", run.directory)
    assert wrong.returncode == 2
    assert "nothing" in wrong.stderr


@pytest.mark.parametrize("ending", ["json", "json.gz", "parquet", "csv", "arrow"])
def test_export_writes_all_events(run: Run, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"x.{ending}"
    assert _json(dftracer("export", run.directory, "-o", out, "--json"))["events"] == run.events
    assert out.stat().st_size > 0


def test_exported_lanes_never_overlap_and_time_is_relative(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    for i in range(20):  # tasks of one thread that cross each other
        p.span("user", "task", i * 10, 25, tid=5)
    p.span("user", "outer", 0, 500)
    p.span("user", "inner", 10, 100)
    p.write(tmp_path)
    out = tmp_path / "x.json"
    assert dftracer("export", tmp_path, "-o", out).returncode == 0
    events = json.loads(out.read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert min(e["ts"] for e in spans) == 0
    for lane in {e["tid"] for e in spans}:
        open_ends: list[int] = []
        for e in sorted((e for e in spans if e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"])):
            while open_ends and open_ends[-1] <= e["ts"]:
                open_ends.pop()
            assert not open_ends or e["ts"] + e["dur"] <= open_ends[-1]
            open_ends.append(e["ts"] + e["dur"])


def test_doctor_and_completion() -> None:
    command = str(Path(sys.executable).with_name("dftracer"))  # it passes on what Python would not know
    told = subprocess.run(
        [command, "doctor", "--quick", "--json"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(told.stdout)
    assert "no DFTRACER_ variable is set" in {c["text"] for c in answer["checks"] if c["check"] == "settings"}
    assert {c["check"] for c in answer["checks"]} >= {
        "python",
        "recorder",
        "reader",
        "clock",
        "interception",
        "extra torch",
    }
    for shell in ("bash", "zsh", "fish"):
        script = dftracer("completion", shell).stdout
        assert "report" in script
        assert "html" in script


SCRIPT = """
import os, sys, time
from dftracer.python import ai
for i in ai.dataloader.fetch.iter(range(4)):
    with ai.compute.forward:
        time.sleep(0.001)
sys.exit(int(sys.argv[1]))
"""


def test_run_traces_a_script_and_passes_its_exit_code_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    answer = dftracer("run", "-o", "traces", "--report", "--", "train.py", "7", cwd=tmp_path)
    assert answer.returncode == 7, answer.stderr
    assert "Where the step time goes" in answer.stdout
    names = Trace(tmp_path / "traces").polars()["name"].cast(str).to_list()
    assert names.count("forward") == 4


def test_run_takes_a_module_any_program_and_its_python_children(tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text(SCRIPT)
    assert (
        dftracer(
            "run", "-q", "-o", "m", "-m", "mod", "0", cwd=tmp_path, env={"PYTHONPATH": _path(tmp_path)}
        ).returncode
        == 0
    )
    assert len(Trace(tmp_path / "m").files) == 1
    shell = f"{sys.executable} mod.py 0; {sys.executable} mod.py 5"
    assert dftracer("run", "-o", "s", "--", "sh", "-c", shell, cwd=tmp_path).returncode == 5
    # The shell itself leaves a trace too, where I/O calls are intercepted.
    events = Trace(tmp_path / "s", cache=False).sql("select distinct pid from events where name = 'forward'")
    assert events.height == 2
    assert dftracer("run", "--", "no-such-program-at-all").returncode == 2


def test_run_records_the_io_of_a_program_that_knows_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("open('d.bin', 'wb').write(b'x' * 5000)\nopen('d.bin', 'rb').read()\n")
    assert dftracer("run", "-o", "t", "--", "plain.py", cwd=tmp_path).returncode == 0
    read = Trace(tmp_path / "t", cache=False).sql(
        "select sum(ret) as n from events where name = 'read' and path like '%/d.bin'"
    )
    assert read.item() == 5000
    answer = dftracer("run", "-o", "none", "--no-io", "--", "plain.py", cwd=tmp_path)
    assert "nothing was recorded" in answer.stderr
    assert "and --no-io left out the I/O" in answer.stderr


def _path(first: Path) -> str:
    return os.pathsep.join([str(first), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_run_says_so_when_the_program_is_killed(tmp_path: Path) -> None:
    kill = f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"
    assert dftracer("run", "-q", "--", sys.executable, "-c", kill, cwd=tmp_path).returncode == -signal.SIGKILL


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE'] = 'yes'")
    code = "import os, sys; sys.exit(0 if os.environ.get('MINE') == 'yes' else 1)"
    answer = dftracer(
        "run", "-q", "--", sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": _path(tmp_path)}
    )
    assert answer.returncode == 0


def test_a_sitecustomize_that_prints_does_not_cost_the_interception(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    (tmp_path / "data.txt").write_text("x")
    answer = dftracer(
        "run", "-q", "-o", "t", "--", "cat", "data.txt", cwd=tmp_path, env={"PYTHONPATH": _path(tmp_path)}
    )
    assert answer.returncode == 0
    assert len(Trace(tmp_path / "t").files) == 1


def test_a_missing_package_is_named_with_its_extra(run: Run, tmp_path: Path) -> None:
    (tmp_path / "polars.py").write_text("raise ImportError('no', name='polars')")
    answer = dftracer("report", run.directory, env={"PYTHONPATH": _path(tmp_path)})
    assert answer.returncode == 3
    assert "pydftracer[analysis]" in answer.stderr


GIVES_A_NAME = """
from dftracer.python import ai, dftracer
log = dftracer.initialize_log("own/t.pfw", None, -1)
with ai.compute: pass
"""


def test_run_has_a_directory_of_its_own(tmp_path: Path) -> None:
    """Two runs into the default folder do not mix."""
    (tmp_path / "train.py").write_text("from dftracer.python import ai\nwith ai.compute: pass\n")
    for count in (1, 2):
        answer = dftracer("run", "--no-io", "--", "train.py", cwd=tmp_path)
        folders = sorted((tmp_path / "traces").iterdir())
        assert len(folders) == count
        assert f"1 trace file: traces/{folders[-1].name}/" in answer.stderr
        (file,) = folders[-1].iterdir()
        (host,) = [r for r in read_file(file).records if r.name == "HH"]
        assert host.args["run"] == folders[-1].name


def test_run_follows_the_name_that_the_program_gives(tmp_path: Path) -> None:
    """The trace is where the program wants it, and `run` says where; its own folder does not stay behind."""
    (tmp_path / "train.py").write_text(GIVES_A_NAME)
    answer = dftracer("run", "--report", "--no-io", "--", "train.py", cwd=tmp_path)
    assert "dftracer run: 1 trace file: own/t.pfw.gz" in answer.stderr
    assert "nothing was recorded" not in answer.stderr
    assert answer.returncode == 0
    assert not (tmp_path / "traces").exists()
    again = dftracer("run", "-o", "out", "--no-io", "--", "train.py", cwd=tmp_path)
    assert "dftracer run: 1 trace file: own/t.pfw.gz" in again.stderr, "the newest run's"
    assert len(list((tmp_path / "own").iterdir())) == 2


def test_run_hands_a_settings_file_to_preloaded_programs(tmp_path: Path) -> None:
    """The library reads no files; `run` does."""
    settings = tmp_path / "settings.toml"
    settings.write_text("trace_compression = false\n")
    env = {"DFTRACER_CONFIGURATION": str(settings), "PMI_RANK": "2", "PMI_SIZE": "4"}
    dftracer("run", "-q", "-o", "t", "--", "cp", "/etc/passwd", "copy", cwd=tmp_path, env=env)
    files = list((tmp_path / "t").iterdir())
    assert {f.suffix for f in files} == {".pfw"}
    for file in files:
        facts = {r.args["name"]: r.args["value"] for r in read_file(file).records if r.name == "PR"}
        assert (facts["rank"], facts["world_size"], facts["launcher"]) == ("2", "4", "pmi")


# --- The program waits for what `run` does before


# Each takes longer to load than all that `run` does itself, or loads one that does.
SLOW_TO_LOAD = frozenset(
    [
        "argparse",
        "collections",
        "contextlib",
        "dataclasses",
        "enum",
        "functools",
        "gettext",
        "hashlib",
        "importlib.util",
        "json",
        "locale",
        "pathlib",
        "re",
        "select",
        "shlex",
        "shutil",
        "signal",
        "subprocess",
        "textwrap",
        "threading",
        "typing",
        "urllib.parse",
    ]
)


def _loaded(*command: str, cwd: Path) -> set[str]:
    """The modules that the interpreter says it has loaded."""
    env = clean_environment(PYTHONPROFILEIMPORTTIME="1")
    answer = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True).stderr
    return {
        line.rpartition("|")[2].strip() for line in answer.splitlines() if line.startswith("import time:")
    }


@pytest.mark.parametrize("options", [[], ["-o", "out", "--name", "n", "--tag", "a=b", "--blackbox"]])
@pytest.mark.parametrize("program", [["true"], [sys.executable, "-c", "pass"]])
def test_nothing_that_takes_long_is_loaded_before_the_program(
    options: list[str], program: list[str], tmp_path: Path
) -> None:
    """Neither by the command nor, where the program is Python, in the program's process."""
    launched = [sys.executable, "-P", "-c", "from dftracer.cli import launched; launched()", "dftracer"]
    loaded = _loaded(*launched, "run", "-q", *options, "--", *program, cwd=tmp_path)
    assert "dftracer.cli.commands.run" in loaded
    assert ("dftracer.auto" in loaded) == (program != ["true"])
    of_itself = _loaded(sys.executable, "-c", "pass", cwd=tmp_path)  # what the environment's .pth files load
    assert loaded & SLOW_TO_LOAD - of_itself == set()


WRITTEN_BY_PIP = r"""# -*- coding: utf-8 -*-
import re
import sys
from dftracer.cli import main
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\.pyw|\.exe)?$', '', sys.argv[0])
    sys.exit(main())
"""


@pytest.mark.parametrize(
    ("verb", "flags", "text", "directly"),
    [
        ("run", "", WRITTEN_BY_PIP, True),
        ("report", "", WRITTEN_BY_PIP, False),
        ("run", " -s", WRITTEN_BY_PIP, False),
        ("run", "", "import site\n" + WRITTEN_BY_PIP, False),
        ("run", "", "import sys\nfrom dftracer.cli import main\nsys.exit(main())\n", False),
    ],
)
def test_the_launcher_leaves_out_only_a_script_that_it_knows(
    verb: str, flags: str, text: str, directly: bool, tmp_path: Path
) -> None:
    """Who installs may write another one, with options, with paths of its own: then that is run."""
    interpreter = tmp_path / "python"
    interpreter.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    script = tmp_path / "dftracer-python"
    script.write_text(f"#!{interpreter}{flags}\n{text}")
    for each in (interpreter, script):
        each.chmod(0o755)
    launcher = shutil.copy(Path(sys.executable).with_name("dftracer"), tmp_path / "dftracer")
    done = subprocess.run([launcher, verb, "-q", "a b"], capture_output=True, text=True, check=True)
    first = ["-P", "-c", "from dftracer.cli import launched; launched()"] if directly else flags.split()
    assert done.stdout.splitlines() == [*first, str(script), verb, "-q", "a b"]


@pytest.mark.parametrize(
    "words",
    [
        ["--", "true"],
        ["true"],
        ["-q", "true", "-q", "--name"],
        ["-q", "--", "true", "--", "-q", "", "--json"],
        ["-o", "x y", "--output", "z", "--force", "-v", "--json", "--", "true"],
        ["--tag", "a=b", "--name", "n", "--tag", "c=d", "--blackbox", "--modules", "--keep", "true"],
        ["--no-io", "--no-auto", "--data-dir", "a:b", "--report", "--html", "f.html", "-m", "module", "-x"],
    ],
)
def test_plain_words_mean_the_same_without_argparse(words: list[str]) -> None:
    plain = _plain_run(["run", *words])
    args, unknown = build_parser("run").parse_known_args(["run", *words])
    assert unknown == []
    expected = vars(args)
    for name in ("refuse", "run_verb"):
        del expected[name]
    given = {name: value for name, value in vars(plain).items() if name != "run_verb"}
    for each in (expected, given):  # some versions of argparse leave the first -- out
        each["program"] = each["program"][each["program"][:1] == ["--"] :]
    assert given == expected


@pytest.mark.parametrize(
    "words",
    [
        "",
        "-q",
        "-h",
        "-q --help -- true",
        "-qv true",
        "-oout true",
        "--name=n true",
        "--rep true",
        "--nonsense x",
        "-o",
        "-o -- true",
        "--name -q true",
        "- true",
    ],
)
def test_words_that_are_not_plain_are_left_to_argparse(words: str) -> None:
    assert _plain_run(["run", *words.split()]) is None
    assert _plain_run(["run", "-o", "", "true"]) is None
    assert _plain_run(["run", "", "true"]) is None
