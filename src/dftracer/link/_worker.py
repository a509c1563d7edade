"""The other end of `directory._Team`: one lane of ranks in a separate process."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from dftracer.link.directory import Lane, receive, send


def main() -> int:
    """Process requests from stdin, answer on the original stdout."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # printed text must not get between the answers
    importlib.import_module("dftracer.link.rank")  # while the other side looks at the directory
    task = receive(sys.stdin.buffer)
    if task is None:
        return 0
    lane = Lane(*task)
    try:
        for do in (lambda _: lane.prepare(), lane.write):
            order = receive(sys.stdin.buffer)
            if order is None and do == lane.write:
                break
            answer: Any
            try:
                answer = do(order)
            except Exception as e:
                answer = e
            send(answers, answer)
    finally:
        lane.clean()
    return 0


if __name__ == "__main__":
    sys.exit(main())
