"""Waiting until no other thread is inside an operator that began under the profiler.

With `profile_all_threads`, Kineto frees its memory when it stops, and an operator that another thread still
executes writes its end time there (torch 2.13: the process dies sooner or later). So new operators are kept
out first, and the profiler is stopped once every thread has been seen to move on: at another place of its
Python code, in code of the standard library, where no operator runs, or waiting for the interpreter lock.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time

__all__ = ["others_exist", "wait_for_operators"]

_STDLIB = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
_SITE = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_PAUSE_S = 0.0005
_HOLD_S = 0.002  # below the switch interval: whoever ends an operator meanwhile has to wait for the lock
_SWITCHES = 3

_Position = tuple[int, int]


def _positions() -> dict[int, _Position | None]:
    """Where each other thread is; None for one that waits inside the standard library."""
    me = threading.get_ident()
    found: dict[int, _Position | None] = {}
    for ident, frame in sys._current_frames().items():
        if ident == me:
            continue
        name = frame.f_code.co_filename
        own = name.startswith(_STDLIB) and not any(site in name for site in _SITE)
        found[ident] = None if own or name.startswith("<frozen") else (id(frame), frame.f_lasti)
    return found


def others_exist() -> bool:
    """Whether any thread but this one and our own samplers executes Python code."""
    own = {t.ident for t in threading.enumerate() if t.name.startswith("dftracer-")}
    own.add(threading.get_ident())
    return any(ident not in own for ident in sys._current_frames())


def _switches(native_id: int | None) -> int:
    """How often a thread has given up its processor by itself."""
    try:
        with open(f"/proc/self/task/{native_id}/status", "rb", buffering=0) as file:
            for line in file.read().splitlines():
                if line.startswith(b"voluntary_ctxt_switches"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0


def _hold_the_lock() -> None:
    end = time.monotonic() + _HOLD_S
    while time.monotonic() < end:
        pass


def wait_for_operators(limit_s: float) -> bool:
    """Whether every operator that other Python threads were in has ended, after at most `limit_s`."""
    pending = {ident: at for ident, at in _positions().items() if at is not None}
    if not pending:
        return True
    native = {thread.ident: thread.native_id for thread in threading.enumerate()}
    before = {ident: _switches(native.get(ident)) for ident in pending}
    end = time.monotonic() + limit_s
    rounds = 0
    while pending:
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_S)
        now = _positions()
        pending = {ident: at for ident, at in pending.items() if ident in now and now[ident] == at}
        rounds += 1
        if rounds > _SWITCHES and pending:
            # A loop around a single operator is always found at the same place.
            _hold_the_lock()
            pending = {
                ident: at
                for ident, at in pending.items()
                if _switches(native.get(ident)) - before[ident] < _SWITCHES
            }
    return True
