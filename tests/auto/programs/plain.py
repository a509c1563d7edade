"""A plain loop."""

from parts import Items, loss_of, start
from torch.utils.data import DataLoader

model, optimizer = start()
loader = DataLoader(Items(), batch_size=1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.17g}")
