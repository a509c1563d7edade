"""Automatic tracing observes calls and stands in for nothing: programs are compared with themselves."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.process import clean_environment
from support.trace import read_directory

pytest.importorskip("torch")

TORCHVISION = {
    "torchvision/__init__.py": "from torchvision import transforms\n",
    "torchvision/transforms/__init__.py": "from torchvision.transforms.transforms import Compose\n",
    "torchvision/transforms/transforms.py": """
        class Compose:
            def __init__(self, transforms):
                self.transforms = transforms

            def __call__(self, img):
                for t in self.transforms:
                    img = t(img)
                return img
        """,
    "torchvision/transforms/v2/__init__.py": "from torchvision.transforms.v2._container import Compose\n",
    "torchvision/transforms/v2/_container.py": """
        import torch


        class Compose(torch.nn.Module):
            def __init__(self, transforms):
                super().__init__()
                self.transforms = transforms

            def forward(self, *inputs):
                outputs = inputs
                for t in self.transforms:
                    outputs = (t(*outputs),)
                return outputs[0]
        """,
}

# What programs do with data sets, batches and functions of torch; each prints what it saw.
PROGRAMS = {
    "a data set that looks at its transform": """
        import torch
        from torchvision.transforms import Compose

        class Marked(Compose):
            def __len__(self): return len(self.transforms)
            def __getitem__(self, i): return self.transforms[i]

        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.transform = Marked([lambda x: x * 2])
                self.convert = self.target_transform = float
            def __len__(self): return 8
            def __getitem__(self, i):
                x = torch.full((4,), float(i))
                if isinstance(self.transform, Compose) and len(self.transform) == 1 and self.transform[0]:
                    x = self.transform(x)
                self.transform.seen = getattr(self.transform, "seen", 0) + 1
                assert isinstance(1.0, self.target_transform) and self.transform == self.transform
                return x

        for workers in (0, 2):
            data = Data()
            kept = data.transform
            model = torch.nn.Linear(4, 1)
            torch.nn.init.constant_(model.weight, 0.1)
            torch.nn.init.constant_(model.bias, 0.0)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            for x in torch.utils.data.DataLoader(data, batch_size=2, num_workers=workers):
                loss = model(x).pow(2).mean()
                optimizer.zero_grad(); loss.backward(); optimizer.step()
                print(loss.item().hex())
            print(data.transform is kept, getattr(kept, "seen", 0), sorted(vars(data)))
        """,
    "batches with properties": """
        import torch

        touched = []

        class Batch:
            def __init__(self, x): self.x = x
            @property
            def data(self): touched.append("data"); raise SystemExit(3)
            def values(self): touched.append("values"); return [self.x]
            def __len__(self): touched.append("len"); return 1
            def __getitem__(self, i): touched.append("getitem"); raise IndexError
            def __iter__(self): touched.append("iter"); return iter(())
            def __getattr__(self, name): touched.append(name); raise AttributeError(name)

        class Mapping(dict):
            def values(self): touched.append("values"); return super().values()
            def __iter__(self): touched.append("iter"); return super().__iter__()

        class Row(tuple):
            def __iter__(self): touched.append("iter"); return super().__iter__()
            def __getitem__(self, i): touched.append("getitem"); return super().__getitem__(i)
            def __len__(self): touched.append("len"); return super().__len__()

        class Sampled(list):
            def __len__(self): touched.append("sampler len"); return super().__len__()

        class Sub(torch.Tensor):
            @property
            def device(self): touched.append("device"); return super().device

        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.full((4,), float(i))
            def __getattr__(self, name):
                touched.append("dataset." + name)
                raise AttributeError(name)

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self): return iter([torch.ones(4)] * 8)

        def batch(items): return Batch(torch.stack(items))
        def mapping(items): return Mapping(x=torch.stack(items))
        def row(items): return Row([torch.stack(items)])

        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        samples = [Sampled([0, 1]), Sampled([2, 3])]
        for data in (Data(), Stream()):
            for collate in (batch, mapping, row):
                given = {"batch_sampler": samples} if isinstance(data, Data) else {"batch_size": 2}
                for each in torch.utils.data.DataLoader(data, collate_fn=collate, **given):
                    loss = model(torch.ones(2, 4)).mean()
                    loss.backward(); optimizer.step()
        x = torch.ones(4).as_subclass(Sub)
        x.to(torch.float64), x.to("meta")
        print(touched)
        """,
    "a data set with many items at once": """
        import torch

        class Many(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): raise RuntimeError("one by one")
            def __getitems__(self, indices):
                print(type(self), type(indices), indices, torch.utils.data.get_worker_info() is None)
                return [torch.ones(2) * i for i in indices]

        class NoMany(Many):
            __getitems__ = None
            def __getitem__(self, i): return torch.ones(2) * i

        for data in (Many(), NoMany()):
            loader = torch.utils.data.DataLoader(data, batch_size=4)
            batches = iter(loader)
            print([b.sum().item() for b in batches])
            fetcher = batches._dataset_fetcher
            print(fetcher.dataset is data, fetcher.collate_fn is loader.collate_fn, sorted(vars(fetcher)))

        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                self.given = iter([torch.ones(1)] * 5)
                return self.given

        stream = Stream()
        batches = iter(torch.utils.data.DataLoader(stream, batch_size=2))
        print(next(batches).shape, batches._dataset_fetcher.dataset_iter is stream.given)
        print([b.shape for b in batches], batches._dataset_fetcher.ended)
        """,
    "modes of the program": """
        import torch
        from torch.overrides import TorchFunctionMode

        class Seen(TorchFunctionMode):
            names = []
            def __torch_function__(self, function, types, args=(), kwargs=None):
                self.names.append(getattr(function, "__name__", str(function)))
                return function(*args, **(kwargs or {}))

        with Seen():
            x = torch.ones(4)
            x.to("meta")
            for each in torch.utils.data.DataLoader([x, x], batch_size=2):
                pass
        print(Seen.names)
        """,
    "functions in pickles": """
        import copy, functools, inspect, os, pickle, sys
        import torch

        class Files(torch.utils.data.Dataset):
            def __init__(self, files, loader=torch.load): self.files, self.loader = files, loader
            def __len__(self): return len(self.files)
            def __getitem__(self, i): return self.loader(self.files[i])["x"]

        if __name__ == "__main__":
            import torch.multiprocessing as mp
            files = [f"{i}.pt" for i in range(4)]
            for i, file in enumerate(files):
                torch.save({"x": torch.full((2,), float(i))}, file)
            with mp.get_context("spawn").Pool(1) as pool:
                print([found["x"].tolist() for found in pool.map(torch.load, files)])
            loader = torch.utils.data.DataLoader(
                Files(files), batch_size=2, num_workers=1, multiprocessing_context="spawn"
            )
            print([batch.tolist() for batch in loader])
            loader_iter = torch.utils.data.DataLoader.__iter__
            for function in (torch.load, torch.save, torch.autograd.backward, torch.autograd.grad,
                             torch.Tensor.to, torch.optim.Optimizer.__init__, loader_iter):
                assert pickle.loads(pickle.dumps(function)) is function is copy.deepcopy(function)
                assert pickle.loads(pickle.dumps(functools.partial(function))).func is function
                text = getattr(function, "__text_signature__", None)
                in_c = type(function).__name__ == "method_descriptor"
                signature = "" if in_c else inspect.signature(function)
                print(function.__name__, function.__qualname__, text, signature, type(function).__name__,
                      getattr(function, "__module__", ""), pickle.dumps(function))
            print(torch.load is torch.serialization.load, torch.Tensor.to.__objclass__)
            print(inspect.getsource(torch.load)[:80], torch.load.__defaults__, torch.load.__kwdefaults__)
        """,
    "compilers": """
        import warnings
        import torch
        import torch._dynamo

        def step(x):
            y = (x * 2).to(torch.float64).sum()
            return y

        def saves(x):
            torch.save(x * 1, "x.pt")
            return x + 1

        def makes(x):
            p = torch.nn.Parameter(x)
            torch.optim.SGD([p], lr=0.1)
            return p * 2

        def gradient(x):
            return torch.autograd.grad((x * 2).sum(), x)[0] + 1

        model = torch.nn.Linear(3, 1, bias=False)
        torch.nn.init.constant_(model.weight, 0.5)

        def loss_of(weights, x):
            return torch.func.functional_call(model, weights, (x,)).pow(2).sum()

        def transform(x):
            gradients, value = torch.func.grad_and_value(loss_of)({"weight": model.weight.detach()}, x)
            twice = torch.func.grad(lambda y: torch.func.grad(lambda z: (z**3).sum())(y).sum())(x)
            each = torch.func.vmap(torch.func.grad(lambda y: (y**2).sum()))(x)
            return gradients["weight"].sum() + value + twice + each

        print(transform(torch.ones(3)).tolist(), torch.func.hessian(lambda x: (x**3).sum())(torch.ones(2)))
        torch.compile(transform, backend="eager", fullgraph=True)(torch.ones(3))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for function in (step, saves, makes, gradient, transform):
                torch._dynamo.reset()
                found = torch._dynamo.explain(function)(torch.ones(3, requires_grad=True))
                print(function.__name__, found.graph_count, found.graph_break_count, found.op_count)
                torch._dynamo.reset()
                print(torch.compile(function, backend="eager")(torch.ones(3, requires_grad=True)).tolist())
            exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
            print(len(exported.graph.nodes))
        print(sorted({str(each.message)[:60] for each in caught}))
        """,
    # What a program lets go of is gone at once, with its processes' pipes and its memory.
    "what is no longer referenced": """
        import weakref
        import torch

        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return torch.full((4,), float(i))

        def train(left_early, **options):
            data, model = Data(), torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, **options)
            iterator = iter(loader)
            things = [data, model, optimizer, loader, iterator, *iterator._workers, *iterator._index_queues]
            for x in iterator:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if left_early: break
            return [weakref.ref(thing) for thing in (*things, x, loss)]

        for left_early in (False, True):
            for options in ({}, {"persistent_workers": True}):
                print(left_early, options, [known() is None for known in train(left_early, **options)])
        """,
}


def both(tmp_path: Path, text: str) -> tuple[str, str, Path]:
    """Output and exit code of a program, untraced and under `dftracer run`, and where the trace is."""
    outputs = []
    run = ["-m", "dftracer", "run", "-q", "-o", str(tmp_path / "trace"), "--", sys.executable]
    for name, command in (("plain", []), ("traced", run)):
        folder = tmp_path / name
        folder.mkdir()
        for file, content in TORCHVISION.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(textwrap.dedent(content))
        (folder / "program.py").write_text(textwrap.dedent(text))
        done = subprocess.run(
            [sys.executable, *command, "program.py"],
            cwd=folder,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.replace(str(folder), "") + f"\nexit {done.returncode}")
    return outputs[0], outputs[1], tmp_path / "trace"


@pytest.mark.parametrize("what", PROGRAMS)
def test_the_program_is_the_same(what: str, tmp_path: Path) -> None:
    plain, traced, _ = both(tmp_path, PROGRAMS[what])
    assert traced == plain


def test_transforms_are_seen_where_their_library_can_be_observed(tmp_path: Path) -> None:
    plain, traced, trace = both(
        tmp_path,
        """
        import torch, torchvision
        from torchvision.transforms import v2

        class Data(torch.utils.data.Dataset):
            def __init__(self, transform): self.transform = transform
            def __len__(self): return 4
            def __getitem__(self, i): return self.transform(torch.ones(2) * i)

        def double(x): return x * 2

        for kind in (torchvision.transforms.Compose, v2.Compose):
            for workers in (0, 1):
                nested = kind([double, kind([double])])
                loader = torch.utils.data.DataLoader(Data(nested), batch_size=2, num_workers=workers)
                print([batch.tolist() for batch in loader], nested(torch.ones(1)))
        """,
    )
    assert traced == plain
    events = [e for e in read_directory(trace).events if e.cat == "data" and e.name == "preprocess"]
    assert len(events) == 16  # four items, two classes, with a worker and without; not outside a loader


WALK = """
    import functools, importlib, inspect, json, pickle, sys
    import torch, torch.distributed.checkpoint, torch.utils.data
    for name in ("safetensors.torch", "safetensors.numpy", "transformers.trainer", "lightning.pytorch",
                 "torchvision.transforms.v2", "accelerate", "fsspec", "h5py"):
        try:
            importlib.import_module(name)
        except ImportError:
            pass

    def found():
        from dftracer.torch import patches
        functions = [(o.owner, o.name, o.function) for o in patches.observed.values()]
        return functions + list(patches.watched)

    def described(thing):
        facts = [repr(thing), type(thing).__name__, thing.__name__, thing.__qualname__, thing.__doc__,
                 getattr(thing, "__module__", None), getattr(thing, "__text_signature__", None),
                 repr(getattr(thing, "__defaults__", None)), repr(getattr(thing, "__kwdefaults__", None)),
                 sorted(getattr(thing, "__dict__", ())), repr(getattr(thing, "__annotations__", None))]
        try:
            facts.append(str(inspect.signature(thing)))
        except ValueError:
            facts.append("no signature")
        try:
            facts.append(inspect.getsource(thing))
        except (TypeError, OSError):
            facts.append("no source")
        try:
            pickled = pickle.dumps(thing)
            facts.append([pickled.hex(), pickle.loads(pickled) is thing])
        except Exception as error:
            facts.append(type(error).__name__)
        return facts

    def aliases(thing):
        places = []
        for name, module in sorted(sys.modules.items()):
            if name.startswith(("torch", "transformers.trainer", "lightning.pytorch.trainer", "safetensors")):
                places += [f"{name}.{key}" for key, value in vars(module).items() if value is thing]
        return places
"""


def test_everything_observed_is_what_it_was(tmp_path: Path) -> None:
    """Walks over all that is changed: nothing about it tells, while it is changed and after."""
    program = textwrap.dedent(WALK) + textwrap.dedent("""
        from dftracer import auto, collect, hooks
        from dftracer.collect._windows import OtherProfilers
        from dftracer.torch import hang
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        others = OtherProfilers(torch, lambda reason: None)

        def on():
            hang.watch(torch.distributed.distributed_c10d, by_hand=True)  # until finalize()
            assert auto.install()
            hooks.install()
            others.watch()
            # torch looks at its own functions once it compiles
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))

        def off():
            others.unwatch()
            hooks.uninstall()
            auto.uninstall()
            hang.unwatch(by_hand=True)

        on()
        things = found()
        off()
        assert found() == []
        codes = [getattr(thing, "__code__", None) for _, _, thing in things]
        before = [described(thing) for _, _, thing in things]
        places = [aliases(thing) for _, _, thing in things]
        on()
        changed = [getattr(thing, "__code__", None) for _, _, thing in things]
        during = [described(thing) for _, _, thing in things]
        assert places == [aliases(thing) for _, _, thing in things]
        assert [name for owner, name, thing in things if getattr(vars(owner).get(name), "__func__",
                getattr(owner, name)) is not thing and getattr(owner, name) is not thing] == []
        off()
        after = [described(thing) for _, _, thing in things]
        assert codes == [getattr(thing, "__code__", None) for _, _, thing in things]
        names = [f"{owner.__name__}.{name}" for owner, name, _ in things]
        print(json.dumps([names, before, during, after, [a is not b for a, b in zip(codes, changed)]]))
        """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=clean_environment(DFTRACER_ENABLE="1", DFTRACER_LOG_FILE=str(tmp_path / "t")),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names, before, during, after, exchanged = json.loads(done.stdout.splitlines()[-1])
    assert {"torch.load", "torch.autograd.backward", "Tensor.to", "DataLoader.__iter__"} <= set(names)
    assert "torch._functorch.eager_transforms.grad_and_value_impl" in names
    assert len(names) > 30
    assert [name for name, on in zip(names, exchanged, strict=True) if not on] == ["Tensor.to", "Tensor.cuda"]
    for name, *facts in zip(names, before, during, after, strict=True):
        assert facts[1] == facts[0] == facts[2], name


def test_pickles_cross_from_traced_to_untraced_and_back(tmp_path: Path) -> None:
    program = """
        import pickle, sys, torch
        import torch.distributed.checkpoint as dcp
        functions = [torch.load, torch.save, torch.Tensor.to, torch.autograd.grad, dcp.save,
                     torch.distributed.all_reduce, torch.utils.data.DataLoader.__iter__]
        with open(sys.argv[1], "rb") as file:
            given = pickle.loads(file.read() or pickle.dumps(functions))
        assert all(a is b for a, b in zip(given, functions)), given
        with open(sys.argv[2], "wb") as file:
            pickle.dump(functions, file)
        """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    (tmp_path / "0").touch()
    run = ["-m", "dftracer", "run", "-q", "-o", "t", "--", sys.executable]
    for number, command in enumerate(([], run, [])):
        files = [str(tmp_path / str(number)), str(tmp_path / str(number + 1))]
        subprocess.run(
            [sys.executable, *command, "program.py", *files],
            cwd=tmp_path,
            env=clean_environment(),
            check=True,
            timeout=300,
        )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes() == (tmp_path / "3").read_bytes()
