"""Instructions that automatic tracing adds to a training step, counted by callgrind on the training thread.

    python -m bench.auto.instructions

Times of a step differ by more from run to run, on a machine that others use too, than tracing costs; the
number of instructions hardly does. Counting begins when torch has been imported and the loop is warm. The
garbage collector is off meanwhile: when it runs depends on every object made since the start, even on the
length of a path, and one of its rounds over torch's objects costs more than the steps that are counted.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.instructions import ROOT, begin_counting, find_valgrind, sections

__all__ = ["BATCHES", "count", "least"]

BATCHES = (1, 16)
_LENGTHS = (10, 40)
_WARM_UP = 30


def _program() -> list[str]:
    """Runs under callgrind; the label of every section, in the order of the marks that close them."""
    import torch  # noqa: PLC0415

    from bench.auto.step import Step  # noqa: PLC0415
    from dftracer import auto  # noqa: PLC0415

    torch.set_num_threads(1)
    step = Step("cpu", 8, 1)

    def block(steps: int, batch: int, *, marked: bool = True) -> None:
        loader = step.loader(steps, batch)
        if marked:
            os.getloadavg()
        for each in loader:
            step(each)
        if marked:
            os.getloadavg()

    for batch in BATCHES:  # what is done once is not counted, nor slowed down by counting
        block(_WARM_UP, batch, marked=False)
        auto.install()
        block(_WARM_UP, batch, marked=False)
        auto.uninstall()
    gc.collect()
    gc.disable()
    begin_counting()
    labels = []
    for traced in (False, True):
        if traced:
            auto.install()
        for batch in BATCHES:
            block(_WARM_UP, batch)
            labels += ["", ""]
            for length in _LENGTHS:
                block(length, batch)
                labels += ["", f"{traced:d}/{batch}/{length}"]
    return labels


def count(python: Path, layout: int = 0) -> dict[int, float]:
    """Per size of a batch: instructions of a traced step less those of an untraced one.

    `layout` seeds the hashes of strings, and with them where objects lie in memory: that decides which names
    share a place in the interpreter's cache of attributes, worth up to a sixth of the result.
    """
    valgrind = find_valgrind()
    fixed_layout = [setarch, "-R"] if (setarch := shutil.which("setarch")) else []
    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        directory = Path(name)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DFTRACER_")}
        environment |= {
            "DFTRACER_ENABLE": "1",
            "DFTRACER_DISABLE_IO": "1",
            "DFTRACER_LOG_FILE": str(directory / "trace"),
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": str(layout),
            "PYTHONPATH": str(ROOT),
        }
        command = [
            *fixed_layout,
            valgrind,
            "--quiet",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            "--fair-sched=try",
            "--dump-before=getloadavg",
            f"--callgrind-out-file={directory / 'callgrind'}",
            str(python),
            "-m",
            "bench.auto.instructions",
            "--program",
        ]
        done = subprocess.run(
            command, env=environment, cwd=directory, capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-4000:]}")
        found = sections(directory, json.loads(done.stdout.splitlines()[-1]))
    short, long = _LENGTHS

    def a_step(traced: bool, batch: int) -> float:
        grown = found[f"{traced:d}/{batch}/{long}"] - found[f"{traced:d}/{batch}/{short}"]
        return grown / (long - short)

    return {batch: a_step(True, batch) - a_step(False, batch) for batch in BATCHES}


def least(python: Path, budgets: dict[str, float]) -> dict[int, float]:
    """The counts of one layout, or the least of three where it is over a budget: slower code is so in all."""
    found = count(python)
    for layout in (1, 2):
        if all(found[int(items)] <= budget for items, budget in budgets.items()):
            break
        other = count(python, layout)
        found = {items: min(found[items], other[items]) for items in found}
    return found


if __name__ == "__main__":
    if "--program" in sys.argv:
        sys.stdout.write(json.dumps(_program()) + "\n")
    else:
        for batch, instructions in count(Path(sys.executable)).items():
            sys.stdout.write(f"{batch} items a batch: {instructions:.0f} instructions a step\n")
