"""The public surface is frozen: what a user may import is in a checked-in list, and nothing else."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.process import clean_environment

FROZEN: dict[str, Any] = json.loads((Path(__file__).parent / "public_api.json").read_text())

LIST = """
import importlib, inspect, json, sys
out = {}
for module in json.loads(sys.argv[1]):
    try:
        out[module] = sorted(importlib.import_module(module).__all__)
    except Exception as error:
        out[module] = repr(error)
from dftracer.python import DFTracerAI, ai, dft_fn, dftracer
def methods(obj):
    return sorted(n for n in dir(obj) if not n.startswith("_"))
members = {"dftracer": methods(dftracer.get_instance()), "dft_fn": methods(dft_fn("c")),
           "ai.compute.forward": methods(ai.compute.forward)}
signatures = {}
for name, function in {
    "dftracer.initialize_log": dftracer.initialize_log,
    "dftracer.log_event": dftracer.get_instance().log_event,
    "dftracer.log_metadata_event": dftracer.get_instance().log_metadata_event,
    "dft_fn": dft_fn,
    "DFTracerAI": DFTracerAI,
    "dft_fn.iter": dft_fn("c").iter,
    "dft_fn.update": dft_fn("c").update,
    "node.iter": ai.compute.iter,
    "node.derive": ai.compute.derive,
    "node.update": ai.compute.update,
    "node.start": ai.compute.start,
    "node.stop": ai.compute.stop,
}.items():
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        signatures[name] = [[str(error), ""]]
        continue
    signatures[name] = [(p.name, repr(p.default) if p.default is not p.empty else "-") for p in parameters]
print(json.dumps({"modules": out, "members": members, "signatures": signatures}))
"""


def _surface(enable: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", LIST, json.dumps(sorted(FROZEN["modules"]))],
        env=clean_environment(DFTRACER_ENABLE=enable),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    surface: dict[str, Any] = json.loads(done.stdout)
    return surface


@pytest.fixture(scope="module", params=["1", "0"], ids=["on", "off"])
def surface(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What there is, with tracing on and with tracing off."""
    return _surface(request.param)


@pytest.mark.parametrize("module", sorted(FROZEN["modules"]))
def test_exports(module: str, surface: dict[str, Any]) -> None:
    """`__all__` of each public module is the frozen list."""
    assert surface["modules"][module] == FROZEN["modules"][module]


@pytest.mark.parametrize("name", sorted(FROZEN["members"]))
def test_documented_members(name: str, surface: dict[str, Any]) -> None:
    """Every documented method is there, on and off."""
    assert set(FROZEN["members"][name]) <= set(surface["members"][name])


@pytest.mark.parametrize("name", sorted(FROZEN["signatures"]))
def test_documented_parameters(name: str, surface: dict[str, Any]) -> None:
    """Documented parameters in their order, with their defaults."""
    frozen = FROZEN["signatures"][name]
    found = surface["signatures"][name][: len(frozen)]
    # `*`: a parameter that is documented by its place only.
    found = [
        [expected if expected == "*" else p, default]
        for (p, default), (expected, _) in zip(found, frozen, strict=True)
    ]
    assert found == frozen


def test_package_has_type_information() -> None:
    """Users' type checkers see the types."""
    package = Path(str(importlib.import_module("dftracer").__path__[0]))
    assert (package / "py.typed").is_file()
    assert (package / "_core.pyi").is_file()
