"""`auto.install()` and `uninstall()` in a running process: what is seen, and that nothing else changes."""

from __future__ import annotations

import pickle
import queue
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dftracer.testing import Capture, capture, read
from support.process import Run

torch = pytest.importorskip("torch")
Dataset: Any = torch.utils.data.Dataset

from dftracer import _config, _core, _session, auto, metrics  # noqa: E402
from dftracer.python import ai  # noqa: E402
from dftracer.torch import boundaries, hang, patches  # noqa: E402


class Numbers(Dataset):
    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        x = torch.full((4,), float(index))
        return x if self.transform is None else self.transform(x)


def double(x: Any) -> Any:
    return x * 2


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(loader: Any, *, by_hand: bool = False) -> list[float]:
    model, optimizer = model_and_optimizer()
    losses = []
    for x in loader:
        optimizer.zero_grad()
        if by_hand:
            with ai.compute.forward:
                loss = model(x).pow(2).mean()
        else:
            loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(Numbers(), batch_size=2, **options)


@pytest.fixture(autouse=True)
def recorded_apart() -> Iterator[None]:
    """What is installed begins a session; it ends with the test, in a directory that nobody else uses."""
    with capture():
        yield


@pytest.fixture
def watched() -> Iterator[None]:
    assert auto.install()
    yield
    auto.uninstall()


def words(events: Capture) -> list[str]:
    return [f"{e.cat}/{e.name}" for e in events if e.args.get("auto")]


def places() -> dict[str, Any]:
    data = torch.utils.data.dataloader
    return {
        "backward": torch.autograd.backward.__code__,
        "iter": data.DataLoader.__iter__.__code__,
        "next": data._BaseDataLoaderIter.__next__.__code__,
        "get": data._MultiProcessingDataLoaderIter._get_data.__code__,
        "process": data._MultiProcessingDataLoaderIter._process_data.__code__,
        "fetch": torch.utils.data._utils.fetch._MapDatasetFetcher.fetch.__code__,
        "worker": torch.utils.data._utils.worker._worker_loop.__code__,
        "pin": torch.utils.data._utils.pin_memory.pin_memory.__code__,
        "save": torch.save.__code__,
        "load": torch.load.__code__,
        "scaler": torch.amp.grad_scaler.GradScaler.step.__code__,
        "optimizer": torch.optim.Optimizer.__init__.__code__,
        "before": dict(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks),
        "after": dict(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks),
        "all_reduce": torch.distributed.all_reduce.__code__,
        "watched": len(patches.watched),
    }


def test_a_program_that_numbers_its_steps_is_believed(watched: None) -> None:
    model, optimizer = model_and_optimizer()
    with capture() as events:
        step = 50
        for epoch in (4, 5):
            ai.update(epoch=epoch)
            for x in loader():
                ai.update(step=step)
                model(x).sum().backward()
                optimizer.step()
                step += 1
        ai.data.update(step=7)  # of a part of the program only
        auto.uninstall()
    blocks = [e for e in events if e.name == "fetch.block"]
    assert [(e.args["epoch"], e.args["step"]) for e in blocks] == [
        (epoch, 50 + 3 * (epoch - 4) + i) for epoch in (4, 5) for i in range(3)
    ]
    (train,) = [e for e in events if e.name == "train"]
    epochs = [e for e in events if e.name == "epoch"]
    assert [e.args["epoch"] for e in epochs] == [4, 5]
    assert max(e.ts + e.dur for e in epochs) <= train.ts + train.dur
    ai.forget_args(["step", "epoch"])
    ai.data.forget_args(["step"])


def test_the_number_of_a_step_in_a_checkpoint_is_on_its_event(watched: None, tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    with capture() as events:
        torch.save({"model": {}, "step": 40}, file)
        torch.load(file)
        torch.save({"model": {}, "step": torch.tensor(3)}, file)
        auto.uninstall()
    found = [(e.name, e.args.get("counter")) for e in events if e.cat == "checkpoint"]
    assert found == [("capture", 40), ("restart", 40), ("capture", None)]


def test_every_change_can_be_taken_back() -> None:
    before = places()
    auto.install()
    changed = places()
    assert [name for name in before if changed[name] is before[name] or changed[name] == before[name]] == []
    auto.uninstall()
    assert places() == before


def set_to(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    now = {each.name: getattr(_session.SETTINGS, each.name) for each in _config.SETTINGS}
    monkeypatch.setattr(_session, "SETTINGS", _config.Settings(now | changes))


def test_a_session_and_automatic_tracing_share_one_watch_for_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []  # for how long, and whether annotations are progress
    set_to(monkeypatch, hang_s=300)
    monkeypatch.setattr(
        _core, "watch_hangs", lambda seconds, _, __, by_hand=False: asked.append((seconds, by_hand))
    )
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of a test of notebooks: people pause there
    groups = torch.distributed.distributed_c10d
    hang.unwatch(by_hand=True)
    own = groups.init_process_group.__code__
    for first, last in ((_session._watch_for_hangs, auto.install), (auto.install, _session._watch_for_hangs)):
        first()
        observed = groups.init_process_group.__code__
        assert observed is not own
        last()
        assert groups.init_process_group.__code__ is observed
        assert asked[-1] == (300, False)
        auto.uninstall()
        assert groups.init_process_group.__code__ is observed
        assert asked[-1] == (300, True)
        hang.unwatch(by_hand=True)
        assert groups.init_process_group.__code__ is own
        assert asked[-1][0] == 0


def test_others_still_wait_for_their_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_later.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    imported: list[str] = []
    patches.when_imported("imported_later", lambda module: imported.append(module.__name__))
    auto.install()
    auto.uninstall()
    __import__("imported_later")
    assert imported == ["imported_later"]
    assert patches._watcher not in sys.meta_path  # nothing is left of what automatic tracing waited for


def test_automatic_tracing_knows_who_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[bool] = []
    set_to(monkeypatch, metrics="textfile:figures.prom")
    monkeypatch.setattr(metrics, "training_begins", lambda: began.append(auto.installed()))
    monkeypatch.setattr(_session, "arm", _session.begin)  # the session of this test has begun
    auto.install()
    assert not began
    auto.uninstall()
    _session.begin()
    assert began == [False]


class NoBatches:
    def __iter__(self) -> Iterator[list[int]]:
        raise RuntimeError("no batches")


def test_what_begins_ends_also_when_it_fails(watched: None) -> None:
    seen: list[tuple[str, bool]] = []
    kinds = "loader", "optimizer made"

    def sees(kind: str) -> Callable[[bool, Any], None]:
        return lambda begins, _: seen.append((kind, begins))

    leave = [boundaries.subscribe(kind, sees(kind)) for kind in kinds]
    with pytest.raises(RuntimeError, match="no batches"):
        iter(torch.utils.data.DataLoader(Numbers(), batch_sampler=NoBatches()))
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.SGD([])
    for each in leave:
        each()
    assert seen == [(kind, begins) for kind in kinds for begins in (True, False)]


def test_an_optimizer_is_recorded_whatever_state_the_group_is_in(
    watched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> bool:
        raise RuntimeError("the group is being destroyed")

    monkeypatch.setattr(torch.distributed, "is_initialized", broken)
    with capture() as events:
        model_and_optimizer()
    assert [e.name for e in events if e.cat == "dftracer"] == ["optimizer"]


def test_the_sizes_of_types_in_torchs_record_are_torchs() -> None:
    kinds = {kind: getattr(torch, hang.recorded_dtype(kind) or "", None) for kind in hang._TYPES}
    known = {kind: dtype for kind, dtype in kinds.items() if dtype is not None}  # not all in older versions
    assert len(known) >= 16
    for kind, dtype in known.items():
        assert hang.recorded_bytes([[2, 3], []], [kind, kind]) == 7 * dtype.itemsize
    assert hang.recorded_bytes([[5]], ["Unheard"]) == 0
    assert hang.recorded_dtype("Unheard") == "Unheard"


def test_a_helper_is_not_taken_for_a_model_that_was_freed_where_it_is(watched: None) -> None:
    model, optimizer = model_and_optimizer()
    kind: Any = torch.nn.Linear
    with capture() as events:
        for x in loader():
            helper = kind(4, 1)  # it learns for a moment, and is replaced by one that does not
            place = id(helper)
            optimizer.zero_grad()
            (model(x) + helper(x)).sum().backward()
            optimizer.step()
        del helper
        elsewhere = []
        while id(teacher := kind.__new__(kind)) != place:
            elsewhere.append(teacher)
            assert len(elsewhere) < 100_000
        teacher.__init__(4, 1)
        teacher.eval()
        for x in loader():
            with torch.no_grad():
                wanted = teacher(x)
            (model(x) - wanted).pow(2).sum().backward()
            optimizer.step()
        auto.uninstall()
    assert [e for e in events if e.name == "evaluate"] == []
    assert len([e for e in events if e.name == "forward"]) == 6
    assert weakref.getweakrefcount(teacher) == 0


def test_two_parts_that_observe_one_function_leave_in_any_order(tmp_path: Path) -> None:
    own, file = torch.load.__code__, tmp_path / "x.pt"
    torch.save([1], file)
    for first_to_leave in (0, 1):
        seen: list[str] = []

        def tells(name: str, seen: list[str] = seen) -> Callable[[Any], Any]:
            def around(original: Any) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    seen.append(name)
                    return original(*args, **kwargs)

                return call

            return around

        parts = [patches.Patches(), patches.Patches()]
        for name, part in zip("ab", parts, strict=True):
            part.around(torch, "load", tells(name))
        assert torch.load(file) == [1]
        parts[first_to_leave].undo_all()
        assert torch.load(file) == [1]
        parts[1 - first_to_leave].undo_all()
        assert torch.load(file) == [1]
        assert "".join(seen) == ("bab", "baa")[first_to_leave]
        assert torch.load.__code__ is own


def test_what_is_no_plain_function_is_left_alone() -> None:
    for owner, name in ((torch, "ones"), (torch.Tensor, "to"), (torch.nn.Module, "training")):
        before = getattr(owner, name, None)
        with pytest.raises(TypeError, match="not a plain function"):
            patches.Patches().around(owner, name, lambda original: original)
        assert getattr(owner, name, None) is before


def test_losses_are_bit_equal_and_nobody_is_warned() -> None:
    plain = train(loader())
    auto.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert train(loader()) == plain
    finally:
        auto.uninstall()


def test_the_iterator_keeps_its_type_and_data_sets_their_state(watched: None) -> None:
    data = torch.utils.data.dataloader
    assert type(iter(loader())) is data._SingleProcessDataLoaderIter
    dataset = Numbers(double)
    seen = list(torch.utils.data.DataLoader(dataset, batch_size=6))
    assert seen[0][5].tolist() == [10.0] * 4
    assert dataset.transform is double
    assert pickle.loads(pickle.dumps(dataset)).transform is double
    model, _ = model_and_optimizer()
    assert b"dftracer" not in pickle.dumps(model)


def test_transforms_that_the_data_set_holds_are_left_alone(watched: None) -> None:
    with capture() as events:
        list(torch.utils.data.DataLoader(Numbers(double), batch_size=3))
    assert words(events).count("data/preprocess") == 0
    assert words(events).count("data/item") == 6
    assert words(events).count("data/collate") == 2
    assert [(e.args["image_idx"], e.args["auto"]) for e in events.named("item")] == [(i, 1) for i in range(6)]


def test_items_by_hand_are_not_counted_twice(watched: None) -> None:
    class Annotated(Numbers):
        @ai.data.item
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(4)

    with capture() as events:
        list(torch.utils.data.DataLoader(Annotated(), batch_size=3))
        list(loader())
    assert len(events.named("item")) == 12
    assert words(events).count("data/item") == 6


def test_by_hand_wins(watched: None) -> None:
    with capture() as events:
        train(loader(), by_hand=True)
    assert len(events.named("forward")) == 3
    assert "compute/forward" not in words(events)
    assert words(events).count("compute/backward") == 3
    assert words(events).count("dataloader/fetch.block") == 3


def test_a_loop_by_hand_silences_fetching_for_as_long_as_it_is_used(watched: None) -> None:
    with capture() as events:
        train(ai.dataloader.fetch.iter(loader()))
        train(loader())
    automatic = [e for e in events.named("fetch.block") if e.args.get("auto")]
    assert len(events.named("fetch.block")) == 6
    assert len(automatic) == 3
    assert len([e for e in events.named("fetch.iter") if e.args.get("auto")]) == 3


def test_a_loop_by_hand_over_an_iterator_that_was_made_long_before(watched: None) -> None:
    batches = iter(loader())
    time.sleep(0.02)
    with capture() as events:
        train(ai.dataloader.fetch.iter(batches))
    assert len(events.named("fetch.iter")) == 3
    assert not [e for e in events.named("fetch.iter") if e.args.get("auto")]


def test_copies_to_a_device_with_their_bytes(watched: None) -> None:
    with capture() as events:
        for x in loader():
            x.to("meta")
            x.to(torch.float64)
            x.to("cpu")
    copies = events.named("transfer")
    assert [(e.args["bytes"], e.args["kind"]) for e in copies] == [(32, "cpu to meta")] * 3


def test_checkpoints(watched: None, tmp_path: Path) -> None:
    model, _ = model_and_optimizer()
    with capture() as events:
        torch.save(model.state_dict(), tmp_path / "a.pt")
        torch.load(tmp_path / "a.pt")
    assert words(events) == ["checkpoint/capture", "checkpoint/restart"]
    assert events.named("capture")[0].args["path"].endswith("a.pt")


def test_checkpoints_of_other_libraries(watched: None, tmp_path: Path) -> None:
    import safetensors.torch
    import torch.distributed.checkpoint as distributed

    state = {"weight": torch.ones(4)}
    with capture() as events, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own: there is no process group
        safetensors.torch.save_file(state, tmp_path / "a.safetensors")
        safetensors.torch.load_file(tmp_path / "a.safetensors")
        distributed.save(state, checkpoint_id=tmp_path / "sharded")
        distributed.load(state, checkpoint_id=tmp_path / "sharded")
    assert words(events) == ["checkpoint/capture", "checkpoint/restart"] * 2
    assert [Path(e.args["path"]).name for e in events if e.cat == "checkpoint"] == [
        "a.safetensors",
        "a.safetensors",
        "sharded",
        "sharded",
    ]


def test_gathering_a_state_is_no_checkpoint_of_its_own(watched: None, tmp_path: Path) -> None:
    """Its time is checkpointing; saved is what `torch.save` writes."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict

    model, optimizer = model_and_optimizer()
    with capture() as events:
        torch.save(get_model_state_dict(model), tmp_path / "a.pt")
        get_state_dict(model, optimizer)
    found = [word for word in words(events) if not word.startswith("sample/")]
    assert found == ["checkpoint/gather", "checkpoint/capture", "checkpoint/gather"]  # and no optimizer step


def test_a_step_that_the_gradient_scaler_skips_is_marked(watched: None) -> None:
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with capture() as events:
        for x in loader():
            optimizer.zero_grad()
            loss = model(x).sum()
            bad = x[0, 0] == 2.0  # the second batch
            scaler.scale(loss * float("inf") if bad else loss).backward()
            scaler.step(optimizer)
            scaler.update()
        auto.uninstall()
    assert [e.args.get("skipped") for e in events.named("step")] == [None, 1, None]
    assert len(events.named("fetch.block")) == 3


def test_samples_read_by_torch_load_are_no_checkpoints(watched: None, tmp_path: Path) -> None:
    torch.save(torch.zeros(4), tmp_path / "a.pt")

    class Files(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.load(tmp_path / "a.pt")

    with capture() as events:
        list(torch.utils.data.DataLoader(Files(), batch_size=2))
    assert not events.named("restart")


def graphs_of_an_optimizer_step() -> Any:
    model, optimizer = model_and_optimizer()
    model(torch.ones(4)).sum().backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.compile(optimizer.step, backend="eager")()
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    return dict(counters["graph_break"]), counters["stats"]["unique_graphs"]


def test_an_optimizer_step_compiles_as_before() -> None:
    before = graphs_of_an_optimizer_step()
    auto.install()
    try:
        assert graphs_of_an_optimizer_step() == before
    finally:
        auto.uninstall()


def graph_breaks_of_a_whole_step() -> tuple[int, int]:
    """The graph breaks of a step that holds backward, gradients and the next batch, and its graphs."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    batches = iter(loader())

    @torch.compile(backend="aot_eager")
    def step(x: Any, weight: Any) -> Any:
        (weight * x).pow(2).sum().backward()
        (slope,) = torch.autograd.grad((weight * x).sum(), weight)
        return slope + next(batches).sum()

    step(torch.ones(4), torch.ones(4, requires_grad=True))
    found = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    counters.clear()
    return found


def test_a_whole_step_has_no_graph_break_of_ours() -> None:
    before = graph_breaks_of_a_whole_step()
    assert before[0] > 0
    auto.install()
    try:
        assert graph_breaks_of_a_whole_step() == before
    finally:
        auto.uninstall()


def test_a_model_with_copies_and_casts_compiles_in_one_graph(watched: None) -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def forward(x: Any) -> Any:
        return x.to(torch.float64).to("cpu").sum()

    torch._dynamo.reset()
    assert forward(torch.ones(4)).item() == 4.0
    torch._dynamo.reset()


def test_devices_are_asked_at_the_boundaries(watched: None) -> None:
    codes: list[int] = []
    with capture():
        train(loader())  # what was said by hand in other tests is forgotten
        _core.set_boundary_hook(codes.append)
        try:
            train(loader())
        finally:
            _core.set_boundary_hook(None)
    # fetch, step begins, forward, backward, optimizer, step ends
    once = [2, 3, 4, 8, 9, 10, 11, 12, 13, 5]
    assert codes == [*once, *once, *once, 2, 3]


def one_batch_ahead(batches: Any) -> Iterator[Any]:
    batches = iter(batches)
    ahead = next(batches)
    for batch in batches:
        yield ahead
        ahead = batch
    yield ahead


def test_a_thread_that_ends_closes_its_last_step(watched: None) -> None:
    with capture() as events:
        thread = threading.Thread(target=lambda: train(one_batch_ahead(loader())))
        thread.start()
        thread.join()
    assert words(events).count("dataloader/fetch.block") == 3
    assert words(events).count("pipeline/epoch") == words(events).count("pipeline/train") == 1


FORKS = """
import gc, os, sys, threading
import torch
from torch.utils.data import DataLoader

def train():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(torch.ones(3, 1)):
        model(x).sum().backward()
        optimizer.step()
        in_step.set()
        forked.wait()

in_step, forked = threading.Event(), threading.Event()
thread = threading.Thread(target=train)
thread.start()
in_step.wait()
child = os.fork()
if child:
    forked.set()
    thread.join()
    os.waitpid(child, 0)
else:
    gc.collect()
    sys.exit(0)
"""


def test_a_forked_child_closes_nothing_of_its_parents_threads(program: Callable[..., Run]) -> None:
    done = program(FORKS, env={"DFTRACER_AUTO": "torch"})
    blocks = read(done.trace_dir).named("fetch.block")
    assert len(blocks) == 3
    assert len({e.pid for e in blocks}) == 1


def test_a_background_thread_that_loads_ahead_neither_trains_nor_evaluates(watched: None) -> None:
    batches: queue.Queue[Any] = queue.Queue()

    def load() -> None:
        for x in loader():
            batches.put(x)
        batches.put(None)

    with capture() as events:
        thread = threading.Thread(target=load)
        thread.start()
        train(iter(batches.get, None))
        thread.join()
        auto.uninstall()
    assert words(events).count("dataloader/fetch") == 3
    assert words(events).count("dataloader/fetch.block") == 3
    assert "pipeline/evaluate" not in words(events)


def test_a_batch_that_was_only_looked_at_begins_no_step(watched: None) -> None:
    with capture() as events:
        next(iter(loader()))
        train(loader())
        auto.uninstall()
    blocks = events.named("fetch.block")
    assert len(blocks) == 3
    first = events.named("fetch.iter")[0]
    assert first.ts + first.dur < blocks[0].ts - 1  # the look is not in it


def test_numbers_of_steps_and_epochs(watched: None) -> None:
    one = loader()
    model, optimizer = model_and_optimizer()
    with capture() as events:
        for _ in range(2):
            for x in one:
                model(x).sum().backward()
                optimizer.step()
        auto.uninstall()
    blocks = events.named("fetch.block")
    assert [(e.args["step"], e.args["epoch"]) for e in blocks] == [(i, i // 3) for i in range(6)]
    assert [e.args["epoch"] for e in events.named("epoch")] == [0, 1]
    assert len(events.named("train")) == 1


def test_modules_are_watched_when_asked(watched: None) -> None:
    from dftracer.auto import modules

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with capture() as events, modules():
        model(torch.ones(1, 4))
    assert [e.name for e in events if e.cat == "compute"] == [
        "forward.Sequential",
        "forward.Linear",
        "forward.ReLU",
    ]
    with capture() as events:
        model(torch.ones(1, 4))
    assert not len(events)


def test_a_loop_by_hand_that_torch_sees_learn_nothing_is_not_called_evaluation(watched: None) -> None:
    """What learns may be the program's own; without a loop by hand it is an evaluation."""
    model, _ = model_and_optimizer()
    with capture() as events:
        for _ in range(2):
            for x in ai.dataloader.fetch.iter(loader()):
                with ai.compute.forward:
                    model(x)
        ended = len(events.named("evaluate"))
        for x in loader():
            model(x)
    assert ended == 0
    assert len(events.named("fetch.block")) == 6
