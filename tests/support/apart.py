"""Tests that need a machine of their own: shared memory that no other process uses, and other users."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ATTACKER", "apart", "as_user", "mounted", "open_directory"]

ATTACKER = 54321  # a user id that owns nothing
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _own_mounts() -> None:
    if _libc.unshare(_CLONE_NEWNS) != 0 or _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of our own")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g,mode=1777", "none", "/dev/shm"], check=True)


def apart(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as root in a child process that has `/dev/shm`, and all it mounts, to itself."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root: it mounts file systems and acts as other users")
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    try:
                        _own_mounts()
                    except (OSError, subprocess.CalledProcessError):
                        os._exit(77)
                    test(*args, **named)
                    code = 0
                except BaseException:
                    traceback.print_exc(file=output)
                    output.flush()
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if code == 77:
                pytest.skip("needs the right to mount file systems")
            output.seek(0)
            assert code == 0, output.read()

    # What pytest takes the fixtures from.
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined] # functions may have it
    return run


def open_directory(path: Path) -> Path:
    """Every directory on the way to `path` lets others pass, as pytest's own do not."""
    path.mkdir(parents=True, exist_ok=True)
    for directory in (path, *path.parents):
        if directory.stat().st_mode & 0o055 != 0o055:
            directory.chmod(0o755)
    return path


def as_user(
    uid: int, command: list[str], env: dict[str, str], **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command as another user; skips where that user cannot even reach the interpreter."""
    return subprocess.run(
        command,
        env={**env, "HOME": "/"},
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


@contextlib.contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    """A small file system, gone at the end."""
    where.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def interpreter_for_all() -> bool:
    """Whether another user can run this interpreter with the package."""
    probe = [sys.executable, "-c", "import dftracer"]
    return as_user(ATTACKER, probe, dict(os.environ)).returncode == 0
