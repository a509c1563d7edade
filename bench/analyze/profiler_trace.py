"""A trace that is nearly all profiler: operators, launches and kernels of one process, as `trace_handler` writes
them.
"""

from __future__ import annotations

import gzip
from pathlib import Path

__all__ = ["profiler_trace"]

_PER_STEP = 3 * 2000  # operators, calls and kernels
_US = 10  # from one launch to the next


def profiler_trace(directory: Path, events: int) -> int:
    """Write it; gives how many events it has."""
    directory.mkdir(parents=True, exist_ok=True)
    steps = max(events // _PER_STEP, 1)
    made = 0
    with gzip.open(directory / "profiler-0.pfw.gz", "wt", compresslevel=1) as out:
        out.write("[\n")
        number = 0
        for step in range(steps):
            began = 1_700_000_000_000_000 + step * (_PER_STEP // 3 * _US + 4000)
            head = '"pid":1,"tid":1,'
            lines = [
                f'{{"id":{number},"name":"fetch.iter","cat":"dataloader",{head}"ts":{began},"dur":2000,"ph":"X",'
                f'"args":{{"hhash":"a","p_idx":-1,"step":{step},"epoch":0,"level":1}}}}\n',
                f'{{"id":{number + 1},"name":"forward","cat":"compute",{head}"ts":{began + 2000},'
                f'"dur":{_PER_STEP // 3 * _US + 1000},"ph":"X","args":{{"hhash":"a","p_idx":-1,"step":{step},"level":1}}}}\n',
                f'{{"id":{number + 2},"name":"fetch.block","cat":"dataloader",{head}"ts":{began + 2000},'
                f'"dur":{_PER_STEP // 3 * _US + 2000},"ph":"X","args":{{"hhash":"a","p_idx":-1,"step":{step},"level":1}}}}\n',
                f'{{"id":{number + 3},"name":"ProfilerStep#{step}","cat":"PP",{head}"ts":{began},'
                f'"dur":{_PER_STEP // 3 * _US + 4000},"ph":"X","args":{{"hhash":"a","p_idx":-1,"type":"user_annotation"}}}}\n',
            ]
            number += 4
            for k in range(_PER_STEP // 3):
                at = began + 2000 + k * _US
                correlation = step * _PER_STEP + k
                kernel = k % 40
                lines.append(
                    f'{{"id":{number},"name":"aten::op{kernel}","cat":"PP",{head}"ts":{at},"dur":8,"ph":"X",'
                    f'"args":{{"hhash":"a","p_idx":-1,"type":"cpu_op","dur_ns":8000}}}}\n'
                    f'{{"id":{number + 1},"name":"cudaLaunchKernel","cat":"PP",{head}"ts":{at + 2},"dur":4,"ph":"X",'
                    f'"args":{{"hhash":"a","p_idx":-1,"type":"cuda_runtime","dur_ns":4000,"correlation":{correlation},'
                    f'"op":"aten::op{kernel}"}}}}\n'
                    f'{{"id":{number + 2},"name":"kernel_{kernel}","cat":"PP","pid":1,"tid":16777223,"ts":{at + 5},'
                    f'"dur":4,"ph":"X","args":{{"hhash":"a","p_idx":-1,"type":"kernel","dur_ns":4000,"device_index":0,'
                    f'"stream":7,"correlation":{correlation},"op":"aten::op{kernel}"}}}}\n'
                )
                number += 3
            out.writelines(lines)
            made = number
        out.write("]\n")
    return made
