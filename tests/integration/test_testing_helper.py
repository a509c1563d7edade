"""`dftracer.testing` shows what an independent reader of the same files shows."""

from __future__ import annotations

import json
from collections.abc import Callable

from support.process import Run


def test_capture_agrees_with_the_written_trace(traced: Callable[..., Run]) -> None:
    """Same events, args, times and parents."""
    run = traced(
        """
        import json, os
        from dftracer.testing import read
        with ai.pipeline.train:
            for i in ai.dataloader.fetch.iter(range(5)):
                with ai.compute.forward(args={"i": i, "s": "x\\n\\u00e9", "n": [1, {"a": None}]}): pass
        log.finalize()
        events = read(os.path.dirname(os.environ["DFTRACER_LOG_FILE"]))
        print(json.dumps([[e.name, e.cat, e.ts, e.dur, e.level, e.args, e.parent.name if e.parent else None]
                          for e in events]))
        """
    )
    trace = run.trace
    by_id = {e.id: e for e in trace.events}
    expected = [
        [
            e.name,
            e.cat,
            e.ts,
            e.dur,
            e.level,
            # The reader turns the format's numbers that are strings into numbers.
            {k: int(v) if k == "count" else v for k, v in e.user_args.items()},
            by_id[e.parent_id].name if e.parent_id != -1 else None,
        ]
        for e in trace.events
    ]
    assert sorted(json.loads(run.stdout), key=repr) == sorted(expected, key=repr)


def test_capture_in_a_users_test(program: Callable[..., Run]) -> None:
    """A block's events as objects, from the block alone, forked workers included; nothing is left behind."""
    run = program(
        """
        from dftracer.testing import capture
        from dftracer.python import ai
        import os
        with ai.comm.send: pass
        with capture() as events:
            with ai.pipeline.train:
                with ai.compute.forward(args={"k": 1}): pass
            pid = os.fork()
            if pid == 0:
                with ai.data.item: pass
                os._exit(0)
            os.waitpid(pid, 0)
        assert sorted(e.name for e in events) == ["forward", "item", "train"]
        forward = events.one("forward")
        assert forward.cat == "compute" and forward.args == {"k": 1}
        assert forward.parent is events.one("train")
        with ai.comm.receive: pass
        assert len(events) == 3
        """,
        enable=False,
    )
    assert run.stderr == ""
    assert [p for p in run.written if p.startswith("cwd")] == []
