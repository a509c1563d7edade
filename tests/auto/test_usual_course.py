"""The usual course of a loop is native; the rule itself, in Python, says the same of the same program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dftracer.testing import capture

torch = pytest.importorskip("torch")
Dataset: Any = torch.utils.data.Dataset

from dftracer import _core, auto  # noqa: E402


class Numbers(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index)), index


def loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(Numbers(), batch_size=2, **options)


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def plain(**options: Any) -> None:
    model, optimizer = model_and_optimizer()
    train = loader(**options)
    for _ in range(2):
        for x, _index in train:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()


def accumulating() -> None:
    model, optimizer = model_and_optimizer()
    for i, (x, _index) in enumerate(loader()):
        model(x).pow(2).mean().backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()


def evaluating() -> None:
    model, optimizer = model_and_optimizer()
    for i, (x, _index) in enumerate(loader()):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        if i == 1:
            with torch.no_grad():
                for y, _other in loader():
                    model(y)


def two_optimizers_and_a_closure() -> None:
    model, optimizer = model_and_optimizer()
    other, other_optimizer = model_and_optimizer()
    for x, _index in loader():

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        other(x).pow(2).mean().backward()
        other_optimizer.step()


def failing() -> None:
    model, optimizer = model_and_optimizer()
    for i, (x, _index) in enumerate(loader()):
        try:
            (model(x) if i != 1 else model(x).detach()).pow(2).mean().backward()
        except RuntimeError:
            continue
        optimizer.step()


def two_loaders() -> None:
    model, optimizer = model_and_optimizer()
    for (x, _index), (y, _other) in zip(loader(), loader(), strict=True):
        optimizer.zero_grad()
        model(x + y).pow(2).mean().backward()
        optimizer.step()


PROGRAMS: dict[str, Any] = {
    "plain": plain,
    "workers": lambda: plain(num_workers=2),
    "persistent workers": lambda: plain(num_workers=1, persistent_workers=True),
    "accumulating": accumulating,
    "evaluating": evaluating,
    "two optimizers and a closure": two_optimizers_and_a_closure,
    "failing": failing,
    "two loaders": two_loaders,
}


@pytest.fixture(autouse=True)
def recorded_apart() -> Iterator[None]:
    """What is installed begins a session; it ends with the test, in a directory that nobody else uses."""
    with capture():
        yield


@pytest.fixture(autouse=True)
def no_pause_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a busy machine parts iter(loader) from its first next(), the rule says one event more."""
    monkeypatch.setattr("dftracer.auto._training._JOINED", 3_600_000_000_000)


def _said(program: Any) -> list[tuple[Any, ...]]:
    auto.install()
    with capture() as events:
        program()
        auto.uninstall()
    keys = ("step", "epoch", "batch", "worker", "pass", "error")
    mine = [e for e in events if e.args.get("auto") and e.cat in ("dataloader", "compute", "pipeline")]
    ordered = sorted(mine, key=lambda e: (e.ts + e.dur, e.name))
    return [(e.name, *(e.args.get(key) for key in keys)) for e in ordered]


def _rule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from dftracer.auto._events import FETCH
    from dftracer.auto._training import Training

    def got(self: Any, iterator: Any, batch: Any, start: int) -> bool:
        self.fetching = False
        FETCH.ends()
        self.fetch_end = _core.time_ns()
        self.batch = None
        return False

    monkeypatch.setattr(Training, "got", got, raising=False)
    for name in ("backward_began", "backward_ended", "optimizer_began", "optimizer_ended"):
        monkeypatch.setattr(Training, name, lambda *args: False, raising=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_native_and_rule_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = _said(PROGRAMS[name])
    _rule_alone(monkeypatch)
    by_rule = _said(PROGRAMS[name])
    assert sorted(map(str, quick)) == sorted(map(str, by_rule))
    assert any(event[0] == "backward" for event in quick)


def test_the_usual_course_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    auto.install()
    from dftracer.auto import _training

    asked: list[str] = []
    for name in ("fetched", "backward_begins", "backward_ends", "optimizer_begins", "optimizer_ends"):
        original = getattr(_training.Training, name)

        def counting(self: Any, *args: Any, _name: str = name, _original: Any = original) -> Any:
            asked.append(_name)
            return _original(self, *args)

        monkeypatch.setattr(_training.Training, name, counting)
    with capture():
        plain()
        auto.uninstall()
    # The first step of each pass is what the rule decides about; the rest follows.
    assert asked.count("fetched") == 2
    assert asked.count("backward_begins") == 2
    assert asked.count("optimizer_begins") == 0
