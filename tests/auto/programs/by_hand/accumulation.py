"""The twin of accumulation.py: a step is three batches."""

from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start

model, optimizer = start()
wait, body = fetch.derive("iter"), fetch.derive("block")
batches = started(DataLoader(Items(18), batch_size=1))
with ai.pipeline.train:
    for _ in range(6):
        with wait:
            x, y = next(batches)
        with body:
            for micro in range(3):
                if micro:
                    with wait:
                        x, y = next(batches)
                with forward:
                    loss = loss_of(model(x), y) / 3
                with backward:
                    loss.backward()
            with step:
                optimizer.step()
            optimizer.zero_grad()
print(f"loss {loss.item():.17g}")
