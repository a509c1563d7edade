"""The training step that is measured: the same loop for times and for instructions."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Data", "Step"]


class Data(torch.utils.data.Dataset):  # type: ignore[misc] # torch is Any
    """Items that cost next to nothing, so that the step is the model's."""

    def __init__(self, n: int, width: int) -> None:
        self.items = torch.randn(n, width)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.items[index]


class Step:
    """A stack of layers, trained by the loop that everybody writes; the loader is in the main process."""

    def __init__(self, device: str, width: int, layers: int, repeat: int = 1) -> None:
        torch.manual_seed(0)
        self.repeat = repeat
        self.device = device
        self.width = width
        stack = [m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        self.model = torch.nn.Sequential(*stack).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

    def loader(self, steps: int, batch: int) -> Any:
        """Batches for so many steps."""
        return torch.utils.data.DataLoader(Data(batch * steps, self.width), batch_size=batch)

    def __call__(self, batch: Any) -> None:
        x = batch.to(self.device)
        if self.repeat > 1:
            x = x.repeat(self.repeat, 1)
        self.optimizer.zero_grad()
        loss = self.model(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
