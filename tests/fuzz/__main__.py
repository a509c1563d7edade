"""`python -m fuzz --minutes 5`: every reader in turn, each in a process of its own, so that a crash is seen.

A failure prints its case; `python -m fuzz --target NAME --case CASE` runs it again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fuzz.native import NATIVE, run_native
from fuzz.targets import TARGETS


def _arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    p.add_argument("--minutes", type=float, default=5.0, help="for all targets together (5)")
    p.add_argument("--seed", type=int, default=int(time.time()), help="where the cases begin (the time)")
    p.add_argument("--target", choices=sorted(TARGETS), help="one target only")
    p.add_argument("--case", help="one case of the target")
    p.add_argument("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    p.add_argument("--native", type=Path, help="the folder of the native targets' programs")
    return p.parse_args()


def _cases(target: str, seed: int, seconds: float) -> int:
    """Run cases of one target for a while; the number of failures."""
    end = time.monotonic() + seconds
    number = failures = 0
    while number == 0 or time.monotonic() < end:
        case = f"{seed} {number}"
        # A crash leaves the case as the last that was begun.
        print(f"case {case}", flush=True)
        problem = TARGETS[target](case)
        if problem is not None:
            failures += 1
            print(f"FAILED {target!r} --case {case!r}\n{problem}", file=sys.stderr, flush=True)
        number += 1
    return failures


def _in_a_process(target: str, seed: int, seconds: float) -> tuple[bool, str]:
    words = [sys.executable, "-m", "fuzz", "--target", target, "--seed", str(seed), "--seconds", str(seconds)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    cases = done.stdout.splitlines()
    if done.returncode == 0:
        return True, f"{len(cases)} inputs"
    ended = (
        f"ended by {done.returncode} in {cases[-1] if cases else 'no case'}" if done.returncode < 0 else ""
    )
    return False, f"{done.stderr}\n{ended}"


def main() -> int:
    args = _arguments()
    if args.case:
        problem = TARGETS[args.target](args.case)
        print(problem or "nothing went wrong")
        return int(problem is not None)
    if args.seconds:
        return int(_cases(args.target, args.seed, args.seconds) > 0)
    native = sorted(NATIVE) if args.native and not args.target else []
    chosen = [args.target] if args.target else list(TARGETS)
    share = args.minutes * 60 / (len(chosen) + len(native))
    good = True
    for name in chosen:
        held, output = _in_a_process(name, args.seed, share)
        print(f"{'ok  ' if held else 'FAIL'} {name}: {output}", flush=True)
        good = good and held
    with tempfile.TemporaryDirectory(prefix="dftracer-fuzz-") as folder:
        for name in native:
            held, output = run_native(name, args.native, max(1, int(share)), args.seed, Path(folder))
            print(f"{'ok  ' if held else 'FAIL'} native: {name}: {output}", flush=True)
            good = good and held
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
