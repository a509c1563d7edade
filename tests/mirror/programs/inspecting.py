"""A program that looks around: modules, hooks of the import system, warnings, streams, and stack depth."""

import builtins
import inspect
import logging
import sys
import warnings

import torch
from looking import exact, look_at

print([type(f).__name__ for f in sys.path_hooks], len(sys.argv))
print(
    sys.displayhook is sys.__displayhook__, sys.excepthook is sys.__excepthook__, sys.stdout is sys.__stdout__
)
print([n for n in dir(builtins) if n.startswith("d") and n not in ("delattr", "dict", "dir", "divmod")])
print(logging.getLogger().handlers, warnings.filters[:1], logging.root.manager.disable)
for thing in (
    torch.nn.Module,
    torch.Tensor,
    torch.optim.SGD,
    torch.utils.data.DataLoader,
    torch.autograd.Function,
):
    look_at(thing.__name__, thing)
    print([c.__name__ for c in thing.__mro__])


class Depth(torch.nn.Module):
    def forward(self, x):
        own = [f.function for f in inspect.stack() if f.filename == __file__]
        print(own, inspect.currentframe().f_back.f_code.co_filename.endswith("module.py"))
        return x * 2


model = Depth()
exact("twice", *model(torch.ones(2)))
print(len(model._forward_hooks), len(model._forward_pre_hooks), len(model._backward_hooks))


def deep(n):
    return 0 if n == 0 else 1 + deep(n - 1)


print(deep(900))
