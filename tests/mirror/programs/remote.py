"""RPC: calls, remote references and distributed autograd, in one worker."""

import os

import torch
from looking import exact, look_at
from torch.distributed import autograd, rpc

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


def add(a, b):
    return a + b


options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.getcwd()}/meeting", num_worker_threads=2)
rpc.init_rpc("worker", rank=0, world_size=1, rpc_backend_options=options)
exact("sync", rpc.rpc_sync("worker", add, (torch.tensor(1.5), 2.0)))
future = rpc.rpc_async("worker", torch.add, (torch.ones(2), torch.ones(2)))
exact("async", *future.wait())
remote = rpc.remote("worker", torch.nn.Linear, (2, 1))
print(remote.is_owner(), type(remote.to_here()).__name__)
with autograd.context() as context:
    x = torch.ones(2, requires_grad=True)
    autograd.backward(context, [rpc.rpc_sync("worker", torch.mul, (x, x)).sum()])
    exact("gradient", *autograd.get_gradients(context)[x])
look_at("future", future)
del remote
rpc.shutdown()
os.path.exists("meeting") and os.remove("meeting")
