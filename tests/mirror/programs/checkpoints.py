"""Files written: checkpoints, text, a directory; and recomputed activations."""

import json
import os

import torch
from looking import exact, look_at
from torch.utils.checkpoint import checkpoint

torch.manual_seed(5)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
os.makedirs("out/deep", exist_ok=True)
for step in range(5):
    x = torch.randn(8, 4)
    loss = checkpoint(model, x, use_reentrant=False).square().mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    exact("loss", loss, *schedule.get_last_lr())
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, f"out/{step}.pt"
    )
with open("out/deep/log.json", "w") as file:
    json.dump({"loss": loss.item()}, file)
state = torch.load("out/3.pt", weights_only=True)
look_at("state", state)
look_at("schedule", schedule)
print(state["step"], list(state["optimizer"]["state"][0]))
