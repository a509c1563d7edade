"""A user's program as a type checker sees it: read by mypy and pyright, run by nobody."""

from collections.abc import Iterator
from typing import assert_type

from dftracer.python import Compute, DFTracerAI, Dynamo, EntityRelation, ai, dft_fn, dftracer, dynamo

log = dftracer.initialize_log("run.pfw", None, -1)
tracer = dft_fn("compute")


@tracer.log
def double(x: int) -> int:
    return 2 * x


@tracer.log(name="other")
def named(x: int, y: str = "") -> str:
    return y * x


@ai.compute.forward
def forward(x: float) -> float:
    return x


@ai.compute.backward(args={"a": 1})
def backward(x: float) -> list[float]:
    return [x]


@ai.data.item
def items(n: int) -> Iterator[int]:
    yield from range(n)


@dynamo.compile
def compiled(x: int) -> int:
    return x


class Loader:
    @tracer.log_init
    def __init__(self, size: int) -> None:
        self.size = size

    @staticmethod
    @tracer.log_static
    def read(path: str) -> bytes:
        return path.encode()


assert_type(double(2), int)
assert_type(named(2, y="a"), str)
assert_type(forward(1.0), float)
assert_type(backward(1.0), list[float])
assert_type(items(3), Iterator[int])
assert_type(compiled(1), int)
assert_type(Loader(3).size, int)
assert_type(Loader.read("a"), bytes)
assert_type(ai.compute, Compute)
assert_type(ai.compute.forward, DFTracerAI)
assert_type(ai.data.io.read, DFTracerAI)
assert_type(dynamo, Dynamo)

for number in tracer.iter(range(3)):
    assert_type(number, int)
for text in ai.dataloader.fetch.iter(["a", "b"]):
    assert_type(text, str)
for index, (image, label) in ai.dataloader.fetch.iter(enumerate([(1.0, "cat")])):
    assert_type(index, int)
    assert_type(image, float)
    assert_type(label, str)

with ai.compute.step, tracer as entered:
    assert_type(entered, dft_fn)
    entered.uses("sample", 1)
ai.update(epoch=1, step=2, args={"loss": 0.5})
ai.compute.forward.derive("inner").start()
log.log_event("e", "c", log.get_time(), 1, {"a": 1}, relations={EntityRelation.USED: [1]})
log.finalize()
