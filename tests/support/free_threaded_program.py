"""Threads that annotate at once, on a Python without the interpreter lock; checks its own trace.

Run as `python free_threaded_program.py DIRECTORY` by a Python that has the package installed; with a second argument,
`locked`, by one that may have the interpreter lock.
"""

from __future__ import annotations

import gzip
import importlib
import json
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

THREADS = 4
TURNS = 1500


def main(directory: Path, locked: bool) -> None:
    importlib.import_module("dftracer.link._text")
    importlib.import_module("dftracer.load._scan")
    from dftracer.python import ai, dft_fn, dftracer  # noqa: PLC0415 - tracing is switched on by the environment

    assert locked or not sys._is_gil_enabled(), "an import has switched the interpreter lock on"  # type: ignore[attr-defined, unused-ignore]
    log = dftracer.initialize_log(str(directory / "trace.pfw"), None, -1)
    fn = dft_fn("threads")

    @fn.log
    def logged(x: int, step: int) -> int:
        return x + step

    @ai.compute.forward(args={"kind": "decorated"})
    def decorated() -> None:
        return None

    shared_use = ai.compute.backward(args={"a": 1})
    values: dict[str, Any] = {"k": [1, 2, 3]}
    barrier = threading.Barrier(THREADS)

    def work(me: int) -> None:
        barrier.wait()
        for turn in range(TURNS):
            with ai.data.item, ai.compute.step(args={"me": me, "turn": turn}):
                pass
            with shared_use:
                pass
            logged(me, step=turn)
            decorated()
            if turn % 10 == 0:
                # What others are reading meanwhile.
                ai.update(epoch=me, step=turn)
                shared_use.update(args={"b": turn})
                values["k"].append(turn)
                values[f"k{turn % 50}"] = turn
                with ai.data.preprocess(args=values):
                    pass
                values["k"].clear()
            with ai.compute.derive(f"part{turn % 7}"):
                pass
            if turn % 100 == 0:
                for _ in ai.dataloader.fetch.iter(range(5)):
                    pass

    threads = [threading.Thread(target=work, args=(me,)) for me in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.finalize()
    assert len({id(ai.compute.derive(f"part{i}")) for i in range(7)}) == 7
    check(directory)
    assert locked or not sys._is_gil_enabled()  # type: ignore[attr-defined, unused-ignore]


def check(directory: Path) -> None:
    records = []
    for file in directory.glob("trace*.pfw.gz"):
        with gzip.open(file, "rt") as lines:
            records += [json.loads(line) for line in lines if line.startswith("{")]
    ids = [record["id"] for record in records]
    assert len(set(ids)) == len(ids), "two records have the same id"
    events = [record for record in records if record["ph"] == "X"]
    found = Counter((event["cat"], event["name"]) for event in events)
    every = THREADS * TURNS
    expected = {
        ("data", "item"): every,
        ("compute", "step"): every,
        ("compute", "backward"): every,
        ("compute", "forward"): every,
        ("data", "preprocess"): every // 10,
        ("dataloader", "fetch.iter"): THREADS * TURNS // 100 * 5,
        ("dataloader", "fetch.block"): THREADS * TURNS // 100 * 5,
    }
    for key, number in expected.items():
        assert found[key] == number, (key, found[key], number, found)
    assert sum(n for (cat, _), n in found.items() if cat == "threads") == every, found
    assert sum(n for (_, name), n in found.items() if ".part" in name) == every, found
    of_id = {event["id"]: event for event in events}
    pairs = set()
    for event in events:
        if (event["cat"], event["name"]) != ("compute", "step"):
            continue
        above = of_id[event["args"]["p_idx"]]
        assert above["name"] == "item"
        assert above["tid"] == event["tid"], "a span of one thread lies in a span of another"
        pairs.add((int(event["args"]["me"]), int(event["args"]["turn"])))
    assert len(pairs) == every


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] == ["locked"])
    sys.stdout.write("fine\n")
