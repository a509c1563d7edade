"""The twin of look_ahead.py."""

from typing import Any

from annotated import DataLoader, Items, ai, backward, fetch, forward, step
from parts import loss_of, start


def look_ahead(loader: Any) -> Any:
    batches = iter(loader)
    batch = next(batches)
    for after in batches:
        yield batch
        batch = after
    yield batch


model, optimizer = start()
loader = DataLoader(Items(6), batch_size=1)
with ai.pipeline.train:
    for epoch in range(2):
        with ai.pipeline.epoch(epoch=epoch):
            for x, y in fetch.iter(look_ahead(loader)):
                with forward:
                    optimizer.zero_grad()
                    loss = loss_of(model(x), y)
                with backward:
                    loss.backward()
                with step:
                    optimizer.step()
        print(f"loss {loss.item():.17g}")
