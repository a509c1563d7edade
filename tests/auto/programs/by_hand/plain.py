"""The twin of plain.py."""

from parts import Items, loss_of, start
from torch.utils.data import DataLoader

from dftracer.python import ai, dftracer

log = dftracer.initialize_log()
model, optimizer = start()
loader = DataLoader(Items(), batch_size=1)
with ai.pipeline.train:
    for epoch in range(2):
        with ai.pipeline.epoch(epoch=epoch):
            for x, y in ai.dataloader.fetch.iter(loader):
                optimizer.zero_grad()
                with ai.compute.forward:
                    loss = loss_of(model(x), y)
                with ai.compute.backward:
                    loss.backward()
                with ai.compute.step:
                    optimizer.step()
        print(f"loss {loss.item():.17g}")
log.finalize()
