"""Directories to link: a real run of two ranks over gloo, and the same repeated to any size.

`python -m bench.link.generate OUT [--layers N] [--steps N] [--repeat N]`
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["record", "repeat"]

_PROGRAM = Path(__file__).with_name("ddp_program.py")
_TENSOR = re.compile(r'\[(\d+), ?(\d+), ?(\d+, ?\d+, ?\d+, ?")')


def record(out: Path, layers: int, steps: int) -> Path:
    """Train for some steps as two ranks, each with its execution trace, profile and our trace."""
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = []
    for rank in range(2):
        command = [sys.executable, str(_PROGRAM), str(out), str(rank), "2", port]
        command += ["--layers", str(layers), "--steps", str(steps)]
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL))
    codes = [process.wait() for process in ranks]
    if any(codes):
        raise RuntimeError("the training did not end well")
    return out


def repeat(source: Path, out: Path, times: int) -> Path:
    """The nodes and events of each rank again and again: later, and with numbers of their own."""
    out.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        _repeat_nodes(source / f"torch_et_{rank}.json", out / f"torch_et_{rank}.json", times)
        _repeat_events(source / f"kineto_trace_{rank}.json", out / f"kineto_trace_{rank}.json", times)
    return out


def _repeat_nodes(source: Path, target: Path, times: int) -> None:
    trace = json.loads(source.read_text(encoding="utf-8"))
    roots = [n for n in trace["nodes"] if n["name"].startswith("[pytorch|")]
    nodes = [n for n in trace["nodes"] if not n["name"].startswith("[pytorch|")]
    fixed = {n["id"] for n in roots}
    width = max(n["id"] for n in trace["nodes"]) + 1
    records = max(_value(n, "rf_id") for n in nodes) + 1
    sequences = max(_value(n, "seq_id") for n in nodes if _value(n, "seq_id") < 1 << 62) + 1
    head = json.dumps({k: v for k, v in trace.items() if k not in ("nodes", "finish_ts")})
    with target.open("w", encoding="utf-8") as f:
        f.write(head[:-1] + ', "nodes": [\n' + ",\n".join(json.dumps(n) for n in roots))
        for turn in range(times):
            shift = {"rf_id": turn * records, "seq_id": turn * sequences}
            for n in nodes:
                again = dict(n, id=n["id"] + turn * width)
                if n["ctrl_deps"] not in fixed:
                    again["ctrl_deps"] = n["ctrl_deps"] + turn * width
                again["attrs"] = [_shifted(a, shift) for a in n["attrs"]]
                text = json.dumps(again)
                if turn:
                    text = _TENSOR.sub(partial(_later, turn * width), text)
                f.write(",\n" + text)
        f.write('\n], "finish_ts": 1}')


def _value(node: dict[str, Any], name: str) -> int:
    return next(int(a["value"]) for a in node["attrs"] if a["name"] == name)


def _shifted(attribute: dict[str, Any], shift: dict[str, int]) -> dict[str, Any]:
    by = shift.get(attribute["name"])
    if by is None or not 0 < attribute["value"] < 1 << 62:
        return attribute
    return {**attribute, "value": attribute["value"] + by}


def _later(by: int, found: re.Match[str]) -> str:
    return f"[{int(found[1]) + by},{int(found[2]) + by},{found[3]}"


def _repeat_events(source: Path, target: Path, times: int) -> None:
    profile = json.loads(source.read_text(encoding="utf-8"))
    spans = [e for e in profile["traceEvents"] if e["ph"] == "X" and isinstance(e.get("pid"), int)]
    others = [e for e in profile["traceEvents"] if e["ph"] == "M"]
    length = max(e["ts"] + e["dur"] for e in spans) - min(e["ts"] for e in spans) + 1000
    records = max(e["args"].get("Record function id", 0) for e in spans) + 1
    head = json.dumps({k: v for k, v in profile.items() if k not in ("traceEvents", "traceName")})
    with target.open("w", encoding="utf-8") as f:
        f.write(head[:-1] + ', "traceEvents": [\n' + ",\n".join(json.dumps(e) for e in others))
        for turn in range(times):
            for e in spans:
                again = dict(e, ts=round(e["ts"] + turn * length, 3))
                if e["args"].get("Record function id"):
                    again["args"] = {
                        **e["args"],
                        "Record function id": e["args"]["Record function id"] + turn * records,
                    }
                f.write(",\n" + json.dumps(again))
        f.write("\n]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.link.generate", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--steps", type=int, default=18, help="18 steps of 40 layers are 98,982 nodes a rank")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    if args.repeat == 1:
        record(args.out, args.layers, args.steps)
    else:
        repeat(record(args.out / "real", args.layers, args.steps), args.out / "repeated", args.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
