"""Traces in object stores and on web servers, through fsspec.

What a command needs of them is copied to the user's cache, once: a command that reads events gets whole
files, one that only asks who wrote them gets the first and the last gzip member of each, which is a small
valid trace of its own. What `dftracer ship` has stored in pieces is put together again, by its manifests.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dftracer._packages import need
from dftracer.format.members import MAGIC, member_index
from dftracer.format.trace_names import ROWS_SUFFIX, SUFFIXES, NoTraces
from dftracer.load.find import user_caches

MANIFEST = re.compile(r"dftracer-manifest-[\w.-]+\.json")
# What is copied of a directory: traces, step rows, and what is written beside them.
_WANTED = (*SUFFIXES, ROWS_SUFFIX, ".json")
_SMALL = 1 << 18  # not worth a second request
_LOOK = 1 << 16
_LONGEST_LAST = 1 << 24
_TRIES = 8
_URL = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+://")
_INDEX = ".copied.json"


class Origin(NamedTuple):
    """Where a file in the cache comes from."""

    url: str
    size: int
    whole: bool


class _Piece(NamedTuple):
    """An object of the store that is a file, or a part of one."""

    path: str
    size: int
    mark: str  # changes if the object does
    crc32: int | None = None


def is_url(path: object) -> bool:
    """Whether a path names another place than this machine's file systems."""
    return isinstance(path, str) and _URL.match(path) is not None


def local(paths: Any, heads: bool = False) -> Any:
    """The same paths, with a copy in place of each URL; with `heads`, of what tells who wrote the files."""
    if isinstance(paths, (str, os.PathLike)):
        if is_url(paths):
            return str(_copied(str(paths), heads))
        return str(paths).removeprefix("file://") if str(paths).startswith("file://") else paths
    return [local(each, heads) for each in paths]


def origin(file: Path) -> Origin | None:
    """What a file is a copy of; None if it is none."""
    for folder in file.parents:
        index = _read_json(folder / _INDEX)
        if index is not None:
            kept = index["files"].get(str(file.relative_to(folder)))
            return None if kept is None else Origin(kept["url"], kept["size"], kept["whole"])
        if folder.name == "dftracer-remote":
            break
    return None


def store_of(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    fsspec = need("fsspec", "remote")
    options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
    if url.startswith(("s3://", "s3a://")):  # `backing_off` asks again; two layers of that take minutes
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, "connect_timeout": 5}
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as e:
        # fsspec's sentence names the package to install.
        raise need_error(f"{url.partition('://')[0]}://: {e}") from None
    except ValueError as e:
        raise NoTraces(f"{url}: {e}") from None
    except OSError as e:
        if not url.startswith(("hdfs://", "viewfs://")):
            raise
        # pyarrow's sentence names every place where it has looked for Java.
        needs = "pyarrow, Java (JAVA_HOME) and Hadoop's libhdfs (HADOOP_HOME, CLASSPATH)"
        raise need_error(f"{url.partition('://')[0]}:// needs {needs}: {str(e)[:60]}…") from None
    return fs, str(path).rstrip("/")


def need_error(text: str) -> ImportError:
    from dftracer._packages import MissingExtra, advice  # noqa: PLC0415

    return MissingExtra(f"{text}; for fsspec and S3: {advice('fsspec', 'remote')}")


def backing_off(do: Callable[[], Any], tries: int = _TRIES, longest_s: float = 10.0) -> Any:
    """What `do` returns; a store that refuses or does not answer is asked again, later and later."""
    for turn in range(tries):
        try:
            return do()
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ImportError):
            raise
        except Exception:
            if turn == tries - 1:
                raise
            # Ranks that were refused together must not come back together.
            time.sleep(min(longest_s, 0.1 * 2**turn) * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


def _copied(url: str, heads: bool) -> Path:
    """The copy of a URL: a file if it names one, otherwise a directory."""
    fs, root = store_of(url)
    try:
        files = backing_off(lambda: _files_at(fs, root))
    except FileNotFoundError:
        raise NoTraces(f"{url} does not exist") from None
    except (OSError, ValueError) as e:
        raise NoTraces(f"{url}: {e or type(e).__name__}") from None
    except ImportError:
        raise
    except Exception as e:  # each store has errors of its own
        raise NoTraces(f"{url}: {type(e).__name__}: {e}") from None
    if not files:
        raise NoTraces(f"no .pfw or .pfw.gz file under {url}")
    base = url.rstrip("/")
    if MANIFEST.fullmatch(root.rpartition("/")[2]):
        base = base.rpartition("/")[0]
    caches = user_caches()
    copies = caches / "dftracer-remote" / hashlib.sha256(url.encode()).hexdigest()[:16]
    copies /= "heads" if heads else "whole"
    copies.mkdir(parents=True, exist_ok=True)
    index = _read_json(copies / _INDEX) or {"url": url, "files": {}}
    for name in sorted(set(index["files"]) - set(files)):
        with contextlib.suppress(OSError):  # an old copy that stays is not in the index
            (copies / name).unlink()
        del index["files"][name]
    for name, pieces in files.items():
        target = copies / name
        marks = [[p.path, p.size, p.mark] for p in pieces]
        kept = index["files"].get(name)
        if kept is not None and kept["pieces"] == marks and target.is_file():
            continue
        size = sum(p.size for p in pieces)
        part = heads and size > _SMALL and name.endswith(SUFFIXES)
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            _copy_head(fs, pieces, beside) if part else _copy_whole(fs, pieces, beside)
            beside.replace(target)
        finally:
            with contextlib.suppress(OSError):  # gone already, unless the copy failed
                beside.unlink()
        where = url if root in _paths(pieces) else f"{base}/{name}"
        index["files"][name] = {"url": where, "size": size, "whole": not part, "pieces": marks}
        _write_json(copies / _INDEX, index)
    _write_json(copies / _INDEX, index)
    alone = len(files) == 1 and _paths(next(iter(files.values()))) == [root]
    return copies / next(iter(files)) if alone else copies


def _paths(pieces: list[_Piece]) -> list[str]:
    return [p.path for p in pieces]


def _files_at(fs: Any, root: str) -> dict[str, list[_Piece]]:
    """The files below a root, by name, each with the objects it consists of."""
    fs.invalidate_cache()
    if MANIFEST.fullmatch(root.rpartition("/")[2]):
        return _of_manifest(fs, root)
    if root.endswith(SUFFIXES):
        return {root.rpartition("/")[2]: [_piece(fs, root, fs.info(root))]}
    found: dict[str, list[_Piece]] = {}
    parts: set[str] = set()  # of files that manifests list, maybe under other names
    listed = fs.find(root, detail=True)
    if not listed and not fs.exists(root):
        raise FileNotFoundError(root)
    for path, info in listed.items():
        name = path.removeprefix(root).lstrip("/")
        if any(part.startswith(".") for part in name.split("/")):
            continue
        if MANIFEST.fullmatch(path.rpartition("/")[2]):
            folder = name.rpartition("/")[0]
            for inner, pieces in _of_manifest(fs, path).items():
                found[f"{folder}/{inner}" if folder else inner] = pieces
                parts |= {piece.path for piece in pieces}
        elif name.endswith(_WANTED):
            found.setdefault(name, [_piece(fs, path, info)])
    return {
        name: pieces
        for name, pieces in found.items()
        if pieces[0].crc32 is not None or pieces[0].path not in parts
    }


def _piece(fs: Any, path: str, info: dict[str, Any]) -> _Piece:
    if info.get("size") is None:
        info = fs.info(path)
    mark = next((str(info[key]) for key in ("ETag", "mtime", "LastModified", "created") if info.get(key)), "")
    return _Piece(path, int(info.get("size") or 0), mark)


def _of_manifest(fs: Any, path: str) -> dict[str, list[_Piece]]:
    """The files that a manifest of `dftracer ship` lists."""
    base = path.rpartition("/")[0]
    manifest = json.loads(fs.cat_file(path))
    return {
        each["name"]: [
            _Piece(f"{base}/{p['object']}", p["size"], str(p["crc32"]), p["crc32"]) for p in each["parts"]
        ]
        for each in manifest["files"]
        if not Path(each["name"]).is_absolute() and ".." not in Path(each["name"]).parts
    }


def _copy_whole(fs: Any, pieces: list[_Piece], target: Path) -> None:
    with target.open("wb") as out:
        for piece in pieces:
            for block in _blocks(fs, piece):
                out.write(block)


def _blocks(fs: Any, piece: _Piece) -> Iterator[bytes]:
    """An object in requests of bounded size; what the manifest says of it is checked."""
    check = 0
    for at in range(0, piece.size, 1 << 26):
        block = _range(fs, piece, at, min(piece.size, at + (1 << 26)))
        check = zlib.crc32(block, check)
        yield block
    if piece.crc32 is not None and check != piece.crc32:
        raise OSError(f"{piece.path} is not what was stored")


def _range(fs: Any, piece: _Piece, start: int, end: int) -> bytes:
    found: bytes = backing_off(lambda: fs.cat_file(piece.path, start=start, end=end))
    if len(found) == piece.size:  # a web server that knows no ranges
        found = found[start:end]
    if len(found) != end - start:
        raise OSError(f"{piece.path} changed while it was read")
    return found


def _copy_head(fs: Any, pieces: list[_Piece], target: Path) -> None:
    """The first member and the last, of a file that may be of any size."""
    target.write_bytes(b"".join(_first_and_last(fs, pieces)))


def _first_and_last(fs: Any, pieces: list[_Piece]) -> Iterable[bytes]:
    first = pieces[0]
    head = _range(fs, first, 0, min(first.size, _LOOK))
    index = member_index(head)
    if index is None and not head.startswith(MAGIC):
        yield head[: head.rfind(b"\n") + 1]
        end = _range(fs, pieces[-1], max(0, pieces[-1].size - _LOOK), pieces[-1].size)
        yield end[end.find(b"\n") + 1 :]
        return
    if index is None or index.member_size > first.size:  # another writer's: nothing says where members end
        yield from (block for piece in pieces for block in _blocks(fs, piece))
        return
    rest = _range(fs, first, len(head), index.member_size) if index.member_size > len(head) else b""
    yield (head + rest)[: index.member_size]
    if len(pieces) == 1 and first.size == index.member_size:
        return
    yield _last_member(fs, pieces[-1], index.member_size if len(pieces) == 1 else 0)


def _last_member(fs: Any, piece: _Piece, after: int) -> bytes:
    """The member that ends where the object does; empty if none can be found in the last megabytes."""
    look = _LOOK
    while True:
        start = max(after, piece.size - look)
        end = _range(fs, piece, start, piece.size)
        at = end.rfind(MAGIC)
        while at != -1:
            index = member_index(end[at : at + 64])
            if index is not None and at + index.member_size == len(end):
                return end[at:]
            at = end.rfind(MAGIC, 0, at)
        if start == after or look >= _LONGEST_LAST:
            return b""
        look *= 8


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("files"), dict) else None


def _write_json(path: Path, value: dict[str, Any]) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value), encoding="utf-8")
    shutil.move(beside, path)
