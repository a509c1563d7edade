"""The twin of workers.py."""

import sys

from annotated import DataLoader, Items, ai, backward, fetch, forward, started, step
from parts import loss_of, start


def main() -> None:
    model, optimizer = start()
    loader = DataLoader(
        Items(6, 0.3),
        batch_size=1,
        num_workers=int(sys.argv[2]),
        persistent_workers=True,
        multiprocessing_context=sys.argv[1],
    )
    with ai.pipeline.train:
        for epoch in range(2):
            with ai.pipeline.epoch(epoch=epoch):
                for x, y in fetch.iter(started(loader)):
                    with forward:
                        optimizer.zero_grad()
                        loss = loss_of(model(x), y)
                    with backward:
                        loss.backward()
                    with step:
                        optimizer.step()
            print(f"loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
