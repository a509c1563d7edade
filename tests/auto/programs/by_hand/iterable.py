"""The twin of iterable.py."""

from annotated import DataLoader, Stream, ai, backward, fetch, forward, started, step
from parts import loss_of, start

model, optimizer = start()
with ai.pipeline.train:
    for x, y in fetch.iter(started(DataLoader(Stream(seconds=0.4), batch_size=1, num_workers=2))):
        with forward:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
        with backward:
            loss.backward()
        with step:
            optimizer.step()
print(f"loss {loss.item():.17g}")
