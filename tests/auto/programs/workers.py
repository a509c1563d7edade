"""Persistent workers; how they start is the argument."""

import sys

from parts import Items, loss_of, start
from torch.utils.data import DataLoader


def main() -> None:
    model, optimizer = start()
    loader = DataLoader(
        Items(6, 0.3),
        batch_size=1,
        num_workers=int(sys.argv[2]),
        persistent_workers=True,
        multiprocessing_context=sys.argv[1],
    )
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
        print(f"loss {loss.item():.17g}")


if __name__ == "__main__":
    main()
