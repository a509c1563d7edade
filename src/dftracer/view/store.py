"""Parts cached between sessions, in the user's cache directory and never next to the trace.

A cached part is used only while the files it was made from have the same size, time and identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dftracer.view.part import Part

__all__ = ["VERSION", "cache_folder", "find", "keep", "key_of", "make_room", "stamp_of"]

VERSION = 3
_MAGIC = b"dftracer view 1\n"
_ALIGN = 64
_MOST_BYTES = 16 << 30  # of all cached parts; the least recently used are deleted first
_SUFFIX = ".dfv"


def cache_folder() -> Path:
    """Where parts are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "dftracer" / "view"


def stamp_of(files: Iterable[Path]) -> str:
    """Changes whenever one of the files does."""
    facts = []
    for file in files:
        s = file.stat()
        facts.append(f"{s.st_size}:{s.st_mtime_ns}:{s.st_ino}")
    return f"{VERSION};" + ";".join(facts)


def key_of(files: Iterable[Path], what: str = "part") -> str:
    """The name under which something made from files is cached."""
    digest = hashlib.sha256(what.encode())
    for file in files:
        digest.update(b"\0" + os.fsencode(file.resolve()))
    return digest.hexdigest()[:32]


def keep(key: str, stamp: str, parts: list[Part]) -> bool:
    """Cache parts; False if nothing can be written."""
    folder = cache_folder()
    head: list[dict[str, Any]] = []
    arrays: list[np.ndarray] = []
    at = 0
    for part in parts:
        listed: dict[str, Any] = {}
        for name, column in part.columns.items():
            data = np.ascontiguousarray(column)
            listed[name] = [at, data.dtype.str, list(data.shape)]
            arrays.append(data)
            at += -(-data.nbytes // _ALIGN) * _ALIGN
        head.append({"info": part.info, "pairs": part.pairs, "paths": part.paths, "columns": listed})
    text = json.dumps({"stamp": stamp, "parts": head}).encode("utf-8", "replace")
    temporary = folder / f".{key}.{os.urandom(6).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with temporary.open("wb") as out:
            begin = len(_MAGIC) + 16 + len(text)
            begin = -(-begin // _ALIGN) * _ALIGN
            out.write(_MAGIC + len(text).to_bytes(8, "little") + begin.to_bytes(8, "little") + text)
            out.write(bytes(begin - out.tell()))
            for data in arrays:
                out.write(data.reshape(-1).view(np.uint8).data)
                out.write(bytes(-data.nbytes % _ALIGN))
        temporary.replace(folder / (key + _SUFFIX))
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def find(key: str, stamp: str) -> list[Part] | None:
    """The parts kept under a name, mapped and not read; None where they are missing or stale."""
    place = cache_folder() / (key + _SUFFIX)
    try:
        with place.open("rb") as file:
            start = file.read(len(_MAGIC) + 16)
            if start[: len(_MAGIC)] != _MAGIC:
                return None
            size, begin = (int.from_bytes(start[-16:][i : i + 8], "little") for i in (0, 8))
            head = json.loads(file.read(size))
        if head["stamp"] != stamp:
            return None
        os.utime(place)
        whole = np.memmap(place, np.uint8, "r")
        return [_mapped(whole, begin, each) for each in head["parts"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _mapped(whole: np.ndarray, begin: int, head: dict[str, Any]) -> Part:
    part = Part(head["info"], [(c, n, k) for c, n, k in head["pairs"]], head["paths"])
    for name, (at, kind, shape) in head["columns"].items():
        dtype = np.dtype(kind)
        size = math.prod(shape) * dtype.itemsize
        data = whole[begin + at : begin + at + size]
        if data.size != size:
            raise ValueError("cut short")
        part.columns[name] = np.asarray(data).view(dtype).reshape(shape)
    return part


def make_room() -> None:
    """Remove what has been unused longest, if all that is kept is too much."""
    folder, kept = cache_folder(), []
    if not folder.is_dir():
        return
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.name.endswith(_SUFFIX):
                kept.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= _MOST_BYTES:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
