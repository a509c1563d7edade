"""Loaders of every kind, and what the program finds in them."""

import torch
from looking import exact, look_at
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.tensor([float(i)]) for i in range(start, 12, step))


class Items(Dataset):
    def __getitem__(self, i):
        if i >= 10:
            raise IndexError(i)
        return {"x": torch.tensor(float(i)), "name": str(i)}

    def __getitems__(self, indices):
        return [self[i] for i in indices]

    def __len__(self):
        return 10


def begin(worker):
    torch.manual_seed(worker)


torch.manual_seed(6)
tensors = TensorDataset(torch.arange(20.0).reshape(10, 2), torch.arange(10))
sampler = BatchSampler(RandomSampler(tensors, generator=torch.Generator().manual_seed(1)), 3, True)
loaders = {
    "tensors": DataLoader(tensors, batch_size=4),
    "sampler": DataLoader(tensors, batch_sampler=sampler),
    "stream": DataLoader(Stream(), batch_size=4, num_workers=2),
    "items": DataLoader(Items(), batch_size=4, num_workers=1, worker_init_fn=begin, persistent_workers=True),
    "shuffled": DataLoader(tensors, batch_size=5, shuffle=True, generator=torch.Generator().manual_seed(2)),
    "joined": DataLoader(ConcatDataset([tensors, Subset(tensors, [1, 3])]), batch_size=None),
}
for name, loader in loaders.items():
    for _ in range(2):
        for batch in loader:
            x = batch["x"] if isinstance(batch, dict) else batch[0]
            exact(name, x.float().sum())
    look_at(name, loader)
    if not isinstance(loader.dataset, IterableDataset):
        print(name, len(loader))
    look_at(f"{name}'s iterator", iter(loader))
    look_at(f"{name}'s data", loader.dataset)
