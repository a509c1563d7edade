"""A training benchmark that annotates as DLIO does and measures its accelerator utilisation as DLIO does.

`python benchmark_program.py JSON`: the settings. The last line it prints is the utilisation of each epoch and
its samples per second, measured by its own clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from dftracer.python import ai, dft_fn, dftracer

reading = dft_fn("reader")
loading = dft_fn("data_loader")
framework = dft_fn("ai_framework")


class Reader:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    @reading.log
    def open(self, index: int) -> None:
        pass

    @reading.log
    def get_sample(self, index: int) -> Any:
        time.sleep(self.seconds)
        return np.zeros(8, np.float32)

    @ai.data.preprocess
    def preprocess(self, sample: Any) -> Any:
        return sample

    @reading.log
    def close(self, index: int) -> None:
        pass

    @reading.log
    def read_index(self, index: int) -> Any:
        with ai.data.item:
            self.open(index)
            sample = self.preprocess(self.get_sample(index))
            self.close(index)
            return sample


class Samples(Dataset[Any]):
    def __init__(self, count: int, reader: Reader) -> None:
        self.count = count
        self.reader = reader

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.reader.read_index(index)


class Loader:
    def __init__(self, settings: dict[str, Any]) -> None:
        samples = Samples(settings["samples"], Reader(settings["read_s"]))
        self.epoch = 1
        self.batches = DataLoader(
            samples,
            settings["batch_size"],
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context="fork",
        )

    @loading.log
    def next(self) -> Iterator[Any]:
        for step, batch in enumerate(ai.dataloader.fetch.iter(self.batches), 1):
            ai.update(step=step)
            yield batch
        self.epoch += 1
        ai.update(epoch=self.epoch)


class Clock:
    """Time in compute over the time of the epoch, both without the first step."""

    def __init__(self) -> None:
        self.begin = time.time()
        self.compute: list[float] = []
        self.steps: list[float] = []

    def figures(self, batch_size: int) -> tuple[float, float]:
        """Utilisation in percent, and samples per second."""
        seconds = time.time() - self.begin - self.steps[0]
        return 100 * sum(self.compute[1:]) / seconds, (len(self.steps) - 1) * batch_size / seconds


class Benchmark:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.loader = Loader(settings)

    @framework.log
    def trace_object(self) -> None:
        pass

    @ai.compute
    def compute(self, batch: Any) -> None:
        time.sleep(self.settings["compute_s"])

    @ai.pipeline.train
    def train(self) -> tuple[float, float]:
        clock = Clock()
        wanted = time.time()
        for batch in self.loader.next():
            self.trace_object()
            start = time.time()
            self.compute(batch)
            now = time.time()
            clock.compute.append(now - start)
            clock.steps.append(now - wanted)
            wanted = time.time()
        return clock.figures(self.settings["batch_size"])

    @ai
    def run(self) -> list[tuple[float, float]]:
        epochs = range(1, self.settings["epochs"] + 1)
        return [self.train() for _ in ai.pipeline.epoch.iter(epochs, include_iter=False)]


def main() -> None:
    settings = json.loads(sys.argv[1])
    log = dftracer.initialize_log("trace-0-of-1.pfw", None, 0)
    found = Benchmark(settings).run()
    log.finalize()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
