"""What a user may import and call, as JSON.

`python tests/unit/public_surface.py > tests/unit/public_api.json` with the installed package
freezes it anew; what changed has to be announced.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(str(importlib.import_module("dftracer").__path__[0]))
# What the documentation imports from (a test compares). The command line is its verbs (docs/cli.md), the old
# names have a test of their own (tests/compat); every other module is ours alone.
PUBLIC = (
    "dftracer",
    "dftracer.analyze",
    "dftracer.auto",
    "dftracer.auto.accelerate",
    "dftracer.auto.huggingface",
    "dftracer.auto.jax",
    "dftracer.auto.keras",
    "dftracer.auto.lightning",
    "dftracer.auto.ray",
    "dftracer.collect",
    "dftracer.compare",
    "dftracer.dftracer",
    "dftracer.hooks",
    "dftracer.link",
    "dftracer.link.chakra",
    "dftracer.load",
    "dftracer.load.synthetic",
    "dftracer.preload",
    "dftracer.python",
    "dftracer.python.dynamo",
    "dftracer.python.torch",
    "dftracer.report",
    "dftracer.testing",
    "dftracer.testing.synthetic",
)
# Their frameworks are heavy, so that only their lists of names are read.
UNIMPORTED = tuple(name for name in PUBLIC if name.startswith("dftracer.auto."))
# The objects of `dftracer.python` are described one by one below: its classes are mostly old names.
DESCRIBED = {"dftracer.python", "dftracer.dftracer"}


def _listed(module: str) -> list[str]:
    """`__all__` of a module, without importing it."""
    place = PACKAGE.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value))
    return []


def _members(thing: Any) -> list[str]:
    return sorted(name for name in dir(thing) if not name.startswith("_"))


def _fields(thing: type) -> list[str]:
    """What a class offers, with what its instances get by annotation or in `__init__`."""
    own = {name for base in thing.__mro__ for name in getattr(base, "__annotations__", {})}
    tree = ast.parse(inspect.getsource(thing))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        ):
            own.add(node.attr)
    return sorted({*_members(thing), *(n for n in own if not n.startswith("_"))})


def _parameters(function: Any) -> list[list[str]]:
    """Names and defaults, in their order; `*` before those that are given by name only."""
    out: list[list[str]] = []
    for p in inspect.signature(function).parameters.values():
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        if p.kind is p.KEYWORD_ONLY and not any(name.startswith("*") for name, _ in out):
            out.append(["*", "-"])
        out.append([stars + p.name, "-" if p.default is p.empty else _default(p.default)])
    return out


def _default(value: Any) -> str:
    """A default as text; what a dataclass makes anew has none."""
    return repr(value) if isinstance(value, (int, float, str, tuple, type(None))) else "made anew"


def _describe(module: ModuleType, out: dict[str, Any]) -> None:
    for name in getattr(module, "__all__", []):
        thing = getattr(module, name)
        full = f"{module.__name__}.{name}"
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            continue
        if inspect.isclass(thing):
            out["members"][full] = _fields(thing)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            out["signatures"][full] = _parameters(thing)


def surface() -> dict[str, Any]:
    """The public surface of the installed package in this process's environment."""
    out: dict[str, Any] = {"modules": {}, "members": {}, "signatures": {}}
    for name in PUBLIC:
        if name in UNIMPORTED:
            out["modules"][name] = _listed(name)
            continue
        module = importlib.import_module(name)
        out["modules"][name] = sorted(module.__all__)
        if name not in DESCRIBED:
            _describe(module, out)
    from dftracer.python import DFTracerAI, ai, dft_fn, dftracer  # noqa: PLC0415

    for name, thing in {
        "dftracer": dftracer.get_instance(),
        "dft_fn": dft_fn("c"),
        "ai": ai,
        "ai.compute.forward": ai.compute.forward,
    }.items():
        out["members"][name] = _members(thing)
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
        out["signatures"][name] = _parameters(function)
    return out


if __name__ == "__main__":
    json.dump(surface(), sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")
