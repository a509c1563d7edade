"""Optimizers of the user's own, hooks on them and on modules, closures and scaled gradients."""

import torch
from looking import exact, look_at

torch.manual_seed(8)
events = []


class Mine(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad)
        return loss


class Proxy:
    """Stands for an optimizer without being one."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        events.append(name)
        return getattr(self.inner, name)


model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 1))
handle = model[0].register_forward_hook(lambda *_: events.append("forward"))
model[2].register_full_backward_hook(lambda *_: events.append("backward"))
optimizers = [
    Mine(model.parameters(), 0.1),
    torch.optim.LBFGS(model.parameters(), 0.1, max_iter=2),
    torch.optim.Adam(model.parameters(), foreach=True),
    Proxy(torch.optim.SGD(model.parameters(), 0.1)),
]
scaler = torch.amp.GradScaler("cpu", enabled=False)
x = torch.randn(8, 3)


def closure():
    for p in model.parameters():
        p.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        loss = model(x).square().mean()
    loss.backward()
    return loss


for optimizer in optimizers:
    if hasattr(optimizer, "register_step_post_hook"):
        optimizer.register_step_post_hook(lambda *_: events.append("stepped"))
    for _ in range(3):
        optimizer.zero_grad()
        closure()
        exact(type(optimizer).__name__, optimizer.step(closure) or 0.0)
    look_at("optimizer", optimizer)
    print(type(optimizer).step is Mine.step if isinstance(optimizer, Mine) else "")
handle.remove()
print(events)
look_at("scaler", scaler)
