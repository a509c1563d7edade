"""`dftracer clean`."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dftracer._text import Column, bytes_text, plural
from dftracer.cli.main import EXIT_OK, EXIT_PROBLEMS, CommandError, Verb
from dftracer.cli.outputs import print_json, print_lines
from dftracer.cli.trace_arguments import add_search_roots, search_roots
from dftracer.format.trace_names import find_traces
from dftracer.load.find import user_caches

_COLUMNS = (
    Column("kind", whole=True),
    Column("size", right=True),
    Column("path", whole=True, lead=True),
    Column("what", drop=1),
)


class Clean(Verb):
    help = "List and delete what dftracer left behind: caches, rings of killed processes, temporary files."
    example = """\
dftracer clean
dftracer clean traces/ --yes
dftracer clean --traces traces/20260101-120000-0a1b2c3d"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_search_roots(parser)
        parser.add_argument("--yes", action="store_true", help="delete without asking")
        parser.add_argument(
            "--all",
            action="store_true",
            help="also rings of killed processes whose traces are not under PATH",
        )
        parser.add_argument(
            "--traces", action="store_true", help="also delete the traces under PATH (PATH required)"
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.traces and not args.paths:
            raise CommandError("--traces needs a PATH: dftracer clean --traces traces/RUN")
        paths = search_roots(args)
        from dftracer.load.find import recover

        recover(paths)  # what can still be read from a ring belongs in its trace
        found = find_leftovers(paths, args.all) + (_find_traces(paths) if args.traces else [])
        if not args.json and not args.quiet:
            _show(found)
        if found and (args.yes or _agreed(args, found)):
            remove(found)
            if not args.json and not args.quiet:
                print(f"deleted: {summary([each for each in found if each.deleted])}")
        if args.json:
            print_json([each.to_json() for each in found])
        kept = [each for each in found if args.yes and not each.deleted]
        for each in kept:
            print(f"dftracer clean: {each.path} could not be deleted", file=sys.stderr)
        return EXIT_PROBLEMS if kept else EXIT_OK


def _show(found: list[Leftover]) -> None:
    if not found:
        print("nothing to delete")
        return
    print_lines(_COLUMNS, [[f.kind, bytes_text(f.bytes), f.path, f.why] for f in found])
    print(f"found: {summary(found)}")


def _agreed(args: argparse.Namespace, found: list[Leftover]) -> bool:
    """Ask the user at the terminal; without one, nothing is deleted."""
    if args.json or args.quiet or not (sys.stdin.isatty() and sys.stdout.isatty()):
        if not args.quiet:
            print("dftracer clean: nothing deleted; pass --yes to delete", file=sys.stderr)
        return False
    return input(f"Delete {summary(found)}? [y/N] ").strip().lower() in {"y", "yes"}


# --- What can be deleted

_CACHE = ".dftracer-cache"
_BESIDE = (".dftracer-*.part", ".dftracer-doctor-*", "*.tmp.pfw", "*.tmp.pfw.gz", "hang_*.json.new")
_IN_TMP = ("dftracer-run-*", "dftracer-steps-*", "dftracer-view-*", "dftracer-top-*")
_OF_TRACES = ("ended-*.json", "hang_*.json", "*.rows")  # what is written beside traces
_HOUR_S, _DAY_S = 3600, 86400  # what is older is not being written any more


@dataclass
class Leftover:
    """Something that can be deleted."""

    kind: str  # cache, ring, temporary or trace
    path: str
    bytes: int
    why: str = ""
    deleted: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def find_leftovers(paths: Iterable[str], everywhere: bool = False) -> list[Leftover]:
    """Those below the paths, and the user's own; `everywhere`: also rings of traces that are elsewhere."""
    roots = [Path(p) for p in paths]
    found = [*_caches(roots), *_rings(roots, everywhere), *_temporary(roots)]
    return list({each.path: each for each in found}.values())


def _caches(roots: list[Path]) -> Iterator[Leftover]:
    for folder, _ in _folders(roots):
        if folder.name == _CACHE:
            yield Leftover("cache", str(folder), _size(folder), "rebuilt on demand")
    base = user_caches()
    for name, why in (
        ("dftracer", "rebuilt on demand"),
        ("dftracer-remote", "copies of remote traces"),
    ):
        if (base / name).is_dir():
            yield Leftover("cache", str(base / name), _size(base / name), why)


def _folders(roots: list[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Every folder below, with the names of its files; caches are not entered."""
    for root in roots:
        for folder, folders, names in os.walk(root):
            if os.path.basename(folder) == _CACHE:
                folders.clear()
            folders[:] = [f for f in folders if not f.startswith(".") or f == _CACHE]
            yield Path(folder), names


def _rings(roots: list[Path], everywhere: bool) -> Iterator[Leftover]:
    try:
        from dftracer import _core

        rings = _core.rings([os.path.abspath(p) for p in roots if p.is_dir()])
    except (ImportError, OSError):
        return
    resolved = [p.resolve() for p in roots]
    for ring in rings:
        if ring["state"] not in {"dead", "killed during its set-up"}:
            continue
        mine = [Path(p).resolve() for p in (ring["trace"], ring["ring"]) if p]
        if not everywhere and not any(root in m.parents for m in mine for root in resolved):
            continue
        why = "from a process killed during start-up"
        if ring["trace"]:
            waiting = plural(ring["records"], "event")
            # Reading the trace would complete it; these are lost if the ring goes.
            what = "cannot be completed" if Path(ring["trace"]).exists() else "is gone"
            why = f"{waiting} of process {ring['pid']}, whose trace {ring['trace']} {what}"
        yield Leftover("ring", ring["ring"], _size(Path(ring["ring"])), why)


def _temporary(roots: list[Path]) -> Iterator[Leftover]:
    now = time.time()
    for folder, names in _folders(roots):
        for name in names:
            path = folder / name
            if any(fnmatch.fnmatch(name, p) for p in _BESIDE) and _age(path, now) > _HOUR_S:
                yield Leftover("temporary", str(path), _size(path), "left by a command that was killed")
    tmp = Path(os.environ.get("TMPDIR") or "/tmp")
    old = [p for pattern in _IN_TMP for p in tmp.glob(pattern) if _is_own(p) and _age(p, now) > _DAY_S]
    used = _in_use(tmp) if old else ""
    for path in old:
        if str(path) not in used:
            yield Leftover("temporary", str(path), _size(path), "left by a command that was killed")


def _age(path: Path, now: float) -> float:
    """Seconds since anything in it was written."""
    try:
        newest = path.lstat().st_mtime
        for folder, _, names in os.walk(path):
            newest = max([newest, *(os.lstat(os.path.join(folder, name)).st_mtime for name in names)])
    except OSError:
        return 0
    return now - newest


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid() and not path.is_symlink()
    except OSError:
        return False


def _in_use(directory: Path) -> str:
    """All that running processes of this user have open in a directory, or in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or another user's
            found.append(os.fsdecode((process / "environ").read_bytes()))
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    target = os.readlink(fd)
                    if target.startswith(str(directory)):
                        found.append(target)
    return "\0".join(found)


def _size(path: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # gone meanwhile
        total = path.lstat().st_size if not path.is_dir() else 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _find_traces(paths: list[str]) -> list[Leftover]:
    """The traces below the named paths, and what is written beside them; none of a process that runs."""
    try:
        from dftracer import _core

        running = {os.path.realpath(r["trace"]) for r in _core.rings([]) if r["state"] == "running"}
    except (ImportError, OSError):
        running = set()
    files = find_traces([p for p in paths if os.path.exists(p)])
    # A folder in which a process still writes is left as it is.
    busy = {os.path.dirname(trace) for trace in running}
    out = [
        Leftover("trace", f, _size(Path(f)))
        for f in files
        if os.path.dirname(os.path.realpath(f)) not in busy
    ]
    whole = [Path(p).resolve() for p in paths if os.path.isdir(p)]
    for folder in sorted({Path(each.path).parent for each in out}):
        if any(root == folder.resolve() or root in folder.resolve().parents for root in whole):
            mine = [p for pattern in _OF_TRACES for p in folder.glob(pattern) if p.is_file()]
            out += [Leftover("trace", str(p), _size(p), "belongs to a trace beside it") for p in mine]
    return out


def remove(found: list[Leftover]) -> None:
    """Delete what was found; each says whether it is gone."""
    for each in found:
        path = Path(each.path)
        if each.kind == "ring":
            from dftracer import _core

            each.deleted = bool(_core.discard_ring(each.path))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
            each.deleted = not path.exists()
        else:
            with contextlib.suppress(OSError):  # checked next
                path.unlink()
            each.deleted = not path.exists()
        if each.kind == "trace":
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()


def summary(found: list[Leftover]) -> str:
    """`2 caches (1.2 MiB), 1 ring (4 MiB)`."""
    words = {
        "cache": "cache",
        "ring": "ring of a killed process",
        "temporary": "temporary file",
        "trace": "file",
    }
    many = {"ring": "rings of killed processes"}
    parts = []
    for kind, word in words.items():
        mine = [each for each in found if each.kind == kind]
        if mine:
            size = bytes_text(sum(each.bytes for each in mine))
            parts.append(f"{plural(len(mine), word, many.get(kind))} ({size})")
    return ", ".join(parts) or "nothing"
