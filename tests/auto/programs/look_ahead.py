"""A wrapper that always has the next batch in hand, as Accelerate's loaders do."""

from typing import Any

from parts import Items, loss_of, start
from torch.utils.data import DataLoader


def look_ahead(loader: Any) -> Any:
    batches = iter(loader)
    batch = next(batches)
    for after in batches:
        yield batch
        batch = after
    yield batch


model, optimizer = start()
loader = DataLoader(Items(6), batch_size=1)
for epoch in range(2):
    for x, y in look_ahead(loader):
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.17g}")
