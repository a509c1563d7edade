"""How the command behaves: encodings, narrow terminals, endings of names, defaults, completion, words."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dftracer._console import ascii_is_asked_for
from dftracer._packages import advice, extras, install_name, module_of, need
from dftracer._text import Column, fit
from dftracer.cli.commands.completion import _CATEGORIES
from dftracer.cli.main import build_parser, main, verb_names
from dftracer.python import ProfileCategory
from dftracer.testing.synthetic import Process, Run, training_run
from support.process import clean_environment


def dftracer(*args: str | Path, module: str = "dftracer", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *map(str, args)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=clean_environment(**env),
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return training_run(
        tmp_path_factory.mktemp("manners") / "run", events=6000, ranks=2, workers=1, steps_per_epoch=10
    )


def test_the_package_is_the_command(run: Run) -> None:
    a, b = (dftracer("info", run.directory, "--json", module=m).stdout for m in ("dftracer", "dftracer.cli"))
    assert a == b
    assert json.loads(a)["files"]
    assert dftracer("--version").stdout.startswith("dftracer ")


@pytest.mark.parametrize(
    "env",
    [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""}, {"LC_ALL": "POSIX"}],
    ids=["PYTHONIOENCODING", "LANG", "LC_ALL"],
)
@pytest.mark.parametrize("words", [["report"], ["info"], ["report", "--md"]], ids=" ".join)
def test_ascii_where_the_encoding_asks_for_it(run: Run, words: list[str], env: dict[str, str]) -> None:
    result = dftracer(*words, run.directory, **env)
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert re.search(r"\\[ux]", result.stdout) is None, "a sign of ours was escaped instead of replaced"
    if words == ["report"]:
        assert "####" in result.stdout


def test_unicode_where_it_does_not(run: Run) -> None:
    assert "█" in dftracer("report", run.directory, PYTHONIOENCODING="utf-8", LANG="C").stdout
    assert not ascii_is_asked_for({"LANG": "C.UTF-8"})
    assert not ascii_is_asked_for({})
    assert ascii_is_asked_for({"LANG": "C.UTF-8", "LC_ALL": "C"})


def test_data_for_programs_is_escaped_and_never_replaced(tmp_path: Path) -> None:
    p = Process(10, rank=0)
    p.span("compute", "a…b█", 10, 20)
    p.write(tmp_path)
    result = dftracer("report", tmp_path, "--json", PYTHONIOENCODING="ascii")
    assert result.stdout.isascii()
    assert "a…b█" in {row["name"] for row in json.loads(result.stdout)["names"]}
    rows = dftracer(
        "query", "select name from events", tmp_path, "--no-cache", PYTHONIOENCODING="ascii"
    ).stdout
    assert "a\\u2026b\\u2588" in rows


def _digits(text: str) -> set[str]:
    return set(re.findall(r"\d[\d .]*(?:ms|us|s|%|KiB|MiB|GiB|B)\b", text))


@pytest.mark.parametrize("verb", ["report", "info", "validate", "doctor"])
def test_sixty_columns_crop_no_number(run: Run, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.directory.parent)
    paths = [] if verb == "doctor" else [run.directory.name]
    narrow = dftracer(verb, *paths, *(["--quick"] if verb == "doctor" else []), COLUMNS="60")
    assert narrow.returncode == 0, narrow.stderr
    lines = narrow.stdout.splitlines()
    assert max(map(len, lines)) <= 60, max(lines, key=len)
    assert not [line for line in lines if re.search(r"\d…", line)], "a number is cut"
    if verb == "report":
        wide = dftracer(verb, *paths, COLUMNS="200").stdout
        assert "no room for" not in wide
        seconds = re.compile(r"(?m)^(?:forward|backward|all) +([\d.]+ [mu]?s) +([\d.]+ %)")
        assert seconds.findall(narrow.stdout) == seconds.findall(wide) != []


def test_sixty_columns_of_a_real_terminal(run: Run) -> None:
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", "60", "rows", "40"], stdin=theirs, check=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "dftracer", "report", str(run.directory)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={k: v for k, v in clean_environment(TERM="xterm").items() if k != "COLUMNS"},
    )
    os.close(theirs)
    got = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 60)
        try:
            piece = os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        got += piece
    assert child.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", got.decode())
    assert "Where the step time goes" in plain
    assert max(len(line.rstrip("\r")) for line in plain.splitlines()) <= 60
    os.close(ours)


def test_what_gives_way_in_a_table() -> None:
    columns = [Column("name", lead=True, tail=True), Column("n", right=True), Column("m", right=True, drop=1)]
    row = ["/a/very/long/path/to/file.npz", "123456789", "987654321"]
    assert fit(columns, [row], None).rows == [row]
    cut = fit(columns, [row], 45)
    assert cut.rows[0][0].endswith("file.npz")
    assert cut.rows[0][0].startswith("…")
    own = fit(columns, [row], 30)
    assert own.lead == 0
    assert own.rows == [row]
    less = fit(columns, [row], 18)
    assert less.dropped == ("m",)
    assert less.rows[0][1] == "123456789"


def test_the_ending_of_the_output_is_its_format(run: Run, tmp_path: Path) -> None:
    for ending, begins in ((".html", "<!doctype html>"), (".md", "**"), (".json", "{"), (".txt", "╭")):
        out = tmp_path / f"r{ending}"
        result = dftracer("report", run.directory, "-o", out)
        assert result.returncode == 0, result.stderr
        assert out.read_text().lstrip().lower().startswith(begins), ending
        assert "Where the step time" not in result.stdout
    assert json.loads((tmp_path / "r.json").read_text())["schema"]
    again = dftracer("report", run.directory, "-o", tmp_path / "r.html")
    assert again.returncode == 2
    assert "use -f to overwrite it" in again.stderr
    assert dftracer("report", run.directory, "--html", tmp_path / "r.html", "-f").returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["report", "-o", "r.pdf"],
        ["report", "-o", "r"],
        ["report", "--json", "-o", "r.md"],
        ["export", "-o", "t.xyz"],
        ["query", "select 1", "-o", "t.xyz"],
        ["merge", "-o", "t.zip"],
    ],
    ids=" ".join,
)
def test_an_ending_that_means_nothing_is_an_error(run: Run, tmp_path: Path, words: list[str]) -> None:
    verb, *rest = words
    result = subprocess.run(
        [sys.executable, "-m", "dftracer", verb, *rest, str(run.directory)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2, result.stdout
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--cat", "nonsense"],
        ["report", "--ranks", "99"],
        ["report", "--time", "99999:"],
        ["export", "--name", "nonsense", "-o", "OUT/t.json"],
        ["export", "--cat", "nonsense", "-o", "OUT/t.parquet"],
        ["slice", "--cat", "nonsense", "-o", "OUT/part"],
        ["slice", "--ranks", "99", "-o", "OUT/part"],
        ["query", "select count(*) from events", "--cat", "nonsense", "--no-cache"],
    ],
    ids=" ".join,
)
def test_an_empty_selection_is_an_error(
    run: Run, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *rest = (w.replace("OUT", str(tmp_path)) for w in words)
    assert main([verb, *rest, str(run.directory)]) == 2
    assert re.search("no (event|process|step)", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_every_option_says_its_default_and_every_verb_has_examples() -> None:
    verbs: Any = next(a for a in build_parser()._actions if hasattr(a, "choices") and a.dest == "verb")
    for name in verb_names():
        parser = verbs.choices[name]
        assert "dftracer" in parser.epilog
        for action in parser._actions:
            if action.option_strings and action.dest != "help":
                assert "default" in action.help, (name, action.option_strings)
        parser.format_help()


def _completed(*words: str) -> list[str]:
    script = dftracer("completion", "bash").stdout
    array = " ".join(f"'{w}'" for w in words)
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{script}\nCOMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _dftracer\n"
            "printf '%s\\n' \"${COMPREPLY[@]}\"",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_verbs_options_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.pfw").touch()
    monkeypatch.chdir(tmp_path)
    assert "report" in _completed("dftracer", "rep")
    assert _completed("dftracer", "report", "--ht") == ["--html"]
    assert _completed("dftracer", "export", "x", "--to", "p") == ["parquet", "perfetto"]
    assert _completed("dftracer", "export", "x", "--to", "=", "cs") == ["csv"]
    assert _completed("dftracer", "report", "x", "--cat", "P") == ["POSIX"]
    assert _completed("dftracer", "completion", "f") == ["fish"]
    assert _completed("dftracer", "collect", "--steps", "") == ["auto", "optimizer", "loader"]
    assert _completed("dftracer", "doctor", "--directory", "f") == ["folder"]
    for verb in ("run", "collect", "link", "repair", "slice"):
        assert _completed("dftracer", verb, "-o", "f") == ["folder"], verb
    assert set(_completed("dftracer", "report", "-o", "f")) == {"folder", "file.pfw"}
    assert set(_completed("dftracer", "report", "f")) == {"folder", "file.pfw"}
    assert "file.pfw" in _completed("dftracer", "run", "--", "fi")
    assert set(_CATEGORIES) == {c.value for c in ProfileCategory}


def test_fish_and_zsh_know_the_values() -> None:
    fish = dftracer("completion", "fish").stdout
    line = next(x for x in fish.splitlines() if "-l to" in x)
    assert "from export'" in line
    assert "parquet" in line
    assert "bashcompinit" in dftracer("completion", "zsh").stdout


def test_one_of_something_is_not_several(tmp_path: Path) -> None:
    p = Process(10, rank=0, world_size=1)
    p.span("compute", "one", 10, 20)
    (tmp_path / "one").mkdir()
    p.write(tmp_path / "one")
    result = dftracer("validate", tmp_path / "one").stdout
    assert result.startswith("1 file, ")
    merged = dftracer("merge", tmp_path / "one", "-o", tmp_path / "m.pfw.gz").stdout
    assert "of 1 file" in merged
    assert "files" not in merged
    only = ("--name", "one")
    assert "1 event\n" in dftracer("export", tmp_path / "one", *only, "-o", tmp_path / "t.csv").stdout
    assert "1 event in 1 file\n" in dftracer("slice", tmp_path / "one", "-o", tmp_path / "s").stdout
    assert "1 event  ·" in dftracer("report", tmp_path / "one", *only).stdout


def _refusing(module: str, tmp_path: Path) -> dict[str, str]:
    """An environment in which a module is not installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] == {module!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
    )
    return {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("polars", "polars", "analysis"), ("rich", "rich", "analysis"), ("numpy", "numpy", "analysis")],
)
def test_a_missing_package_is_named_as_one_installs_it(
    run: Run, tmp_path: Path, module: str, package: str, extra: str
) -> None:
    result = dftracer("report", run.directory, **_refusing(module, tmp_path))
    assert result.returncode == 3
    assert f"{package} is " in result.stderr
    assert f"pip install 'pydftracer[{extra}]'" in result.stderr


def test_protobuf_is_not_called_google(tmp_path: Path) -> None:
    code = "from dftracer.link.chakra import messages; messages()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean_environment(**_refusing("google", tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "protobuf is not installed: pip install 'pydftracer[link]'" in done.stderr
    assert install_name("yaml.loader") == "PyYAML"
    assert install_name("opentelemetry.sdk.metrics") == "opentelemetry-sdk"
    assert [module_of(name) for name in ("protobuf", "PyYAML")] == ["google.protobuf", "yaml"]
    assert advice("PyYAML") == "pip install PyYAML"
    assert advice("distributed") == "pip install 'pydftracer[dask]'"


def test_a_package_that_does_not_load_is_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfway.py").write_text("raise ImportError('libhalf.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as failed:
        need("halfway", "analysis")
    assert str(failed.value) == (
        "halfway (pydftracer[analysis]) is installed but does not load (libhalf.so: no such file):"
        " pip install --force-reinstall halfway"
    )


def _doctor(*paths: Path) -> dict[str, Any]:
    done = dftracer("doctor", "--json", PYTHONPATH=os.pathsep.join(map(str, paths)))
    result: dict[str, Any] = {c["check"]: c for c in json.loads(done.stdout)["checks"]}
    result["code"] = done.returncode
    return result


def test_doctor_knows_all_extras_and_tells_missing_from_broken_and_clashing(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "duckdb").mkdir(parents=True)
    (broken / "duckdb" / "__init__.py").write_text("raise OSError('libduck.so: no such file')")
    (broken / "msgspec").mkdir()
    (broken / "msgspec" / "__init__.py").write_text("import os; os.abort()")
    missing = broken / "accelerate-0.1.dist-info"  # older than what is asked for, and found first
    missing.mkdir()
    (missing / "METADATA").write_text("Metadata-Version: 2.1\nName: accelerate\nVersion: 0.1\n")
    other = broken / "dftracer_old-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: dftracer-old\nVersion: 1.0\n")
    (other / "RECORD").write_text("dftracer/__init__.py,,\n")
    result = _doctor(broken)
    assert {c.removeprefix("extra ") for c in result if c.startswith("extra ")} == set(extras())
    assert "test" not in extras()
    analysis = result["extra analysis"]
    assert not analysis["ok"]
    assert analysis["packages"]["duckdb"]["state"] == "broken"
    assert "libduck.so" in analysis["text"]
    assert "): pip install --force-reinstall duckdb" in analysis["text"]
    assert analysis["packages"]["rich"]["state"] == "ok"
    assert result["extra link"]["packages"]["msgspec"]["state"] == "broken"
    assert "signal 6" in result["extra link"]["text"]
    assert result["extra link"]["packages"]["protobuf"]["state"] == "ok"
    assert result["extra hf"]["packages"]["accelerate"]["state"] == "too old"
    assert not result["other packages"]["ok"]
    assert "dftracer-old 1.0" in result["other packages"]["text"]
    assert result["code"] == 1


def test_steps_are_cut_out_of_a_program_that_is_no_rank(tmp_path: Path) -> None:
    p = Process(10)
    at = 0
    for step in range(6):
        at = p.step(step, at, 10, 20)
    (tmp_path / "t").mkdir()
    p.write(tmp_path / "t")
    result = dftracer("slice", tmp_path / "t", "--steps", "2:3", "--json", "-o", tmp_path / "s")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["files"][0]["events"] >= 2


def test_an_unknown_option_leads_to_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", "somewhere", "--markdown"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith("usage: dftracer report")
    assert output.endswith(
        "dftracer report: unrecognized arguments: --markdown\nTry 'dftracer report --help'.\n"
    )
