"""Every code block of the AI guide runs as written and leaves the events it promises."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.guide_blocks import NAMES, SEEDS, Block, as_python, plain_text_rest, recorded_blocks, rst_blocks
from compat.guide_context import CONTEXT
from compat.guide_expectations import EXPECTED, run_in_cwd
from support.process import Run, clean_environment

ORIGINAL = next(SEEDS.glob("000_*.txt"), None) if SEEDS.is_dir() else None
PLAIN = next(SEEDS.glob("001_*.txt"), None) if SEEDS.is_dir() else None
BLOCKS = {b.name: b for b in (rst_blocks(ORIGINAL) if ORIGINAL else recorded_blocks())}
PROGRAMS = [name for name in NAMES if BLOCKS[name].language == "python"]


def _program(block: Block) -> str:
    context = CONTEXT[block.name]
    return f"{context.before}\n{as_python(block)}\n{context.after}"


def test_every_program_of_the_guide_has_an_expectation() -> None:
    """No block is left out."""
    assert set(PROGRAMS) == set(CONTEXT) == set(EXPECTED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_block_runs_as_written(name: str, program: Callable[..., Run]) -> None:
    """The block, in a process of its own, writes exactly the events it documents."""
    EXPECTED[name](program(_program(BLOCKS[name])))


@pytest.mark.parametrize("name", PROGRAMS)
def test_block_runs_with_tracing_off(name: str, program: Callable[..., Run]) -> None:
    """Without DFTRACER_ENABLE the same program works and writes nothing."""
    run = program(_program(BLOCKS[name]), enable=False)
    assert [p for p in run.written if p != "cwd/data.npy"] == []
    assert run.stderr == ""


def test_setup_with_the_shell_line_of_the_guide(tmp_path: Path) -> None:
    """The `export` line followed by the set-up block and one event gives the named file."""
    script = tmp_path / "p.py"
    script.write_text(as_python(BLOCKS["setup"]).replace("df_logger.finalize()", "with ai.data:\n    pass\n"))
    shell = f'{BLOCKS["enable"].text}\npython "{script}"\n'
    env = clean_environment()
    env["PATH"] = f"{Path(__import__('sys').executable).parent}:{env['PATH']}"
    subprocess.run(["bash", "-ec", shell], cwd=tmp_path, env=env, check=True)
    run = Run(0, "", "", tmp_path, tmp_path)
    assert [e.name for e in run.trace.events] == ["data"]
    assert (tmp_path / "ai_trace.pfw.gz").is_file()


def test_training_block_with_a_plain_range(program: Callable[..., Run]) -> None:
    """The block unpacks integers: the user's own TypeError comes through, and the trace shows where."""
    context = CONTEXT["training"].before.split("import builtins")[0]
    run = program(f"{context}\n{as_python(BLOCKS['training'])}", expect=1)
    assert "TypeError: cannot unpack non-iterable int object" in run.stderr
    trace = run_in_cwd(run)
    assert trace.one("train").args["error"] == "TypeError"


@pytest.mark.parametrize(
    ("shown", "program_name", "event"),
    [
        ("streaming-events", "streaming", "epoch.block"),
        ("streaming-records", "streaming", "CM"),
        ("init-event", "init", "checkpoint.init"),
    ],
)
def test_records_look_as_printed(
    shown: str, program_name: str, event: str, program: Callable[..., Run]
) -> None:
    """Written records have the keys of the printed ones, in their order, and the kinds of their values."""
    printed = BLOCKS[shown].text.replace("\n ", "").splitlines()
    trace = program(_program(BLOCKS[program_name])).trace
    for line in printed:
        model = json.loads(line)
        written = next(r for r in trace.records if r.name == event and (r.ph == "X" or _epoch(r.raw)))
        assert list(written.raw) == list(model)
        assert list(written.args) == list(model["args"])
        for key, value in [*model.items(), *model["args"].items()]:
            found = written.args.get(key, written.raw.get(key)) if key in model["args"] else written.raw[key]
            assert type(found) is type(value), key


def _epoch(raw: dict[str, dict[str, str]]) -> bool:
    return raw["args"]["name"].startswith("epoch.")


@pytest.mark.skipif(ORIGINAL is None, reason="the original guide does not lie beside the repository")
def test_our_record_has_the_same_calls() -> None:
    """Ours are the same programs, comments aside."""
    ours = {b.name: b for b in recorded_blocks()}
    assert list(ours) == list(NAMES)
    for name in PROGRAMS:
        assert ast.dump(ast.parse(as_python(ours[name]))) == ast.dump(ast.parse(as_python(BLOCKS[name]))), (
            name
        )


@pytest.mark.skipif(PLAIN is None, reason="the original guide does not lie beside the repository")
def test_the_plain_edition_holds_no_other_code() -> None:
    """The plain-text edition is the same blocks; outside them it has no line of code."""
    assert PLAIN is not None
    rest = plain_text_rest(PLAIN, list(BLOCKS.values()))
    starts = ("@", "from ", "import ", "with ", "for ", "class ", "def ", "    ", "{", "export ", "ai.")
    code = [line for line in rest.splitlines() if line.startswith(starts)]
    table = {
        f"ai.{branch}"
        for branch in ("compute", "data", "dataloader", "comm", "device", "checkpoint", "pipeline")
    }
    assert [line for line in code if line.rpartition(".")[0] not in table] == []
