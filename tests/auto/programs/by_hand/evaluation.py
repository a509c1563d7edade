"""The twin of evaluation.py."""

from typing import Any

import torch
from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start

model, optimizer = start()
loader, held_out = DataLoader(Items(8), batch_size=1), DataLoader(Items(4), batch_size=1)


@ai.pipeline.evaluate
def evaluate() -> Any:
    return sum(loss_of(model(x), y).item() for x, y in held_out)


with ai.pipeline.train:
    for epoch in range(2):
        with ai.pipeline.epoch(epoch=epoch):
            for i, (x, y) in fetch.iter(enumerate(started(loader))):
                with forward:
                    optimizer.zero_grad()
                    loss = loss_of(model(x), y)
                with backward:
                    loss.backward()
                with step:
                    optimizer.step()
                if i == 3:
                    with torch.no_grad():
                        print(f"held out {evaluate():.17g}")
        print(f"held out {evaluate():.17g}")
