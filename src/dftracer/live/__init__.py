"""LIVE: traces of processes that may still be running, read without disturbing them.

Nothing here writes to a trace or a ring, takes a lock, completes a killed process's file or wakes a process.
Without any extra::

    from dftracer.live import look, traces_of_process

    for file in look("traces/"):        # one LiveFile for each trace file, existing or about to
        file.path, file.pid, file.state # "running", "killed", "finished", "cut" or "unknown"
        file.final                      # bytes of the file that will never change: index them once
        file.rest()                     # bytes: the lines (JSON, one record each) after those, up to now

To follow a run: read `file.path` up to `final` once (`Scanner(path, ..., span=(known, final))`), replace what
you had of `rest()` with the new one, and look again. `final` only grows while the file keeps its name; a file
that is finished has `final == size` and no rest. `whole_copy(file, path)` writes all of it as a trace that
any reader accepts; `Recent` keeps such copies of the last seconds of a run, for `dftracer top`.
"""

from dftracer.live.look import LiveFile as LiveFile
from dftracer.live.look import look as look
from dftracer.live.look import running_directories as running_directories
from dftracer.live.look import traces_of_process as traces_of_process
from dftracer.live.look import whole_copy as whole_copy
from dftracer.live.recent import Recent as Recent
