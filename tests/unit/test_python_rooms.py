"""The Python rooms form one flow: a module imports only from its own room and those it may use."""

from __future__ import annotations

import ast
from pathlib import Path

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
# What shows results (report, view, ...) uses the analysis; the command line uses everything.
SHOWING = ANALYSIS | {"live", "report"}
# Doors to the package that have to bear these names.
DOORS = {
    "__main__.py",
    "dftracer.py",
    "dftracer_dbg.py",
    "logger.py",
    "notebook.py",
    "preload.py",
}
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
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.relative_to(PACKAGE)}: write whole names of modules"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("dftracer.")}


def _room_of_import(name: str) -> str:
    first = name.split(".")[1]
    return first if (PACKAGE / first).is_dir() else ""


def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_go_left() -> None:
    wrong = {}
    for source in _sources():
        room = _room(source)
        if room != "cli" and not (room == "" and source.name in DOORS):
            allowed = MAY_USE.get(room, SHOWING | {room})
            where = source.relative_to(PACKAGE).as_posix()
            names = {n for n in _imported(source) if (where, n) not in BACKWARDS}
            bad = sorted(name for name in names if _room_of_import(name) not in allowed)
            wrong.update({where: bad} if bad else {})
    assert wrong == {}


def test_the_product_does_not_need_the_generator_of_traces() -> None:
    outside = [s for s in _sources() if s.name != "synthetic.py"]
    users = [s.name for s in outside if any(".synthetic" in name for name in _imported(s))]
    assert users == []
