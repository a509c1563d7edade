"""Programs started by a program: their output, their end, and what they inherit."""

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

NUMBERS = "import os, sys; print(sorted(f for f in map(int, os.listdir('/proc/self/fd')) if f < 200)[:-1])"


def square(x):
    return x * x


if __name__ == "__main__":
    for command in (
        [sys.executable, "-c", "print(6 * 7)"],
        [sys.executable, "-S", "-E", "-c", "import sys; print(sys.flags.no_site); sys.exit(4)"],
        [sys.executable, "-c", NUMBERS],
        ["sh", "-c", "kill -9 $$"],
        ["sh", "-c", "for i in 1 2 3; do echo $i; done | cat | sort -r"],
        ["env", "-i", "/bin/sh", "-c", "echo clean $#"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.returncode, done.stdout, done.stderr)
    with ProcessPoolExecutor(2) as pool:
        print(list(pool.map(square, range(5))))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, range(5)))
    p = subprocess.Popen(["sleep", "60"])
    os.kill(p.pid, signal.SIGSTOP)
    print(os.WIFSTOPPED(os.waitpid(p.pid, os.WUNTRACED)[1]))
    p.kill()
    print(p.wait())
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-c", "import sys; print('replaced'); sys.exit(9)"])
