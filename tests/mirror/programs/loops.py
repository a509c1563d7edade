"""asyncio, generators and context variables around training steps."""

import asyncio
import contextvars
import gc
import weakref

import torch
from looking import exact, look_at

torch.manual_seed(15)
variable = contextvars.ContextVar("step", default=-1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def batches():
    for i in range(4):
        got = yield torch.full((2, 2), float(i))
        assert got is None


async def step(n, x):
    variable.set(n)
    await asyncio.sleep(0)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    assert variable.get() == n
    return loss.detach()


async def main():
    for n, x in enumerate(batches()):
        exact("loss", await asyncio.create_task(step(n, x)))
    print(len(asyncio.all_tasks()), variable.get())


asyncio.run(main())
tensor = torch.ones(3)
gone = weakref.ref(tensor)
loader = torch.utils.data.DataLoader([tensor], batch_size=1)
iterator = weakref.ref(iter(loader))
for x in loader:
    (x * 2).sum()
del tensor, x
loader = None
gc.collect()
print(gone() is None, iterator() is None)
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count())
look_at("model", model)
