"""What a recording process leaves in its environment for the processes it starts."""

from __future__ import annotations

import os

# The run that this process and all it starts belong to, the names of files given in it, and, under
# `dftracer run`, the file that takes down where traces go.
_RUN = "DFTRACER_RUN"
_GIVEN_NAMES = "DFTRACER_GIVEN_NAMES"
_STEMS_FILE = "DFTRACER_STEMS_FILE"


def announce_run(run: str, given_names: str | None = None) -> None:
    """Make processes started from now on belong to this run and know the names given in it."""
    if run:
        os.environ[_RUN] = run
    if given_names is not None:
        os.environ[_GIVEN_NAMES] = given_names


def run_environment(run: str, stems_file: str | None = None) -> dict[str, str]:
    """The variables of the first process of a run."""
    found = {_RUN: run}
    if stems_file is not None:
        found[_STEMS_FILE] = stems_file
    return found


def report_stem(stem: str) -> None:
    """Tell the `dftracer run` that started this process where its trace goes."""
    path = os.environ.get(_STEMS_FILE)
    if not path:
        return
    try:
        # Many processes may write at once: one short line in one call.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(fd, os.fsencode(stem) + b"\n")
        finally:
            os.close(fd)
    except OSError:
        return


# Set by a recording process: where the processes it starts, which do not fork from it, write.
SESSION = "DFTRACER_SESSION"


def announce_session(prefix: str | None) -> None:
    """Make processes started from now on join this one's session; None ends that."""
    if prefix is None:
        os.environ.pop(SESSION, None)
    else:
        os.environ[SESSION] = prefix


def announced_session() -> str | None:
    """The prefix that a recording parent left, if any."""
    return os.environ.get(SESSION) or None


def set_log_file(prefix: str | None) -> str | None:
    """Set DFTRACER_LOG_FILE for processes started from now on; returns its previous value."""
    before = os.environ.get("DFTRACER_LOG_FILE")
    if prefix is None:
        os.environ.pop("DFTRACER_LOG_FILE", None)
    else:
        os.environ["DFTRACER_LOG_FILE"] = prefix
    return before
