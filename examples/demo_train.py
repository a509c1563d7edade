"""train.py annotated by hand, with NumPy where PyTorch is not installed; prints what the trace says.

    python examples/demo_train.py [--directory out/demo] [--epochs 3] [--workers 2] [--numpy]

With PyTorch it trains a small convolutional network through a DataLoader; without, the same with NumPy and
loader processes of its own. The data set has one file that is slow to decode and the run saves a checkpoint,
so that there is something to find. Annotations are for what automatic tracing cannot know: programs without
PyTorch, and stages of your own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DFTRACER_ENABLE", "1")

import numpy as np

from dftracer.python import ai, dftracer

CLASSES, SIDE, PER_FILE = 10, 28, 64


def make_files(directory: Path, n: int) -> list[Path]:
    """Images of noise around a pattern per class: something a model can learn."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(CLASSES, SIDE, SIDE)).astype(np.float32)
    files = []
    for i in range(n):
        labels = rng.integers(0, CLASSES, PER_FILE)
        images = patterns[labels] + rng.normal(scale=1.5, size=(PER_FILE, SIDE, SIDE)).astype(np.float32)
        path = directory / f"part-{i:03d}.npz"
        np.savez(path, images=images.astype(np.float32), labels=labels.astype(np.int64))
        files.append(path)
    return files


class Samples:
    """The data set: an item is the content of one file."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    @ai.data.item
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        with self.files[index].open("rb") as f, np.load(f) as data:
            images, labels = data["images"], data["labels"]
        return self.preprocess(images, index), labels

    @ai.data.preprocess
    def preprocess(self, images: Any, index: int) -> Any:
        rounds = 40 if index == 7 else 4  # one file is much slower to decode than the others
        for _ in range(rounds):
            images = (images - images.mean(axis=(1, 2), keepdims=True)) / (
                images.std(axis=(1, 2), keepdims=True) + 1e-6
            )
        return images


@ai.data.preprocess.derive(name="collate")
def collate(items: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Items to one batch."""
    return np.concatenate([images for images, _ in items]), np.concatenate([labels for _, labels in items])


def _feed(data: Samples, batches: list[list[int]], out: Any) -> None:
    for number, batch in batches:  # type: ignore[misc]
        out.put((number, collate([data[i] for i in batch])))


def numpy_loader(data: Samples, batch: int, workers: int, epoch: int) -> Iterator[tuple[Any, Any]]:
    """What a DataLoader does, in a few lines: processes that load ahead, batches handed out in order."""
    order = np.random.default_rng(epoch).permutation(len(data)).tolist()
    batches = list(enumerate(order[i : i + batch] for i in range(0, len(order), batch)))
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=2 * workers)
    processes = [
        context.Process(target=_feed, args=(data, batches[w::workers], queue)) for w in range(workers)
    ]
    for p in processes:
        p.start()
    early: dict[int, Any] = {}
    for number, _ in batches:
        while number not in early:
            got, value = queue.get()
            early[got] = value
        yield early.pop(number)
    for p in processes:
        p.join()


Step = Callable[[Any, Any], float]


def numpy_model() -> tuple[Step, Callable[[Path], None]]:
    """Two dense layers and softmax, by hand."""
    rng = np.random.default_rng(1)
    w1 = rng.normal(scale=0.05, size=(SIDE * SIDE, 128)).astype(np.float32)
    w2 = rng.normal(scale=0.05, size=(128, CLASSES)).astype(np.float32)

    @ai.compute.forward
    def forward(x: Any) -> tuple[Any, Any]:
        hidden = np.maximum(x @ w1, 0)
        logits = hidden @ w2
        e = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, e / e.sum(axis=1, keepdims=True)

    @ai.compute.backward
    def backward(x: Any, hidden: Any, p: Any, y: Any) -> tuple[Any, Any]:
        d = p.copy()
        d[np.arange(len(y)), y] -= 1
        d /= len(y)
        return x.T @ ((d @ w2.T) * (hidden > 0)), hidden.T @ d

    @ai.compute.step
    def update(g1: Any, g2: Any) -> None:
        np.subtract(w1, 0.5 * g1, out=w1)
        np.subtract(w2, 0.5 * g2, out=w2)

    def step(images: Any, labels: Any) -> float:
        x = images.reshape(len(images), -1)
        hidden, p = forward(x)
        update(*backward(x, hidden, p, labels))
        return float(-np.log(p[np.arange(len(labels)), labels] + 1e-9).mean())

    return step, lambda path: np.savez(path, w1=w1, w2=w2)


def torch_model() -> tuple[Step, Callable[[Path], None]]:
    """A small convolutional network."""
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * (SIDE // 2) ** 2, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> float:
        with ai.device.transfer:
            x, y = torch.as_tensor(images).unsqueeze(1).to(device), torch.as_tensor(labels).to(device)
        with ai.compute.forward:
            loss = loss_of(model(x), y)
        with ai.compute.backward:
            optimizer.zero_grad()
            loss.backward()
        with ai.compute.step:
            optimizer.step()
        return float(loss.item())

    return step, lambda path: torch.save(model.state_dict(), path)


def torch_loader(data: Samples, batch: int, workers: int, epoch: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(epoch)
    return torch.utils.data.DataLoader(
        data,
        batch_size=batch,
        shuffle=True,
        generator=generator,
        num_workers=workers,
        collate_fn=collate,  # type: ignore[arg-type]
    )


@ai.pipeline.train
def train(data: Samples, epochs: int, batch: int, workers: int, use_torch: bool, directory: Path) -> None:
    step, save = torch_model() if use_torch else numpy_model()
    loader = torch_loader if use_torch else numpy_loader
    number = 0
    for epoch in ai.pipeline.epoch.iter(range(epochs)):
        losses = []
        for images, labels in ai.dataloader.fetch.iter(loader(data, batch, workers, epoch)):
            ai.update(epoch=epoch, step=number)
            losses.append(step(images, labels))
            number += 1
        with ai.checkpoint.capture:
            save(directory / f"checkpoint-{epoch}.{'pt' if use_torch else 'npz'}")
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("out/demo"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--files", type=int, default=96)
    parser.add_argument("--batch", type=int, default=4, help="files per batch")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--numpy", action="store_true", help="do not use PyTorch even where it is installed")
    args = parser.parse_args()
    shutil.rmtree(args.directory, ignore_errors=True)
    traces = args.directory / "traces"
    traces.mkdir(parents=True)
    files = make_files(args.directory, args.files)
    use_torch = False
    if not args.numpy:
        try:
            import torch

            use_torch = True
            torch.set_num_threads(1)
        except ImportError:
            print("PyTorch is not installed: training with NumPy")
    logger = dftracer.initialize_log(str(traces / "train.pfw"), str(args.directory), -1)
    began = time.perf_counter()
    train(Samples(files), args.epochs, args.batch, args.workers, use_torch, args.directory)
    logger.finalize()
    print(f"trained for {time.perf_counter() - began:.1f} s, traces in {traces}\n")

    from dftracer.cli import main as command

    return command(["report", str(traces), "--html", str(args.directory / "report.html")])


if __name__ == "__main__":
    sys.exit(main())
