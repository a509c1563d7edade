"""Functions of torch that are sent to other processes by their names."""

import copy
import functools
import inspect
import io
import multiprocessing
import pickle

import torch
from looking import exact, look_at
from torch.utils.data import DataLoader, Dataset

FUNCTIONS = {
    "load": torch.load,
    "save": torch.save,
    "to": torch.Tensor.to,
    "cuda": torch.Tensor.cuda,
    "backward": torch.Tensor.backward,
    "autograd": torch.autograd.backward,
    "grad": torch.autograd.grad,
    "sgd": torch.optim.SGD.step,
    "step": torch.optim.Optimizer.step,
    "zero": torch.optim.Optimizer.zero_grad,
    "call": torch.nn.Module.__call__,
    "loader": DataLoader.__iter__,
}


class Files(Dataset):
    def __init__(self, files, loader=torch.load):
        self.files, self.loader = files, loader

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.loader(self.files[i])


if __name__ == "__main__":
    for name, function in FUNCTIONS.items():
        look_at(name, function)
        try:
            print(name, inspect.signature(function))
        except ValueError as e:  # some are written in C
            print(name, e)
        print(name, copy.copy(function) is function, copy.deepcopy(function) is function)
        try:
            print(name, pickle.loads(pickle.dumps(function)) is function)
        except (pickle.PicklingError, AttributeError) as e:
            print(name, type(e).__name__)
    files = [f"{i}.pt" for i in range(4)]
    for i, file in enumerate(files):
        torch.save(torch.full((3,), float(i)), file)
    part = functools.partial(torch.load, weights_only=True)
    pickle.dumps(part)
    print(part.func is torch.load is torch.serialization.load)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        exact("pool", *(t.sum() for t in pool.map(torch.load, files)))
    loader = DataLoader(Files(files), num_workers=1, multiprocessing_context="spawn")
    exact("spawned", *(t.sum() for t in loader))
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)}, buffer)
    print(len(buffer.getvalue()))
