"""`dftracer doctor`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from dftracer import __version__
from dftracer._packages import Requirement, advice, extras, module_of, not_loading
from dftracer.cli.launching import LAUNCHER_SAW
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, Verb
from dftracer.cli.outputs import print_json, print_wrapped


class Doctor(Verb):
    help = "Show what is installed and what works on this machine."
    example = "dftracer doctor --directory /scratch/traces"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--quick",
            action="store_true",
            help="only check whether the packages of the extras are installed, without loading them",
        )
        parser.add_argument(
            "--directory",
            default=".",
            metavar="DIR",
            help="where traces will be written (default: the current directory)",
        )

    def run(self, args: argparse.Namespace) -> int:
        checks: list[dict[str, Any]] = []

        def check(name: str, result: tuple[bool, str], needed: bool = True) -> None:
            ok, text = result
            checks.append({"check": name, "ok": ok, "needed": needed, "text": text})
            if not args.json:
                mark = "ok  " if ok else "FAIL" if needed else "no  "
                print_wrapped(f"{mark} {name:<16} {text}", 22)
                sys.stdout.flush()  # the extras take a while

        check(
            "python",
            (sys.version_info >= (3, 11), f"Python {platform.python_version()}, dftracer {__version__}"),
        )
        check("recorder", _recorder())
        check("reader", _reader())
        check("other packages", _other_packages())
        check("clock", _clock())
        check("interception", _interception(), needed=False)
        check("trace directory", _disk(args.directory))
        check("shared memory", _shared_memory(), needed=False)
        check("left over", _left_over(args.directory), needed=False)
        on = {k: v for k, v in sorted(os.environ.items()) if k.startswith("DFTRACER_") and k != LAUNCHER_SAW}
        check(
            "settings",
            (True, ", ".join(f"{k}={v}" for k, v in on.items()) or "no DFTRACER_ variable is set"),
            needed=False,
        )
        for extra in _check_extras(load=not args.quick):
            check(f"extra {extra.name}", (extra.ok, extra.text), needed=False)
            checks[-1]["packages"] = extra.packages
        bad = [c for c in checks if c["needed"] and not c["ok"]]
        if args.json:
            print_json({"ok": not bad, "checks": checks})
        return EXIT_PROBLEMS if bad else EXIT_OK


def _recorder() -> tuple[bool, str]:
    try:
        from dftracer import _core
    except ImportError as e:
        return False, f"the native recorder cannot be loaded: {e}"
    return True, f"native recorder loaded from {Path(_core.__file__ or '').parent}"


def _reader() -> tuple[bool, str]:
    try:
        from dftracer.load import _scan
    except ImportError as e:
        return False, f"the native reader cannot be loaded: {e}"
    return True, f"native reader loaded from {Path(_scan.__file__ or '').parent}"


def _clock() -> tuple[bool, str]:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    name = source.read_text().strip() if source.is_file() else "unknown"
    good = name in {"tsc", "arch_sys_counter"}
    return True, f"clock source {name}" + ("" if good else ": reading the time costs a system call or more")


def _interception() -> tuple[bool, str]:
    if sys.platform != "linux":
        return False, f"interception works on Linux, not on {sys.platform}"
    libc, version = platform.libc_ver()
    if libc != "glibc":
        return False, "interception needs glibc"
    here = importlib.util.find_spec("dftracer.preload") is not None
    return here, f"{libc} {version} on {platform.machine()}" + (
        "" if here else "; this build has no interception library"
    )


def _other_packages() -> tuple[bool, str]:
    """Other distributions with files in a folder `dftracer/`: in ours, or in one that hides ours."""
    from importlib import metadata

    ours: set[Path] = set()
    others: dict[str, set[Path]] = {}
    for distribution in metadata.distributions():
        name = str(distribution.metadata["Name"])
        files = {
            Path(str(distribution.locate_file(f))).resolve()
            for f in distribution.files or ()
            if str(f).startswith("dftracer/")
        }
        if name == "pydftracer" and distribution.version == __version__:
            ours |= files
        elif files:
            others[f"{name} {distribution.version}"] = files
    home = Path(__file__).resolve().parents[2]
    # Without a list of our own files (a checkout), the package's main files count.
    ours = ours or {home / "__init__.py", home / "python" / "__init__.py"}
    clash = sorted(name for name, files in others.items() if files & ours)
    if clash:
        names = " ".join(name.split()[0] for name in clash)
        return False, (
            f"{_listed(clash)} files in dftracer/ as well, and the one installed last wins:"
            f" pip uninstall {names}, then install pydftracer again"
        )
    # One that only adds its own folder, dftracer/utils, hides nothing.
    hiding = sorted(
        n for n, files in others.items() if any(f.parts[-2:] == ("dftracer", "__init__.py") for f in files)
    )
    if hiding:
        return False, (
            f"{_listed(hiding)} a directory dftracer/ elsewhere, and the first on sys.path wins"
            f" (here {home}): pip uninstall {' '.join(name.split()[0] for name in hiding)}"
        )
    return True, "no other distribution owns files in dftracer/"


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'owns' if len(names) == 1 else 'own'}"


def _disk(directory: str) -> tuple[bool, str]:
    import tempfile

    try:
        free = shutil.disk_usage(directory).free
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".dftracer-doctor-") as f:
            began = time.perf_counter()
            for _ in range(32):
                f.write(b"\0" * (1 << 20))
            f.flush()
            os.fsync(f.fileno())
            rate = 32 / (time.perf_counter() - began)
    except OSError as e:
        return False, f"{directory}: {e.strerror}"
    return (
        free > 1 << 30,
        f"{os.path.abspath(directory)}: {free >> 30} GiB free, {rate:.0f} MiB/s written and synced",
    )


def _shared_memory() -> tuple[bool, str]:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError as e:
        return False, f"/dev/shm: {e.strerror}; the events of killed processes may be lost"
    return free > 64 << 20, f"/dev/shm: {free >> 20} MiB free (events of killed processes are kept there)"


def _left_over(directory: str) -> tuple[bool, str]:
    from dftracer.cli.commands.clean import find_leftovers, summary

    traces = os.path.join(directory, "traces")
    found = find_leftovers([traces] if os.path.isdir(traces) else [], everywhere=True)
    return True, f"{summary(found)}; `dftracer clean --all` shows them" if found else "nothing left over"


# --- The state of each extra's packages: missing, too old, broken (cannot be loaded) or working

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


class _Extra(NamedTuple):
    """An extra, and the state of its packages."""

    name: str
    ok: bool
    text: str
    packages: dict[str, dict[str, str | None]]


def _check_extras(load: bool = True) -> list[_Extra]:
    """All extras of this installation; if requested, every package is loaded once in another process."""
    wanted = extras()
    packages = list(dict.fromkeys(r for needs in wanted.values() for r in needs))
    found = {r: _installed(r) for r in packages}
    loadable = {module_of(r.name): r for r, look in found.items() if look["state"] == "ok"}
    for module, why in _not_loading(list(loadable) if load else []).items():
        found[loadable[module]] |= {"state": "broken", "why": why}
    return [_describe(name, needs, found) for name, needs in wanted.items()]


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
    import subprocess
    from threading import Timer

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
            ending = f"signal {-code}" if code < 0 else f"exit code {code}"
            out[left.pop(0)] = f"importing it ends with {ending}"
    return out


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"[+a-zA-Z]", version, maxsplit=1)[0])[:4])


def _describe(name: str, needs: list[Requirement], found: dict[Requirement, dict[str, str | None]]) -> _Extra:
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
            parts.append(not_loading(need.name, look["why"], name))
    if missing:
        parts.append(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {advice(missing[0], name)}"
        )
    return _Extra(
        name, ok, "; ".join(parts) if not ok else ", ".join(parts), {n.name: found[n] for n in needs}
    )
