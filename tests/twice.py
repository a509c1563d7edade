"""python tests/twice.py ARGUMENTS: pytest, and a second look at the few tests that failed.

Most tests start real processes, on a machine that runs five of them and a compiler at once. A test that fails
there and passes three times by itself was starved; it is named in the last lines so that somebody mends it. A
test that fails again, more than a few failures, or a failure where nothing but the tracer can be the cause (a
traced program that is not like the untraced one) is red at once.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

MOST = 3
TIMES = 3
NEVER_AGAIN = ("tests/intercept/test_no_harm.py", "tests/mirror/", "tests/bench_gate/")
FAILED = 1  # pytest's exit code for failing tests, as opposed to broken ones


def _pytest(cache: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, check=False).returncode


def _failures(cache: Path) -> list[str]:
    file = cache / "v" / "cache" / "lastfailed"
    return list(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else []


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments and give the exit code."""
    root = Path(__file__).parents[1]
    cache = root / "build" / "test-failures"
    shutil.rmtree(cache, ignore_errors=True)
    code = _pytest(cache, *arguments)
    failed = _failures(cache)
    if code != FAILED or not 0 < len(failed) <= MOST:
        return code
    if any(test.startswith(NEVER_AGAIN) for test in failed):
        return code
    print(
        f"\n{len(failed)} failed beside other work; {TIMES} times more, alone:",
        *failed,
        sep="\n  ",
        flush=True,
    )
    for _ in range(TIMES):
        if _pytest(cache.with_name("test-failures-again"), "-q", *failed) != 0:
            return code
    print("passed alone, failed beside other work (see above):", *failed, sep="\n  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
