"""Classifies I/O calls by name: a read, a write, an open. The list of traced calls decides.

Other tracers record the symbol that was called (`open64`, `__read_chk`): treated as the call it leads to.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from dftracer.format._io_roles import ROLES

# Categories of I/O events in lower case; ours are POSIX and STDIO.
IO_CATEGORIES: Final = frozenset({"posix", "stdio", "mpiio", "mpi-io", "hdf5", "io"})

# Calls that others trace and we do not.
_OTHERS: Final = {
    "fscanf": "read",
    "vfscanf": "read",
    "getc": "read",
    "getw": "read",
    "vfprintf": "write",
    "putc": "write",
    "putw": "write",
    "aio_read": "read",
    "aio_write": "write",
    "xstat": "metadata",
    "fxstat": "metadata",
    "lxstat": "metadata",
    "clone": "process",
    "execv": "process",
    "execvp": "process",
    "fexecve": "process",
    "system": "process",
    "popen": "process",
    "pclose": "process",
}


@lru_cache(maxsize=4096)
def role_of(name: str) -> str:
    """`open`, `close`, `read`, `write`, `transfer`, `sync`, `process`; `metadata` for all other calls."""
    plain = name.lower().lstrip("_").removesuffix("_chk").removesuffix("_unlocked")
    # preadv64v2 is preadv2 with another type.
    for known in (plain, plain.removesuffix("64"), plain.replace("64v2", "2")):
        role = ROLES.get(known) or _OTHERS.get(known)
        if role is not None:
            return role
    return "metadata"


def is_read(name: str) -> bool:
    """Whether a call moves bytes from storage to memory."""
    return role_of(name) == "read"


def is_write(name: str) -> bool:
    """Whether a call moves bytes from memory to storage."""
    return role_of(name) == "write"


def is_open(name: str) -> bool:
    """Whether a call opens a file for reading or writing; directories are metadata."""
    return role_of(name) == "open"


def is_close(name: str) -> bool:
    return role_of(name) == "close"


def is_process(name: str) -> bool:
    """Whether a call starts or awaits a process: it is traced in the same category but is not I/O."""
    return role_of(name) == "process"


def is_metadata(name: str) -> bool:
    """Whether a call is I/O that neither opens, closes, reads, writes nor copies a file."""
    return role_of(name) in ("metadata", "sync")
