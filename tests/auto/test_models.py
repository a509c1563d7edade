"""Models whose calls are watched are the objects they were: during tracing, and after it."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from dftracer.testing import capture

torch = pytest.importorskip("torch")
nn: Any = torch.nn

from dftracer import auto  # noqa: E402


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x))


class Mixin:
    made: list[str] = []  # noqa: RUF012 - of the class

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        Mixin.made.append(f"{cls.__name__} {options}")


@pytest.fixture(autouse=True)
def recorded_apart() -> Iterator[None]:
    with capture():
        yield


def _train(model: Any, steps: int = 4) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(steps):
        loss = model(torch.full((2, 4), float(i))).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _facts(model: Any) -> dict[str, Any]:
    """What can be seen of a model and its class."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    x = torch.ones(2, 4)
    breaks = torch._dynamo.explain(model)(x).graph_break_count
    torch._dynamo.reset()
    again = torch.load(saved, weights_only=False)
    return {
        "attributes": sorted(vars(model)),
        "dir": dir(model),
        "class": sorted(vars(type(model))),
        "call": (nn.Module.__call__, type(model).__call__, type(model).forward),
        "modules": [name for name, _ in model.named_modules()],
        "state": list(model.state_dict()),
        "hooks": [len(getattr(module, kind)) for module in model.modules() for kind in hooks],
        "global hooks": torch.nn.modules.module._has_any_global_hook(),
        "types": (type(copy.deepcopy(model)), type(pickle.loads(pickle.dumps(model))), type(again)),
        "pickled": len(pickle.dumps(model)),
        "exported": [str(node.target) for node in torch.export.export(model, (x,)).graph.nodes],
        "graph breaks": breaks,
        "called": torch.func.functional_call(model, dict(model.named_parameters()), (x,)).tolist(),
    }


def test_a_watched_model_is_the_object_it_was() -> None:
    torch.manual_seed(0)
    model = Net()
    _train(model)
    at_first = copy.deepcopy(model.state_dict())
    before = _facts(model)
    auto.install()
    try:
        _train(model)
        model.load_state_dict(at_first)
        assert _facts(model) == before
    finally:
        auto.uninstall()
    assert _facts(model) == before
    assert "__init_subclass__" not in vars(nn.Module)


def test_losses_are_bit_equal_and_nobody_is_warned() -> None:
    def losses() -> list[list[float]]:
        found = []
        for compiled in (False, True):
            torch.manual_seed(0)
            model = torch.compile(Net(), backend="aot_eager") if compiled else Net()
            found.append(_train(model, 6))
            torch._dynamo.reset()
        return found

    plain = losses()
    auto.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert losses() == plain
    finally:
        auto.uninstall()


def test_classes_made_while_watched_are_watched_and_made_as_before() -> None:
    auto.install()
    try:
        with capture() as events:

            class Late(nn.Module, Mixin, option=1):
                def __init__(self) -> None:
                    super().__init__()
                    self.layer = nn.Linear(4, 1)

                def forward(self, x: Any) -> Any:
                    return self.layer(x)

            with pytest.raises(TypeError, match="keyword"):
                type("Wrong", (nn.Module,), {}, option=1)
            _train(Late())
            auto.uninstall()
    finally:
        auto.uninstall()
    assert Mixin.made[-1] == "Late {'option': 1}"
    assert len([e for e in events if e.name == "forward"]) == 4


def test_parts_of_a_model_are_left_alone_and_a_new_model_is_found() -> None:
    auto.install()
    try:
        with capture() as events:
            _train(Net(), 40)  # the parts have been called often enough
            with torch.no_grad():
                nn.Linear(4, 4)(torch.ones(1, 4))
            _train(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), 40)  # outermost was a part before
            auto.uninstall()
    finally:
        auto.uninstall()
    blocks = [e for e in events if e.name == "fetch.block"]
    assert len(blocks) == 80
    assert len([e for e in events if e.name == "forward"]) >= 79  # of one, the forward may be unseen
    assert len([e for e in blocks if "forward_unseen" in e.args]) <= 1


def test_models_called_in_threads_nest_by_thread() -> None:
    auto.install()
    try:
        with capture() as events:
            inside = threading.Event()
            done = threading.Event()

            class Slow(nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.layer = nn.Linear(4, 1)

                def forward(self, x: Any) -> Any:
                    inside.set()
                    done.wait(60)
                    return self.layer(x)

            thread = threading.Thread(target=_train, args=(Slow(), 1))
            thread.start()
            inside.wait(60)
            _train(Net(), 2)
            done.set()
            thread.join()
            auto.uninstall()
    finally:
        auto.uninstall()
    assert len([e for e in events if e.name == "forward"]) == 3
