"""FSDP2 with one rank."""

import os

import torch
import torch.distributed as dist
from looking import exact, look_at
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
torch.manual_seed(11)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
mesh = init_device_mesh("cpu", (1,))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for _ in range(4):
    loss = model(torch.ones(2, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    exact("loss", loss)
look_at("model", model)
look_at("parameter", next(model.parameters()))
t = torch.ones(3)
dist.all_reduce(t)
work = dist.all_reduce(t, async_op=True)
work.wait()
look_at("work", work)
exact("reduced", *t)
dist.destroy_process_group()
os.path.exists("meeting") and os.remove("meeting")
