"""The twin of exception.py."""

from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start

model, optimizer = start()
with ai.pipeline.train:
    for i, (x, y) in fetch.iter(enumerate(started(DataLoader(Items(), batch_size=1)))):
        with forward:
            optimizer.zero_grad()
            prediction = model(x)
            if i == 6:
                raise FloatingPointError("no number")
            loss = loss_of(prediction, y)
        with backward:
            loss.backward()
        with step:
            optimizer.step()
