"""What each block of the guide leaves to the reader: names it uses, and calls it only prepares."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CONTEXT", "Context"]

START = """\
from dftracer.python import ai, dftracer
dftracer.initialize_log(None, None, -1)
"""

MODEL = """\
class Model:
    def __call__(self, x):
        with ai.compute.derive(name="inside_model"):
            return Loss()
    def state_dict(self):
        return {"w": 1}
class Loss:
    def backward(self):
        with ai.compute.derive(name="inside_backward"):
            pass
model, x, batch, labels, loss = Model(), 1, 2, 3, Loss()
def criterion(output, labels):
    return output
"""


@dataclass(frozen=True, slots=True)
class Context:
    """Program text before and after a block."""

    before: str = START
    after: str = ""


# A block that unpacks `range(n)` into two names needs items that are numbers and pairs at once.
RANGE_OF_PAIRS = """\
import builtins
class Numbered(int):
    def __iter__(self):
        return builtins.iter((int(self), f"data {int(self)}"))
def range(n):
    return [Numbered(i) for i in builtins.range(n)]
"""

TRAINING = """\
from dftracer.python import ai
loss = model = None
def load_batch(step):
    return step
@ai.device.transfer
def transfer(batch):
    return batch
@ai.compute.forward
def forward(model, batch):
    return batch
@ai.compute.backward
def backward(loss):
    pass
"""

TENSORFLOW = """\
from types import SimpleNamespace
class SessionRunHook:
    pass
tf = SimpleNamespace(train=SimpleNamespace(SessionRunHook=SessionRunHook))
training_util = SimpleNamespace(_get_or_create_global_step_read=lambda: "tensor")
"""

HOOK_CALLS = """\
hook = DFTracerProfilingHook()
run_context = SimpleNamespace(session=SimpleNamespace(run=lambda tensor: 41))
hook.begin()
hook.before_run(run_context)
hook.after_run(run_context, None)
hook.end(None)
"""

CONTEXT: dict[str, Context] = {
    "setup": Context(before=""),
    "data-item": Context(before=START + "import numpy\nnumpy.save('data.npy', numpy.arange(3))\n"),
    "dataloader": Context(
        before=START
        + "class IO:\n    @ai.data.item\n    def read(self, path):\n        return path\nio = IO()\n"
    ),
    "preprocess": Context(before=START + "raw_data = [1]\n", after="assert augmented_data == [1]\n"),
    "device": Context(before=START + "cpu_data = [1]\n", after="assert gpu_data is cpu_data\n"),
    "compute": Context(before=START + MODEL),
    "start-stop": Context(),
    "comm": Context(before=START + MODEL, after="backward_with_sync()\n"),
    "checkpoint": Context(before=START + MODEL),
    "training": Context(before=TRAINING + RANGE_OF_PAIRS),
    "metadata": Context(
        before=START + "num_epochs, num_steps = 2, 3\n", after="with ai.compute.forward:\n    pass\n"
    ),
    "custom": Context(after="with custom_tracer:\n    pass\n"),
    "disable": Context(
        after="for node in (ai.compute.forward, ai.data.item, ai.dataloader.fetch, ai.comm.send, ai.device,\n"
        "             ai.checkpoint.capture, ai.pipeline.epoch, ai):\n"
        "    with node:\n        pass\n"
    ),
    "decorator": Context(before=START + MODEL, after="assert type(forward(model, x)) is Loss\n"),
    "decorator-args": Context(
        before=START + MODEL, after="forward(model, x)\nwith ai.compute.forward:\n    pass\n"
    ),
    "context": Context(before=START + MODEL),
    "context-args": Context(before=START + MODEL, after="with ai.compute.forward:\n    pass\n"),
    "iterable": Context(before=START + "dataloader = [10, 20, 30]\n", after="assert batch == 30\n"),
    "constructor": Context(after="assert type(MyDataset(1, root='x')) is MyDataset\n"),
    "update": Context(before=START + MODEL + "num_epochs, dataloader = 2, [10, 20, 30]\n"),
    "force": Context(before=START + MODEL, after="forward(model, x)\n"),
    "hook": Context(before=START + TENSORFLOW, after=HOOK_CALLS),
    "derive": Context(
        before=START + "epoch = 7\n",
        after="assert Dataset()[0] is ...\nassert collate_fn([1]) == [1]\nwith ai.data.item:\n    pass\n",
    ),
    "streaming": Context(before=START + "num_epochs, num_steps = 2, 3\n"),
    "init": Context(after="Checkpoint()\n"),
    "caveat-follows": Context(after="Checkpoint()\n"),
    "caveat-fixed": Context(after="Checkpoint()\n"),
}
