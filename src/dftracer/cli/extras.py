"""The state of each extra's packages: missing, too old, broken (cannot be loaded) or working."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from threading import Timer
from typing import NamedTuple

from dftracer._packages import Requirement, extras, module_of

__all__ = ["Extra", "look_at_extras"]

_PATIENCE_S = 300.0  # all of them, on a slow file system
_MARK = "dftracer-doctor:"
_LOAD = f"""
import importlib, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
for module in sys.argv[1:]:
    why = ""
    try:
        importlib.import_module(module)
    except BaseException as error:
        why = " ".join(f"{{type(error).__name__}}: {{error}}".split())
    out.write("{_MARK}" + why + "\\n")
    out.flush()
os._exit(0)
"""


class Extra(NamedTuple):
    """An extra, and the state of its packages."""

    name: str
    ok: bool
    text: str
    packages: dict[str, dict[str, str | None]]


def look_at_extras(load: bool = True) -> list[Extra]:
    """All extras of this installation; if requested, every package is loaded once in another process."""
    wanted = extras()
    packages = list(dict.fromkeys(r for needs in wanted.values() for r in needs))
    found = {r: _installed(r) for r in packages}
    loadable = {module_of(r.name): r for r, look in found.items() if look["state"] == "ok"}
    for module, why in _not_loading(list(loadable) if load else []).items():
        found[loadable[module]] |= {"state": "broken", "why": why}
    return [_described(name, needs, found) for name, needs in wanted.items()]


def _installed(needed: Requirement) -> dict[str, str | None]:
    from importlib import metadata

    try:
        version = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return {"state": "missing", "version": None, "why": None}
    if needed.least is not None and _numbers(version) < _numbers(needed.least):
        return {"state": "too old", "version": version, "why": f"needs {needed.least} or newer"}
    return {"state": "ok", "version": version, "why": None}


def _not_loading(modules: list[str]) -> dict[str, str]:
    """The modules that cannot be imported, each with the reason; one that crashes does not stop the rest."""
    out: dict[str, str] = {}
    quiet = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")}
    left = list(modules)
    while left:
        command = [sys.executable, "-c", _LOAD, *left]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace", env=quiet)
        timer = Timer(_PATIENCE_S, child.kill)
        timer.start()
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(_MARK):
                why = line.removeprefix(_MARK).strip()
                module = left.pop(0)
                if why:
                    out[module] = why
        code = child.wait()
        timer.cancel()
        if left:
            told = f"ends with signal {-code}" if code < 0 else f"ends with exit code {code}"
            out[left.pop(0)] = f"importing it {told}"
    return out


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[+a-zA-Z]", version, maxsplit=1)[0])[:4])


def _described(name: str, needs: list[Requirement], found: dict[Requirement, dict[str, str | None]]) -> Extra:
    parts, missing = [], []
    ok = True
    for need in needs:
        look = found[need]
        ok = ok and look["state"] == "ok"
        if look["state"] == "missing":
            missing.append(need.name)
        elif look["state"] == "ok":
            parts.append(f"{need.name} {look['version']}")
        elif look["state"] == "too old":
            parts.append(f"{need.name} {look['version']} is too old ({look['why']})")
        else:
            parts.append(
                f"{need.name} {look['version']} is installed but broken ({look['why']}):"
                f" pip install --force-reinstall {need.name}"
            )
    if missing:
        parts.append(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing:"
            f" pip install 'pydftracer[{name}]'"
        )
    return Extra(
        name, ok, "; ".join(parts) if not ok else ", ".join(parts), {n.name: found[n] for n in needs}
    )
