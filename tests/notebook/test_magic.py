"""`%load_ext dftracer` and `%%dftracer`, in a real IPython and a real kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from dftracer.analyze import analyze
from dftracer.load import Trace
from dftracer.testing.synthetic import Process, training_run
from support.process import clean_environment

STEPS = """\
import time
for batch in ai.dataloader.fetch.iter(range(6)):
    with ai.compute.forward:
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One kernel for all cells: what each of them has put out."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = {
        "load": "from dftracer.python import ai, dftracer as log\n%load_ext dftracer",
        "off": "log.initialize_log()",
        "steps": "%%dftracer\n" + STEPS,
        "again": "%%dftracer -o kept\nkeep = 1\n" + STEPS,
        "kept": "print(keep)\nfrom pathlib import Path; print(len([*Path('kept').glob('*.pfw*')]))",
        "no steps": "%%dftracer\nopen('f.bin', 'wb').write(b'x' * 1000)\nopen('f.bin', 'rb').read();",
        "nothing": "%%dftracer\n1 + 1",
        "fails": "%%dftracer\nwith ai.compute.forward:\n    raise KeyError('mine')",
        "after": "print('alive')",
        "wrong": "%%dftracer --nonsense\n1",
        "torch": "%%dftracer\n"
        "import torch\n"
        "model = torch.nn.Linear(8, 1)\n"
        "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=4)\n"
        "for x in loader:\n"
        "    opt.zero_grad(); model(x).sum().backward(); opt.step()",
        "shown": "from dftracer.load import Trace\nTrace('kept')",
        "analysis": "from dftracer.analyze import analyze\na = analyze('kept')\na",
        "findings": "a.findings",
    }
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells.values()])
    env = clean_environment(IPYTHONDIR=str(folder / "ipython"), JUPYTER_RUNTIME_DIR=str(folder / "runtime"))
    client = NotebookClient(
        book, timeout=240, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=env)
    return {name: cell["outputs"] for name, cell in zip(cells, book["cells"], strict=True)}


def _html(outputs: list[Any]) -> str:
    return "".join(o["data"].get("text/html", "") for o in outputs if "data" in o)


def _text(outputs: list[Any]) -> str:
    return "".join(o.get("text", "") for o in outputs if o["output_type"] == "stream")


def test_the_report_is_shown_below_the_cell(notebook: Any) -> None:
    shown = _html(notebook["steps"])
    assert "6 steps of rank 0" in shown
    assert "forward" in shown
    assert "<script" not in shown
    (plain,) = (o["data"]["text/plain"] for o in notebook["steps"] if "data" in o)
    assert plain.startswith("<Analysis of ")
    assert _text(notebook["load"]) == ""


def test_off_is_said_in_a_notebook_too(notebook: Any) -> None:
    assert "tracing is off" in _text(notebook["off"])


def test_variables_of_the_cell_and_the_trace_stay(notebook: Any) -> None:
    assert "trace: kept" in _text(notebook["again"])
    assert _text(notebook["kept"]).split() == ["1", "1"]


def test_cells_without_steps_and_cells_that_fail_have_a_report_as_well(notebook: Any) -> None:
    assert "No training steps were found" in _html(notebook["no steps"])
    assert "f.bin" in _html(notebook["no steps"])
    assert notebook["nothing"]
    kinds = [o["output_type"] for o in notebook["fails"]]
    assert "error" in kinds or "KeyError" in _text(notebook["fails"])
    assert "forward" in _html(notebook["fails"])
    assert _text(notebook["after"]) == "alive\n"
    assert "--nonsense" in _text(notebook["wrong"])


def test_a_loop_that_nobody_annotated_has_its_steps(notebook: Any) -> None:
    shown = _html(notebook["torch"])
    assert "8 steps of rank 0" in shown, shown
    assert "backward" in shown


def test_objects_show_themselves(notebook: Any) -> None:
    assert "<table" in _html(notebook["shown"])
    assert "1 file" in _html(notebook["shown"])
    assert "6 steps" in _html(notebook["analysis"])
    assert _html(notebook["findings"])


def test_plain_ipython_shows_text(tmp_path: Path) -> None:
    script = tmp_path / "session.ipy"
    script.write_text(
        "%load_ext dftracer\nfrom dftracer.python import ai\n" + "get_ipython().run_cell_magic("
        f"'dftracer', '--text', {STEPS!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", str(script)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=clean_environment(IPYTHONDIR=str(tmp_path / "ipython")),
        check=False,
    )
    assert "Where the step time goes" in done.stdout, done.stdout + done.stderr
    assert "6 steps of rank 0" in done.stdout


def test_reprs_are_useful_and_escape_what_a_trace_names(tmp_path: Path) -> None:
    p = Process(10, rank=0, world_size=1)
    p.span("compute", "<script>alert(1)</script>", 10, 20)
    p.write(tmp_path)
    analysis = analyze(tmp_path)
    assert repr(analysis).startswith("<Analysis of 3 events, 1 process, 0 ranks: ")
    assert "<script>" not in analysis._repr_html_()
    assert "&lt;script&gt;" in analysis._repr_html_()
    trace = Trace(tmp_path)
    assert repr(trace).startswith("<Trace of 1 file, ")
    assert str(tmp_path) in repr(trace)
    run = training_run(tmp_path / "run", events=4000, ranks=1, workers=0, steps_per_epoch=10)
    found = analyze(run.directory).findings
    assert repr(found[0]).startswith(f"<Finding {found[0].id} [")
    assert found[0].title in repr(found[0])
    assert found[0]._repr_html_().count("<li") == 1
    assert found._repr_html_().count("<li") == len(found)
