"""The Python rooms form one flow: a module imports only from its own room and those it may use."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "dftracer"

# The private modules beside the rooms: settings, the session, the native recorder.
BASE = {"", "format"}
# Inside the user's job. `compat` holds the old names of `python`: the two are one room.
RECORDER = BASE | {"python", "compat"}
# Readers of finished traces know nothing of the recorder's Python.
ANALYSIS = BASE | {"load", "link", "analyze"}
MAY_USE = {
    "": BASE,
    "format": BASE,
    "python": RECORDER,
    "compat": RECORDER,
    "torch": RECORDER | {"torch", "metrics"},
    "hooks": RECORDER | {"torch", "hooks"},
    "auto": RECORDER | {"torch", "auto", "metrics"},
    "metrics": BASE | {"metrics"},
    # `dftracer collect` is `dftracer run` plus windows.
    "collect": RECORDER | {"torch", "auto", "collect"},
    "load": BASE | {"load"},
    "testing": BASE | {"testing"},
    "live": BASE | {"load", "live"},
    "link": BASE | {"load", "link"},
    "analyze": ANALYSIS,
}
# What shows results uses the analysis.
SHOWING = ANALYSIS | {"live", "report"}
MAY_USE |= {room: SHOWING | {room} for room in ("report", "compare", "view", "top", "postmortem")}
MAY_USE["cli"] = {*MAY_USE, "cli"}
# Doors to the package that have to bear these names.
DOORS = {"__main__.py", "dftracer.py", "logger.py", "notebook.py"}
# Imported where they are needed, each for one reason.
BACKWARDS = {
    # The device is watched once a session records, by whichever way it began.
    ("_session.py", "dftracer.torch.device"),
    # Ranks that are annotated by hand are watched for hangs.
    ("_session.py", "dftracer.torch.patches"),
    ("_session.py", "dftracer.torch.hang"),
    # `dftracer.start(auto=True)`.
    ("_session.py", "dftracer.auto"),
    # What is already decorated or looped over begins to record when tracing is switched on.
    ("_session.py", "dftracer.python._decorate"),
    # An annotated program that says where its trace goes is one that may train.
    ("_session.py", "dftracer.metrics"),
    # `torch` alone listens to torch's compiler, also for the backends that are annotations.
    ("python/dynamo/__init__.py", "dftracer.torch.compilations.compile_events"),
    ("python/dynamo/_graphs.py", "dftracer.torch.compilations.compile_events"),
    # A graph's time on the device is measured with the guards of all times there.
    ("python/dynamo/_graphs.py", "dftracer.torch.device.TorchPool"),
    ("python/dynamo/_graphs.py", "dftracer.torch.patches.safely"),
    # What a block records is recorded by the annotations: here they read the switch.
    ("testing/__init__.py", "dftracer.python"),
    # The former name of the generator of traces.
    ("load/synthetic.py", "dftracer.testing.synthetic.Process"),
    ("load/synthetic.py", "dftracer.testing.synthetic.Run"),
    ("load/synthetic.py", "dftracer.testing.synthetic.training_run"),
    # How they show themselves in a notebook.
    ("analyze/analysis.py", "dftracer.report.html.analysis_fragment"),
    ("analyze/rules/finding.py", "dftracer.report.html.findings_fragment"),
}


def _room(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def _imported(source: Path) -> set[str]:
    """Full names of the modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"} and node.args:
            found.add(_beginning(node.args[0]))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.relative_to(PACKAGE)}: write whole names of modules"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("dftracer.")}


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _beginning(name: ast.expr) -> str:
    """What is known of the name of a module that is made as a text."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _room_of_import(name: str) -> str:
    first = name.split(".")[1]
    return first if (PACKAGE / first).is_dir() else ""


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _forbidden(source: Path) -> set[str]:
    """The modules that a file imports from rooms that its own may not use."""
    allowed = MAY_USE[_room(source)]
    return {name for name in _imported(source) if _room_of_import(name) not in allowed}


def test_imports_go_left() -> None:
    found = {(s.relative_to(PACKAGE).as_posix(), name) for s in _sources() for name in _forbidden(s)}
    assert {(where, name) for where, name in found if where not in DOORS} == BACKWARDS
    assert {where for where, _ in found} >= DOORS


def test_every_folder_is_a_room() -> None:
    assert {_room(source) for source in _sources()} == MAY_USE.keys()


@pytest.mark.parametrize(
    "text",
    [
        "import dftracer.python",
        "from dftracer import python",
        "importlib.import_module('dftracer.python')",
        "import_module(f'dftracer.python.{name}')",
        "__import__('dftracer.python', fromlist=['*'])",
    ],
)
def test_an_import_is_noticed(text: str, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(text)
    assert {_room_of_import(name) for name in _imported(tmp_path / "source.py")} == {"python"}


def test_the_product_does_not_need_the_generator_of_traces() -> None:
    outside = [s for s in _sources() if s.name != "synthetic.py"]
    users = [s.name for s in outside if any(".synthetic" in name for name in _imported(s))]
    assert users == []
