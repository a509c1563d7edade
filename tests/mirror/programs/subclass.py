"""A tensor that counts what is done with it, own functions in autograd, and functional transforms."""

import torch
from looking import exact, look_at

torch.manual_seed(7)
CALLS = []


class Counted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        CALLS.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


x = torch.randn(4).as_subclass(Counted).requires_grad_()
y = Square.apply(x).sum()
y.backward()
exact("gradient", *x.grad)
moved = x.detach().to(torch.float64)
look_at("moved", moved)
print(CALLS)
a = torch.randn(3, requires_grad=True)
(first,) = torch.autograd.grad((a**3).sum(), a, create_graph=True)
(second,) = torch.autograd.grad(first.sum(), a)
exact("second derivative", *second)
exact("vmap", *torch.vmap(torch.func.grad(lambda v: (v**2).sum()))(torch.ones(2, 3)).flatten())
look_at("function", Square)
