"""The ways a process can end, and the work it does before: used by the programs of the process matrix.

The text is written beside the program of a test and imported by it and by its children.
"""

SOURCE = '''
import ctypes, os, signal, sys, time
from dftracer.python import ai

EVENTS = 300

@ai.data.item
def traced_call(case, i):
    return i

def work(case):
    """EVENTS events of which the last is finished just before the process ends."""
    for i in range(EVENTS - 1):
        with ai.compute.forward(args={"case": case, "i": i}):
            pass
    traced_call(case, 1)
    with ai.compute.forward(args={"case": case, "i": EVENTS - 1, "long": "x" * 20_000}):
        pass

EXECUTED = (
    "import sys\\n"
    "from dftracer.python import ai, dftracer\\n"
    "dftracer.initialize_log(None, None, -1)\\n"
    "with ai.compute.backward(args={'case': sys.argv[1]}): pass\\n"
)

def end(how, case):
    if how == "return":
        return
    if how == "sys.exit":
        sys.exit(3)
    if how == "exception":
        raise RuntimeError("the end")
    if how == "os._exit":
        os._exit(4)
    if how in ("SIGTERM", "SIGINT", "SIGKILL"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(600)
    if how == "SIGSEGV":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "exec":
        os.execv(sys.executable, [sys.executable, "-c", EXECUTED, case])
    if how == "terminate":
        time.sleep(600)
    raise AssertionError(how)

def child(method, how):
    case = f"{method} {how}"
    work(case)
    end(how, case)

def pool_task(case):
    """Runs in a worker of a Pool; the parent terminates the pool after all tasks have reported."""
    work(case)
    return os.getpid()
'''
