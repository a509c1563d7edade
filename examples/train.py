"""Trains a small convolutional network on files it makes itself. Nothing in it knows that it is traced.

    dftracer run -- python examples/train.py

One file is much slower to decode than the others, and each epoch saves a checkpoint: something to find.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

CLASSES, SIDE, PER_FILE, SLOW = 10, 28, 64, 7


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


class Samples(Dataset):
    """An item is the content of one file."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with np.load(self.files[index]) as data:
            images, labels = data["images"], data["labels"]
        for _ in range(40 if index == SLOW else 4):
            mean, std = images.mean(axis=(1, 2), keepdims=True), images.std(axis=(1, 2), keepdims=True)
            images = (images - mean) / (std + 1e-6)
        return torch.from_numpy(images), torch.from_numpy(labels)


def collate(items: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Files to one batch."""
    return torch.cat([images for images, _ in items]), torch.cat([labels for _, labels in items])


def main() -> None:
    """The whole of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path("out/demo/data"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--files", type=int, default=96)
    parser.add_argument("--batch", type=int, default=4, help="files per batch")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    shutil.rmtree(args.directory, ignore_errors=True)
    args.directory.mkdir(parents=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(
        Samples(make_files(args.directory, args.files)),
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        collate_fn=collate,
    )
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * (SIDE // 2) ** 2, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss_of = torch.nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        losses = []
        for images, labels in loader:
            x, y = images.unsqueeze(1).to(device), labels.to(device)
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        torch.save(model.state_dict(), args.directory / f"checkpoint-{epoch}.pt")
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")


if __name__ == "__main__":
    main()
