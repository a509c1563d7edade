"""Handlers, ignored signals, alarms and a signal in the middle of a wait."""

import os
import signal
import sys
import time

from looking import dispositions

seen = []
dispositions()
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append((number, frame.f_code.co_name)))
signal.signal(signal.SIGUSR2, lambda number, frame: seen.append((number, frame.f_code.co_name)))
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))


def work():
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)


work()
with open("seen.txt", "w") as file:
    print(len(seen), file=file)
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.2)
print(len(seen), seen[:2], seen[-1])
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
dispositions()
print(signal.getitimer(signal.ITIMER_REAL))
sys.stdout.flush()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)
