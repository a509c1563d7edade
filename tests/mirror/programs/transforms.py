"""A data set that looks at its transform before it uses it."""

import torch
from looking import exact, look_at
from torch.utils.data import DataLoader, Dataset


class Compose:
    def __init__(self, steps):
        self.steps, self.used = steps, 0

    def __len__(self):
        return len(self.steps)

    def __getitem__(self, i):
        return self.steps[i]

    def __eq__(self, other):
        return type(other) is Compose and self.steps == other.steps

    __hash__ = None

    def __call__(self, x):
        self.used += 1
        for step in self.steps:
            x = step(x)
        return x


def double(x):
    return 2 * x


class Data(Dataset):
    def __init__(self):
        self.transform, self.target_transform, self.kind = Compose([double, torch.sqrt]), None, float
        self.seen = set()

    def __len__(self):
        return 32

    def __getitem__(self, i):
        x = torch.full((3,), float(i + 1))
        assert isinstance(x[0].item(), self.kind)
        if isinstance(self.transform, Compose) and len(self.transform) == 2 and self.transform[0] is double:
            x = self.transform(x)
        assert self.transform == Compose([double, torch.sqrt])
        self.transform.mark = i
        self.seen.add(id(self.transform))
        return x


data = Data()
model = torch.nn.Linear(3, 1)
torch.nn.init.constant_(model.weight, 0.25)
torch.nn.init.constant_(model.bias, 0.5)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for workers in (0, 2):
    for x in DataLoader(data, batch_size=8, num_workers=workers):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        exact("loss", loss)
print(data.transform.used, data.transform.mark, len(data.seen))
look_at("transform", data.transform)
look_at("data", data)
look_at("model", model)
look_at("optimizer", optimizer)
