"""Three batches to a step."""

from parts import Items, loss_of, start
from torch.utils.data import DataLoader

model, optimizer = start()
for i, (x, y) in enumerate(DataLoader(Items(18), batch_size=1)):
    loss = loss_of(model(x), y) / 3
    loss.backward()
    if i % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
print(f"loss {loss.item():.17g}")
