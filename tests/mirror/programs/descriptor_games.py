"""A program that counts on the numbers of its descriptors, closes what is not its own, and makes a daemon."""

import os
import resource
import socket
import subprocess
import sys

from looking import descriptors

descriptors()
first = os.open("a.txt", os.O_RDWR | os.O_CREAT)
print(first, os.dup(first), os.dup2(first, 57))
os.write(57, b"through another number\n")
pair = socket.socketpair()
print([s.fileno() for s in pair], os.pipe())
descriptors()
print(subprocess.run(["sh", "-c", "ls /proc/self/fd | wc -l"], capture_output=True, check=True).stdout)
with open("b.txt", "w") as file:
    subprocess.run(["echo", "child"], stdout=file, pass_fds=(57,), check=True)
for s in pair:
    s.detach()
os.closerange(3, 512)
descriptors()
with open("c.txt", "w") as file:
    print(file.fileno(), file=file)
print(resource.getrlimit(resource.RLIMIT_NOFILE), os.get_inheritable(1))
child = os.fork()
if child == 0:
    os.setsid()
    os.closerange(0, 1024)
    os.open("/dev/null", os.O_RDWR)
    os.dup(0)
    os.dup(0)
    with open("d.txt", "w") as file:
        file.write(f"{file.fileno()}\n")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with open("a.txt") as file:
    print(file.read(), end="")
sys.exit(3)
