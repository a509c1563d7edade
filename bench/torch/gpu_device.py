"""Does the report see what the GPU waits for? One command on a machine with a GPU, no test runner:

    python bench/torch/gpu_device.py [--out FILE]

Four runs with a known bottleneck (gpu_cases.py), each once with device events alone and once with a profiler
window; then what device events cost a step of about 10 ms (gpu_events_cost.py); then programs of tests/gpu.
Prints tables for gpu_results.md and, with --out, writes everything as JSON. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1] / "tests" / "gpu"
EXPECTED = {"input": "input", "launch": "host", "device": "device", "checkpoint": "checkpoint"}
HEAD = (
    "| case | by events: busy at most | of it host-paced | bound | by profiler: busy | bound"
    " | events in the same run: busy | expected |"
)
STEPS = {"input": 60, "launch": 300, "device": 80, "checkpoint": 40}


def run(command: list[str], timeout: int, **environment: str) -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("DFTRACER_")} | environment
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=timeout, cwd="/tmp"
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no end after {timeout} s"}
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    try:
        last = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": done.stdout[-1000:] + done.stderr[-1000:]}
    if done.stderr.strip():
        last["stderr"] = done.stderr[-600:]
    return dict(last)


def report(directory: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "dftracer.cli", "report", "--json", directory],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    return dict(json.loads(done.stdout))


def case(name: str, profiler: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(HERE / "gpu_cases.py"), name, str(STEPS[name]), directory]
        truth = run(
            [*command, *(["--profiler"] if profiler else [])],
            90,
            DFTRACER_ENABLE="1",
            DFTRACER_DATA_DIR=directory,
        )
        if "error" in truth:
            return truth
        found = report(directory)
    if "error" in found:
        return found
    device = found.get("device") or {}
    rank = (device.get("ranks") or {}).get("0") or {}
    return {
        "truth": truth,
        "bound": found.get("bound"),
        "verdict": found.get("verdict"),
        "source": device.get("source"),
        "rank": rank,
        "events": (device.get("events") or {}).get("0"),
        "steps": (device.get("steps") or [])[:5],
        "top": [{k: str(v)[:60] for k, v in t.items()} for t in (device.get("top_kernels") or [])[:3]],
        "names": device.get("names"),
    }


def share(account: dict[str, Any] | None) -> str:
    if not account:
        return "-"
    steady = account.get("steady") or account
    return f"{100 * steady['busy_share']:.1f} %"


def paced(account: dict[str, Any] | None) -> str:
    if not account or "host_paced_s" not in account:
        return "-"
    steady = account.get("steady") or account
    whole = steady["observed_s"] or 1.0
    return f"{100 * steady['host_paced_s'] / whole:.1f} %"


def cases() -> dict[str, Any]:
    results: dict[str, Any] = {}
    print(HEAD)
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, expected in EXPECTED.items():
        pair = results[name] = {
            "events": case(name, False),
            "profiler": case(name, True),
        }
        e, p = pair["events"], pair["profiler"]
        for mode, found in pair.items():
            if "error" in found:
                print(f"{name} by {mode} failed: {found['error']}", flush=True)
        bounds = [(f.get("bound") or {}).get("id", "-") for f in (e, p)]
        cells = [
            name,
            share(e.get("rank")),
            paced(e.get("rank")),
            bounds[0],
            share(p.get("rank")),
            bounds[1],
            share(p.get("events")),
            expected,
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
    for name, pair in results.items():
        for mode, found in pair.items():
            print(f"{name}/{mode} [{found.get('source')}]: {found.get('verdict')}")
            r = found.get("rank") or {}
            print("   idle", {k: round(v, 4) for k, v in (r.get("idle") or {}).items() if v}, end=" ")
            print({k: r.get(k) for k in ("observed_s", "launches", "launch_delay_us", "clock_error_us")})
            for row in r.get("phases") or []:
                print("   ", row)
    return results


def cost() -> dict[str, Any]:
    found = run([sys.executable, str(HERE / "gpu_events_cost.py"), "60"], 200)
    if "error" in found:
        print("cost failed:", found["error"])
        return found
    print("\n| step | without events, ms | added | 95 % interval | rounds |\n|---|---|---|---|---|")
    for kind, pairs in found.items():
        if kind == "stderr":
            print(pairs)
            continue
        ratios = sorted(100 * (b / a - 1) for a, b in pairs)
        half = 0.98 * len(ratios) ** 0.5
        low, high = (ratios[max(0, min(len(ratios) - 1, int(len(ratios) / 2 + s * half)))] for s in (-1, 1))
        base = 1e3 * statistics.median(a for a, _ in pairs)
        middle = statistics.median(ratios)
        print(
            f"| {kind}-bound | {base:.2f} | {middle:+.2f} % | {low:+.2f} to {high:+.2f} % | {len(ratios)} |"
        )
    return found


def programs() -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in ("device_events_program.py", "collect_program.py"):
        began = time.perf_counter()
        found = results[name] = run([sys.executable, str(TESTS / name)], 120)
        checks = {k: v for k, v in found.items() if k != "stderr"}
        good = [k for k, v in checks.items() if v is True]
        print(f"\n{name}: {len(good)} of {len(checks)} hold ({time.perf_counter() - began:.0f} s)")
        for check, result in checks.items():
            if result is not True:
                print(f"  {check}: {str(result)[-700:]}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--only", nargs="*", choices=("cases", "cost", "programs"))
    options = parser.parse_args()
    everything: dict[str, Any] = {}
    for name, part in (("cases", cases), ("cost", cost), ("programs", programs)):
        if options.only and name not in options.only:
            continue
        try:
            everything[name] = part()
        except Exception as error:  # the other parts must still be seen
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(everything), encoding="utf-8")


if __name__ == "__main__":
    main()
