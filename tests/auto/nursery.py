"""Runs programs in processes that fork from one which has imported torch: importing it is most of their cost.

Reads lines of JSON {"name", "file", "args", "trace", "both", "needs"}; answers with
{"name", "code", "out", "err"}. As many run at once as argv[1] says: they sleep most of the time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any


def _child(task: dict[str, Any], out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    from dftracer.python import dftracer
    from dftracer.torch import collectives, rule

    if task["both"]:  # what is annotated by hand and what is deduced, of one and the same run
        for event in (*rule.EVENTS, *collectives._EVENTS.values()):
            event.manual_nodes = ()
    os.environ["DFTRACER_LOG_FILE"] = task["trace"]
    dftracer.get_instance().finalize()  # the nursery's session; this one is named anew, for its children too
    dftracer.initialize_log(task["trace"] + ".pfw")
    path = Path(task["file"])
    sys.argv = [str(path), *task["args"]]
    sys.path.insert(0, str(path.parent))
    code = 0
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        traceback.print_exc()
        sys.last_value = error  # as the interpreter does before its exit handlers run
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    from multiprocessing import util

    vars(util)["_exit_function"]()  # what a process of multiprocessing does before it ends
    dftracer.get_instance().finalize()
    os._exit(code)


def main() -> None:
    """Until the input ends."""
    import torch._dynamo  # noqa: F401 - the point of it all: a process's first optimizer imports it

    at_once = int(sys.argv[1])
    running: dict[int, tuple[dict[str, Any], Any, Any]] = {}

    def reap() -> None:
        pid, status = os.wait()
        if pid not in running:
            return
        task, out, err = running.pop(pid)
        result = {"name": task["name"], "code": os.waitstatus_to_exitcode(status)}
        for key, file in (("out", out), ("err", err)):
            file.seek(0)
            result[key] = file.read().decode(errors="replace")
            file.close()
        print(json.dumps(result), flush=True)

    # Half of what a forked program would do is to look through torch's objects, and to copy their pages.
    gc.freeze()
    for line in sys.stdin:
        task = json.loads(line)
        if task["needs"]:
            with contextlib.redirect_stdout(sys.stderr):
                importlib.import_module(task["needs"])
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        pid = os.fork()
        if pid == 0:
            _child(task, out.fileno(), err.fileno())
        running[pid] = (task, out, err)
        while len(running) >= at_once:
            reap()
    while running:
        reap()


if __name__ == "__main__":
    main()
